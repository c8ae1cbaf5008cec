// Convolution of blocked tensors (N, C / b, *S, b), and the reorders to and from them. Activations
// arrive in the order that oneDNN's direct kernels like, so that only weights are reordered inside.
#include <algorithm>
#include <optional>

#include "onednn/sequence.h"

namespace mixflow::onednn {
namespace {

using dnnl::algorithm;
using dnnl::prop_kind;
using Slot = SequenceKernel::Slot;

// nC...{b}c for 1 to 3 spatial axes.
memory::desc blocked_desc(const Dims& dims, int64_t size, memory::data_type type) {
  using tag = memory::format_tag;
  const tag eights[] = {tag::nCw8c, tag::nChw8c, tag::nCdhw8c};
  const tag sixteens[] = {tag::nCw16c, tag::nChw16c, tag::nCdhw16c};
  return memory::desc(dims, type, (size == 8 ? eights : sixteens)[dims.size() - 3]);
}

// A tensor of `rank` plain axes that may be blocked.
struct Tensor {
  Dims dims;        // plain
  memory::desc own;  // the order in which it arrives or leaves

  Tensor(const Desc& desc, int rank) : dims(dims_of(desc.shape)) {
    const auto type = type_of(desc.dtype);
    if (static_cast<int>(dims.size()) == rank) {
      own = plain_desc(dims, type);
      return;
    }
    const int64_t size = dims.back();
    dims.pop_back();
    dims[1] *= size;
    own = blocked_desc(dims, size, type);
  }
};

bool good_block(const Desc& desc, int rank) {
  const int64_t size = desc.shape[desc.shape.ndim() - 1];
  return desc.shape.ndim() == rank || size == 8 || size == 16;
}

// x, w, y are the input, weights and output of the forward convolution, whatever is computed. What
// is read has one type; what is written has the type of its own tensor.
struct Problem {
  Tensor x, y;
  memory::desc w_plain, w_any, w_hint, x_any, y_any;
  Dims stride, dilate, pad;
  bool mixed;  // of several types
  double flops;

  Problem(const Request& r, const Desc& x_desc, const Desc& w, const Desc& y_desc)
      : x(x_desc, w.shape.ndim()), y(y_desc, w.shape.ndim()) {
    const memory::data_type type = computed_type(r);
    const auto seen = [&](const Desc& d) {
      return &d == &r.outputs[0] ? type_of(d.dtype) : type;
    };
    x_any = any_desc(x.dims, seen(x_desc));
    y_any = any_desc(y.dims, seen(y_desc));
    mixed = !(x_desc.dtype == w.dtype && y_desc.dtype == w.dtype);
    Dims dims = dims_of(w.shape);
    const int64_t groups = r.attrs.integer("groups");
    if (groups > 1) {
      dims[0] /= groups;
      dims.insert(dims.begin(), groups);
    }
    w_plain = plain_desc(dims, type_of(w.dtype));
    w_any = any_desc(dims, seen(w));
    w_hint = any_desc(dims, type);
    stride = r.attrs.integers("stride");
    pad = r.attrs.integers("pad");
    for (int64_t d : r.attrs.integers("dilate")) dilate.push_back(d - 1);
    flops = 2.0 * static_cast<double>(y_desc.shape.size()) *
            static_cast<double>(w.shape.size() / w.shape[0]);
  }
};

// The orders that the primitive sees: those of the tensors, or its own choice.
struct Orders {
  memory::desc x, y;
};

std::vector<Orders> candidates(const Problem& p) {
  const memory::desc &x = p.x_any, &y = p.y_any;
  return {{p.x.own, p.y.own}, {p.x.own, y}, {x, p.y.own}, {x, y}};
}

using ForwardDesc = dnnl::convolution_forward::primitive_desc;

// `bias`: its type; undef = none.
ForwardDesc forward_desc(const Problem& p, memory::data_type bias, const Orders& o,
                         const dnnl::primitive_attr& attr, prop_kind prop) {
  const auto direct = algorithm::convolution_direct;
  if (bias == memory::data_type::undef) {
    return {cpu_engine(), prop,     direct, o.x,   p.w_any, o.y,
            p.stride,     p.dilate, p.pad,  p.pad, attr};
  }
  const memory::desc b = plain_desc(Dims{p.y.dims[1]}, bias);
  return {cpu_engine(), prop, direct, o.x, p.w_any, b, o.y, p.stride, p.dilate, p.pad, p.pad, attr};
}

// What a gradient asks to see: a forward convolution of the type that is computed in.
ForwardDesc hint_desc(const Problem& p, const Orders& o) {
  const auto direct = algorithm::convolution_direct;
  const auto type = p.w_hint.get_data_type();
  const Orders seen = p.mixed ? Orders{any_desc(p.x.dims, type), any_desc(p.y.dims, type)} : o;
  return {cpu_engine(), prop_kind::forward_training, direct, seen.x, p.w_hint, seen.y,
          p.stride,     p.dilate,                    p.pad,  p.pad};
}

// What runs after the convolution: an addend (in the output's own order), then relu.
struct Ends {
  bool add, relu;
};

dnnl::primitive_attr attributes(const Problem& p, const Ends& ends) {
  dnnl::primitive_attr attr = user_scratchpad();
  dnnl::post_ops ops;
  if (ends.add) ops.append_binary(algorithm::binary_add, p.y.own);
  if (ends.relu) ops.append_eltwise(algorithm::eltwise_relu, 0.f, 0.f);
  attr.set_post_ops(ops);
  return attr;
}

// The first choice of orders with a tuned implementation; make(orders) may throw dnnl::error.
template <class Desc, class Make>
std::optional<Desc> first_tuned(const Problem& p, const Make& make) {
  for (const Orders& orders : candidates(p)) {
    try {
      Desc desc = make(orders);
      if (!is_reference(desc.impl_info_str())) return desc;
    } catch (const dnnl::error&) {
      // No implementation for these orders.
    }
  }
  return std::nullopt;
}

std::unique_ptr<Kernel> build_forward(const Request& r, int threads) {
  const Problem p(r, r.inputs[0], r.inputs[1], r.outputs[0]);
  const bool bias = r.attrs.flag("bias");
  const Ends ends{r.attrs.flag("add"), r.attrs.flag("relu")};
  const auto attr = attributes(p, ends);
  const auto desc = first_tuned<ForwardDesc>(p, [&](const Orders& o) {
    const auto type = bias ? type_of(r.inputs[2].dtype) : memory::data_type::undef;
    return forward_desc(p, type, o, attr, prop_kind::forward_training);
  });
  if (!desc) return nullptr;
  auto kernel = std::make_unique<SequenceKernel>();
  const Slot x = kernel->read_as(kernel->input(0, p.x.own), desc->src_desc());
  const Slot w = kernel->read_weights(kernel->input(1, p.w_plain), desc->weights_desc());
  const Slot out = kernel->output(0, p.y.own);
  const Slot y = kernel->write_as(out, desc->dst_desc());
  SequenceKernel::Arguments args{{DNNL_ARG_SRC, x}, {DNNL_ARG_WEIGHTS, w}, {DNNL_ARG_DST, y}};
  if (bias) args.emplace_back(DNNL_ARG_BIAS, kernel->input(2, plain_desc(r.inputs[2])));
  if (ends.add) {
    args.emplace_back(DNNL_ARG_ATTR_MULTIPLE_POST_OP(0) | DNNL_ARG_SRC_1,
                      kernel->input(bias ? 3 : 2, p.y.own));
  }
  kernel->step(dnnl::convolution_forward(*desc), desc->scratchpad_desc(), args);
  kernel->store(y, out);
  kernel->finish(desc->impl_info_str(), threads, p.flops);
  return kernel;
}

std::unique_ptr<Kernel> build_data_grad(const Request& r, int threads) {
  const Problem p(r, r.outputs[0], r.inputs[1], r.inputs[0]);
  using Desc = dnnl::convolution_backward_data::primitive_desc;
  const auto desc = first_tuned<Desc>(p, [&](const Orders& o) {
    const auto hint = hint_desc(p, o);
    return Desc(cpu_engine(), algorithm::convolution_direct, o.x, p.w_any, o.y, p.stride, p.dilate,
                p.pad, p.pad, hint, user_scratchpad());
  });
  if (!desc) return nullptr;
  auto kernel = std::make_unique<SequenceKernel>();
  const Slot y = kernel->read_as(kernel->input(0, p.y.own), desc->diff_dst_desc());
  const Slot w = kernel->read_weights(kernel->input(1, p.w_plain), desc->weights_desc());
  const Slot out = kernel->output(0, p.x.own);
  const Slot x = kernel->write_as(out, desc->diff_src_desc());
  kernel->step(dnnl::convolution_backward_data(*desc), desc->scratchpad_desc(),
               {{DNNL_ARG_DIFF_DST, y}, {DNNL_ARG_WEIGHTS, w}, {DNNL_ARG_DIFF_SRC, x}});
  kernel->store(x, out);
  kernel->finish(desc->impl_info_str(), threads, p.flops);
  return kernel;
}

std::unique_ptr<Kernel> build_weight_grad(const Request& r, int threads) {
  const Problem p(r, r.inputs[1], r.outputs[0], r.inputs[0]);
  using Desc = dnnl::convolution_backward_weights::primitive_desc;
  const bool bias = r.attrs.flag("bias");
  const memory::desc b = plain_desc(Dims{p.y.dims[1]}, p.w_plain.get_data_type());
  const auto desc = first_tuned<Desc>(p, [&](const Orders& o) {
    const auto hint = hint_desc(p, o);
    const auto direct = algorithm::convolution_direct;
    return bias ? Desc(cpu_engine(), direct, o.x, p.w_any, b, o.y, p.stride, p.dilate, p.pad, p.pad,
                       hint, user_scratchpad())
                : Desc(cpu_engine(), direct, o.x, p.w_any, o.y, p.stride, p.dilate, p.pad, p.pad,
                       hint, user_scratchpad());
  });
  if (!desc) return nullptr;
  auto kernel = std::make_unique<SequenceKernel>();
  const Slot y = kernel->read_as(kernel->input(0, p.y.own), desc->diff_dst_desc());
  const Slot x = kernel->read_as(kernel->input(1, p.x.own), desc->src_desc());
  const Slot out = kernel->output(0, p.w_plain);
  const Slot w = kernel->write_as(out, desc->diff_weights_desc());
  SequenceKernel::Arguments args{
      {DNNL_ARG_DIFF_DST, y}, {DNNL_ARG_SRC, x}, {DNNL_ARG_DIFF_WEIGHTS, w}};
  if (bias) args.emplace_back(DNNL_ARG_DIFF_BIAS, kernel->output(1, b));
  kernel->step(dnnl::convolution_backward_weights(*desc), desc->scratchpad_desc(), args);
  kernel->store(w, out);
  kernel->finish(desc->impl_info_str(), threads, p.flops);
  return kernel;
}

std::unique_ptr<Kernel> build_reorder(const Request& r, bool block, int threads) {
  const int rank = (block ? r.inputs : r.outputs)[0].shape.ndim();
  const Tensor from(r.inputs[0], rank), to(r.outputs[0], rank);
  auto kernel = std::make_unique<SequenceKernel>();
  kernel->store(kernel->input(0, from.own), kernel->output(0, to.own));
  kernel->finish("reorder", threads, 40.0 * static_cast<double>(r.inputs[0].shape.size()));
  return kernel;
}

using Build = std::unique_ptr<Kernel> (*)(const Request&, int);

// `weights`: the position among inputs, then outputs, of the tensor that tells the plain rank.
bool served(const Request& r, const Desc& weights) {
  const int rank = weights.shape.ndim();
  if (!serves_all(r) || rank < 3 || rank > 5) return false;
  const auto good = [&](const Desc& d) {
    return d.shape.ndim() < rank || good_block(d, rank);
  };
  return std::all_of(r.inputs.begin(), r.inputs.end(), good) &&
         std::all_of(r.outputs.begin(), r.outputs.end(), good);
}

std::unique_ptr<Kernel> prepare(const Request& r, Build build, const Desc& weights) {
  if (!served(r, weights)) return nullptr;
  const double flops = 2.0 * static_cast<double>(r.inputs[0].shape.size()) *
                       static_cast<double>(weights.shape.size() / weights.shape[0]);
  const int threads = useful_threads(flops, r.threads);
  const ThreadScope scope(threads);
  try {
    return build(r, threads);
  } catch (const dnnl::error&) {
    return nullptr;
  }
}

std::unique_ptr<Kernel> prepare_reorder(const Request& r, bool block) {
  const Desc& blocked = (block ? r.outputs : r.inputs)[0];
  const int rank = blocked.shape.ndim() - 1;
  if (!serves_all(r) || rank < 3 || rank > 5 || !good_block(blocked, rank)) return nullptr;
  const int threads =
      useful_threads(40.0 * static_cast<double>(blocked.shape.size()), r.threads);
  const ThreadScope scope(threads);
  try {
    return build_reorder(r, block, threads);
  } catch (const dnnl::error&) {
    return nullptr;
  }
}

}  // namespace

void register_blocked(Registry& registry) {
  registry.add("blocked_conv", 10, "onednn",
               [](const Request& r) { return prepare(r, build_forward, r.inputs[1]); });
  registry.add("blocked_conv_data_grad", 10, "onednn",
               [](const Request& r) { return prepare(r, build_data_grad, r.inputs[1]); });
  registry.add("blocked_conv_weight_grad", 10, "onednn",
               [](const Request& r) { return prepare(r, build_weight_grad, r.outputs[0]); });
  for (const bool block : {true, false}) {
    registry.add(block ? "block" : "unblock", 10, "onednn",
                 [block](const Request& r) { return prepare_reorder(r, block); });
  }
}

}  // namespace mixflow::onednn
