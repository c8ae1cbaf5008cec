#include "onednn/sequence.h"

namespace mixflow::onednn {
namespace {

std::unique_ptr<Kernel> build(const Request& request, dnnl::algorithm algorithm, int threads,
                              double flops) {
  const auto data = plain_desc(request.inputs[0]);
  const int64_t axis = request.attrs.integer("axis");
  const int ndim = request.inputs[0].shape.ndim();
  const dnnl::softmax_forward::primitive_desc desc(
      cpu_engine(), dnnl::prop_kind::forward_inference, algorithm, data, data,
      static_cast<int>(axis < 0 ? axis + ndim : axis), user_scratchpad());
  if (is_reference(desc.impl_info_str())) return nullptr;
  auto kernel = std::make_unique<SequenceKernel>();
  const auto x = kernel->input(0, data);
  const auto y = kernel->output(0, data);
  kernel->step(dnnl::softmax_forward(desc), desc.scratchpad_desc(),
               {{DNNL_ARG_SRC, x}, {DNNL_ARG_DST, y}});
  kernel->finish(desc.impl_info_str(), threads, flops);
  kernel->inplace = {{0, 0}};
  return kernel;
}

std::unique_ptr<Kernel> prepare(const Request& request, dnnl::algorithm algorithm) {
  if (!serves_all(request) || request.inputs[0].shape.ndim() < 1) return nullptr;
  // Our own lines are 1.4 times as fast in float32 (100x10 to 4096x4096, AVX-512).
  if (request.inputs[0].dtype == DType::float32) return nullptr;
  // One exponential costs as much as 80 operations of a matrix product.
  const double flops = 80.0 * static_cast<double>(request.inputs[0].shape.size());
  const int threads = useful_threads(flops, request.threads);
  const ThreadScope scope(threads);
  try {
    return build(request, algorithm, threads, flops);
  } catch (const dnnl::error&) {
    return nullptr;
  }
}

}  // namespace

void register_softmax(Registry& registry) {
  registry.add("softmax", 10, "onednn", [](const Request& request) {
    return prepare(request, dnnl::algorithm::softmax_accurate);
  });
  registry.add("log_softmax", 10, "onednn", [](const Request& request) {
    return prepare(request, dnnl::algorithm::softmax_log);
  });
}

}  // namespace mixflow::onednn
