// Pooling: max and average. The gradient of max recomputes which element won (forward_training)
// inside its own workspace, so that nothing has to be kept from the forward pass.
#include "onednn/sequence.h"

namespace mixflow::onednn {
namespace {

using dnnl::algorithm;
using dnnl::prop_kind;

struct Problem {
  memory::desc x, y;
  Dims kernel, stride, dilate, before, after;
  algorithm kind;
};

// Elements beyond the padding that both sides share count only for our plain kernel.
bool padding_is_even(const Request& request) {
  return request.attrs.integers("pad") == request.attrs.integers("pad_after");
}

// False when oneDNN does not have the mode.
bool find_kind(const Request& request, algorithm& kind) {
  const std::string& mode = request.attrs.text("mode");
  if (mode == "max") {
    kind = algorithm::pooling_max;
    return true;
  }
  const bool include = request.attrs.flag("count_include_pad");
  kind = include ? algorithm::pooling_avg_include_padding : algorithm::pooling_avg_exclude_padding;
  return mode == "avg" && (!include || padding_is_even(request));
}

// Our plain kernel has a pass of its own for 2x2 windows side by side: 2 to 4 times as fast.
bool plain_kernel_is_faster(const Request& request) {
  const std::vector<int64_t> two{2, 2}, zero{0, 0};
  const auto is = [&](const char* key, const std::vector<int64_t>& value) {
    return request.attrs.integers(key) == value;
  };
  return request.inputs[0].dtype == DType::float32 && request.attrs.text("mode") == "max" &&
         is("kernel", two) && is("stride", two) && is("pad", zero) && is("pad_after", zero);
}

// Every window must touch the input: oneDNN's right padding follows from the output's size.
Problem problem_of(const Request& request, const Desc& x, const Desc& y, algorithm kind) {
  Problem p{plain_desc(x), plain_desc(y), {}, {}, {}, {}, {}, kind};
  p.kernel = request.attrs.integers("kernel");
  p.stride = request.attrs.integers("stride");
  p.before = request.attrs.integers("pad");
  for (size_t i = 0; i < p.kernel.size(); ++i) {
    p.dilate.push_back(0);
    p.after.push_back((y.shape[static_cast<int>(i) + 2] - 1) * p.stride[i] + p.kernel[i] -
                      x.shape[static_cast<int>(i) + 2] - p.before[i]);
  }
  return p;
}

dnnl::pooling_forward::primitive_desc forward_desc(const Problem& p, prop_kind prop) {
  return {cpu_engine(), prop,    p.kind,           p.x, p.y, p.stride, p.kernel, p.dilate,
          p.before,     p.after, user_scratchpad()};
}

std::unique_ptr<Kernel> build_forward(const Problem& p, int threads, double flops) {
  const auto desc = forward_desc(p, prop_kind::forward_inference);
  if (is_reference(desc.impl_info_str())) return nullptr;
  auto kernel = std::make_unique<SequenceKernel>();
  const auto x = kernel->input(0, p.x);
  const auto y = kernel->output(0, p.y);
  kernel->step(dnnl::pooling_forward(desc), desc.scratchpad_desc(),
               {{DNNL_ARG_SRC, x}, {DNNL_ARG_DST, y}});
  kernel->finish(desc.impl_info_str(), threads, flops);
  return kernel;
}

std::unique_ptr<Kernel> build_grad(const Problem& p, int threads, double flops) {
  const auto forward = forward_desc(p, prop_kind::forward_training);
  const dnnl::pooling_backward::primitive_desc desc(cpu_engine(), p.kind, p.x, p.y, p.stride,
                                                    p.kernel, p.dilate, p.before, p.after, forward,
                                                    user_scratchpad());
  if (is_reference(desc.impl_info_str())) return nullptr;
  auto kernel = std::make_unique<SequenceKernel>();
  SequenceKernel::Arguments arguments{{DNNL_ARG_DIFF_DST, kernel->input(0, p.y)},
                                      {DNNL_ARG_DIFF_SRC, kernel->output(0, p.x)}};
  if (p.kind == algorithm::pooling_max) {
    const auto x = kernel->input(1, p.x);
    const auto y = kernel->scratch(p.y);
    const auto winners = kernel->scratch(forward.workspace_desc());
    kernel->step(dnnl::pooling_forward(forward), forward.scratchpad_desc(),
                 {{DNNL_ARG_SRC, x}, {DNNL_ARG_DST, y}, {DNNL_ARG_WORKSPACE, winners}});
    arguments.emplace_back(DNNL_ARG_WORKSPACE, winners);
  }
  kernel->step(dnnl::pooling_backward(desc), desc.scratchpad_desc(), arguments);
  kernel->finish(desc.impl_info_str(), threads, flops);
  return kernel;
}

std::unique_ptr<Kernel> prepare(const Request& request, bool grad) {
  const Desc& x = grad ? request.inputs[1] : request.inputs[0];
  const Desc& y = grad ? request.inputs[0] : request.outputs[0];
  algorithm kind;
  if (!serves_all(request) || x.shape.ndim() < 3 || x.shape.ndim() > 5) return nullptr;
  if (!find_kind(request, kind) || plain_kernel_is_faster(request)) return nullptr;
  const Problem p = problem_of(request, x, y, kind);
  // Memory traffic counts, not arithmetic: one element costs as much as 40 operations of a product.
  const double flops = 40.0 * static_cast<double>(x.shape.size() + y.shape.size());
  const int threads = useful_threads(flops, request.threads);
  const ThreadScope scope(threads);
  try {
    return grad ? build_grad(p, threads, flops) : build_forward(p, threads, flops);
  } catch (const dnnl::error&) {
    return nullptr;
  }
}

}  // namespace

void register_pool(Registry& registry) {
  registry.add("pool", 10, "onednn", [](const Request& r) { return prepare(r, false); });
  registry.add("pool_grad", 10, "onednn", [](const Request& r) { return prepare(r, true); });
}

}  // namespace mixflow::onednn
