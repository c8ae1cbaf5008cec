// Convolution: forward, data gradient, weight gradient. Tensors arrive in plain order; the kernel
// may compute in another order and reorder inside, with planned workspace.
#include "onednn/conv.h"

#include <algorithm>

namespace mixflow::onednn {
namespace {

using dnnl::algorithm;
using dnnl::prop_kind;

// Plain activations cost no reorder, but only a product of matrices serves them; blocked ones have
// the fast direct kernels.
memory::desc activation(const Dims& dims, memory::data_type type, Order order) {
  switch (order) {
    case Order::plain:
      return plain_desc(dims, type);
    case Order::channels_last:
      return channels_last_desc(dims, type);
    case Order::blocked:
      break;
  }
  return any_desc(dims, type);
}

// Sizes and parameters in oneDNN's terms. x, w, y are the input, weights and output of the
// forward convolution, whatever direction is computed.
struct Problem {
  Dims x, w, y, stride, dilate, pad;
  memory::data_type type;                    // in which operands are read
  memory::data_type x_type, w_type, y_type;  // of the tensors
  double flops;
};

Dims with_groups(const Shape& w, int64_t groups) {
  if (groups == 1) return dims_of(w);
  Dims dims{groups, w[0] / groups};
  dims.insert(dims.end(), w.begin() + 1, w.end());
  return dims;
}

Problem problem_of(const Request& request, const Desc& x, const Desc& w, const Desc& y) {
  const Attrs& attrs = request.attrs;
  Problem p;
  p.x = dims_of(x.shape);
  p.w = with_groups(w.shape, attrs.integer("groups"));
  p.y = dims_of(y.shape);
  p.stride = attrs.integers("stride");
  p.pad = attrs.integers("pad");
  for (int64_t dilate : attrs.integers("dilate")) p.dilate.push_back(dilate - 1);
  p.type = computed_type(request);
  p.x_type = type_of(x.dtype);
  p.w_type = type_of(w.dtype);
  p.y_type = type_of(y.dtype);
  p.flops =
      2.0 * static_cast<double>(y.shape.size()) * static_cast<double>(w.shape.size() / w.shape[0]);
  return p;
}

bool good_rank(const Request& request) {
  const int ndim = request.inputs[0].shape.ndim();
  return ndim >= 3 && ndim <= 5;
}

// `bias`: its type; undef = none. `out`: type of the output.
dnnl::convolution_forward::primitive_desc forward_desc(const Problem& p, memory::data_type bias,
                                                       memory::data_type out, Orders orders,
                                                       const dnnl::primitive_attr& attr) {
  const memory::desc x = activation(p.x, p.type, orders.x);
  const memory::desc y = activation(p.y, out, orders.y);
  const memory::desc w = any_desc(p.w, p.type);
  // forward_inference and forward_training compute the same; training allows gradient hints.
  if (bias == memory::data_type::undef) {
    return {cpu_engine(),
            prop_kind::forward_training,
            algorithm::convolution_direct,
            x,
            w,
            y,
            p.stride,
            p.dilate,
            p.pad,
            p.pad,
            attr};
  }
  const memory::desc b = plain_desc(Dims{p.y[1]}, bias);
  return {cpu_engine(),
          prop_kind::forward_training,
          algorithm::convolution_direct,
          x,
          w,
          b,
          y,
          p.stride,
          p.dilate,
          p.pad,
          p.pad,
          attr};
}

// Closes a built kernel, or refuses it: null stands for "no tuned implementation".
std::unique_ptr<Kernel> finished(std::unique_ptr<SequenceKernel> kernel, const char* name,
                                 const Problem& p, int threads) {
  if (is_reference(name)) return nullptr;
  kernel->finish(name, threads, p.flops);
  return kernel;
}

std::unique_ptr<Kernel> build_forward(const Request& request, const Problem& p, Orders orders,
                                      int threads) {
  const bool bias = request.inputs.size() > 2;
  const auto bias_type = bias ? type_of(request.inputs[2].dtype) : memory::data_type::undef;
  const auto desc = forward_desc(p, bias_type, p.y_type, orders, user_scratchpad());
  auto kernel = std::make_unique<SequenceKernel>();
  const auto x = kernel->read_as(kernel->input(0, plain_desc(p.x, p.x_type)), desc.src_desc());
  const auto plain_w = kernel->input(1, plain_desc(p.w, p.w_type));
  const auto w = kernel->read_weights(plain_w, desc.weights_desc());
  const auto out = kernel->output(0, plain_desc(p.y, p.y_type));
  const auto y = kernel->write_as(out, desc.dst_desc());
  SequenceKernel::Arguments arguments{{DNNL_ARG_SRC, x}, {DNNL_ARG_WEIGHTS, w}, {DNNL_ARG_DST, y}};
  if (bias) {
    arguments.emplace_back(DNNL_ARG_BIAS, kernel->input(2, plain_desc(Dims{p.y[1]}, bias_type)));
  }
  kernel->step(dnnl::convolution_forward(desc), desc.scratchpad_desc(), arguments);
  kernel->store(y, out);
  return finished(std::move(kernel), desc.impl_info_str(), p, threads);
}

// What a gradient asks to see: a forward convolution of the type that is computed in.
dnnl::convolution_forward::primitive_desc hint_desc(const Problem& p) {
  return forward_desc(p, memory::data_type::undef, p.type, {Order::blocked, Order::blocked}, {});
}

std::unique_ptr<Kernel> build_data_grad(const Problem& p, Orders orders, int threads) {
  const auto hint = hint_desc(p);
  const dnnl::convolution_backward_data::primitive_desc desc(
      cpu_engine(), algorithm::convolution_direct, activation(p.x, p.x_type, orders.x),
      any_desc(p.w, p.type), activation(p.y, p.type, orders.y), p.stride, p.dilate, p.pad, p.pad,
      hint, user_scratchpad());
  auto kernel = std::make_unique<SequenceKernel>();
  const auto y = kernel->read_as(kernel->input(0, plain_desc(p.y, p.y_type)), desc.diff_dst_desc());
  const auto plain_w = kernel->input(1, plain_desc(p.w, p.w_type));
  const auto w = kernel->read_weights(plain_w, desc.weights_desc());
  const auto out = kernel->output(0, plain_desc(p.x, p.x_type));
  const auto x = kernel->write_as(out, desc.diff_src_desc());
  kernel->step(dnnl::convolution_backward_data(desc), desc.scratchpad_desc(),
               {{DNNL_ARG_DIFF_DST, y}, {DNNL_ARG_WEIGHTS, w}, {DNNL_ARG_DIFF_SRC, x}});
  kernel->store(x, out);
  return finished(std::move(kernel), desc.impl_info_str(), p, threads);
}

std::unique_ptr<Kernel> build_weight_grad(const Problem& p, Orders orders, int threads) {
  const auto hint = hint_desc(p);
  const dnnl::convolution_backward_weights::primitive_desc desc(
      cpu_engine(), algorithm::convolution_direct, activation(p.x, p.type, orders.x),
      any_desc(p.w, p.w_type), activation(p.y, p.type, orders.y), p.stride, p.dilate, p.pad, p.pad,
      hint, user_scratchpad());
  auto kernel = std::make_unique<SequenceKernel>();
  const auto y = kernel->read_as(kernel->input(0, plain_desc(p.y, p.y_type)), desc.diff_dst_desc());
  const auto x = kernel->read_as(kernel->input(1, plain_desc(p.x, p.x_type)), desc.src_desc());
  const auto out = kernel->output(0, plain_desc(p.w, p.w_type));
  const auto w = kernel->write_as(out, desc.diff_weights_desc());
  kernel->step(dnnl::convolution_backward_weights(desc), desc.scratchpad_desc(),
               {{DNNL_ARG_DIFF_DST, y}, {DNNL_ARG_SRC, x}, {DNNL_ARG_DIFF_WEIGHTS, w}});
  kernel->store(w, out);
  return finished(std::move(kernel), desc.impl_info_str(), p, threads);
}

Problem problem_of(const Request& request, Direction direction) {
  const auto& in = request.inputs;
  const Desc& out = request.outputs[0];
  switch (direction) {
    case Direction::forward:
      return problem_of(request, in[0], in[1], out);
    case Direction::data_grad:
      return problem_of(request, out, in[1], in[0]);
    case Direction::weight_grad:
      break;
  }
  return problem_of(request, in[1], out, in[0]);
}

constexpr Orders kPlain{Order::plain, Order::plain};
constexpr Orders kBlocked{Order::blocked, Order::blocked};
constexpr Orders kChannelsLast{Order::channels_last, Order::channels_last};
constexpr Orders kPlainToBlocked{Order::plain, Order::blocked};

bool pointwise(const Problem& p) {
  const auto one = [](int64_t size) { return size == 1; };
  const size_t spatial = p.x.size() - 2;
  return std::all_of(p.w.end() - static_cast<int64_t>(spatial), p.w.end(), one) &&
         std::all_of(p.stride.begin(), p.stride.end(), one);
}

// The orders that served best, reorders included, on the shapes of LeNet, AlexNet, VGG, ResNet,
// GoogLeNet and MobileNet (AVX-512, two threads). A product of matrices on plain activations wins
// where it needs no unfolding or where the work is small; blocked kernels win on whole blocks of 16
// channels; channels last on odd channel counts, which blocks would pad.
Orders best_orders(const Problem& p, Direction direction) {
  const bool grouped = p.w.size() > p.x.size();
  const int64_t in_channels = grouped ? p.w[2] : p.w[1];
  const int64_t out_channels = grouped ? p.w[1] : p.w[0];
  const bool whole_blocks = in_channels % 16 == 0 && out_channels % 16 == 0;
  if (grouped && in_channels == 1) {
    return direction == Direction::weight_grad ? kChannelsLast : kBlocked;
  }
  if (direction == Direction::weight_grad) {
    if (in_channels <= 4) return kPlainToBlocked;
    if (pointwise(p)) return kPlain;
    return whole_blocks ? kBlocked : kChannelsLast;
  }
  if (pointwise(p) || p.flops < 2e7) return kPlain;
  if (in_channels <= 4) return direction == Direction::forward ? kPlainToBlocked : kPlain;
  return whole_blocks ? kBlocked : kChannelsLast;
}

// Whether our own unfolding serves better: few input channels, where oneDNN pads them (data
// gradient) or the output (forward), and its product of matrices does not spread over threads.
bool plain_kernel_is_faster(const Problem& p, Direction direction) {
  const bool grouped = p.w.size() > p.x.size();
  if (grouped || p.w[1] > 4 || p.type != memory::data_type::f32) return false;
  return direction == Direction::data_grad || (direction == Direction::forward && p.w[0] % 16 != 0);
}

// First choice, then what to try where it has no tuned implementation.
std::vector<Orders> preferred_orders(const Problem& p, Direction direction) {
  return {best_orders(p, direction), kBlocked, kChannelsLast, kPlain};
}

}  // namespace

std::unique_ptr<Kernel> make_conv(const Request& request, Direction direction, Orders orders) {
  const Problem p = problem_of(request, direction);
  const int threads = useful_threads(p.flops, request.threads);
  const ThreadScope scope(threads);
  try {
    switch (direction) {
      case Direction::forward:
        return build_forward(request, p, orders, threads);
      case Direction::data_grad:
        return build_data_grad(p, orders, threads);
      case Direction::weight_grad:
        return build_weight_grad(p, orders, threads);
    }
  } catch (const dnnl::error&) {
    // No implementation for these orders.
  }
  return nullptr;
}

std::unique_ptr<Kernel> prepare_conv(const Request& request, Direction direction) {
  if (!serves_all(request) || !good_rank(request)) return nullptr;
  const Problem p = problem_of(request, direction);
  if (plain_kernel_is_faster(p, direction)) return nullptr;
  for (const Orders& orders : preferred_orders(p, direction)) {
    if (auto kernel = make_conv(request, direction, orders)) return kernel;
  }
  return nullptr;
}

void register_conv(Registry& registry) {
  const std::pair<const char*, Direction> entries[] = {
      {"conv", Direction::forward},
      {"conv_data_grad", Direction::data_grad},
      {"conv_weight_grad", Direction::weight_grad}};
  for (const auto& [name, direction] : entries) {
    registry.add(name, 10, "onednn", [direction = direction](const Request& request) {
      return prepare_conv(request, direction);
    });
  }
}

}  // namespace mixflow::onednn
