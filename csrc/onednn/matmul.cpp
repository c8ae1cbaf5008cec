// Matrix products, plain or batched. Transposes are strides.
#include <algorithm>

#include "onednn/matmul.h"
#include "onednn/sequence.h"

namespace mixflow::onednn {
namespace {

int64_t leading(const Shape& shape) {
  int64_t total = 1;
  for (int i = 0; i < shape.ndim() - 2; ++i) total *= shape[i];
  return total;
}

memory::desc operand(int64_t batch, int64_t rows, int64_t cols, bool transposed,
                     memory::data_type type, bool flat) {
  const Dims matrix = transposed ? Dims{1, rows} : Dims{cols, 1};
  if (flat) return memory::desc({rows, cols}, type, matrix);
  return memory::desc({batch, rows, cols}, type, {rows * cols, matrix[0], matrix[1]});
}

}  // namespace

Product product_of(const Request& request) {
  const Shape& a = request.inputs[0].shape;
  const Shape& b = request.inputs[1].shape;
  const Shape& y = request.outputs[0].shape;
  Product p;
  p.transpose_a = request.attrs.flag("transpose_a");
  p.transpose_b = request.attrs.flag("transpose_b");
  p.batch_a = leading(a);
  p.batch_b = leading(b);
  p.batch = leading(y);
  p.m = y[y.ndim() - 2];
  p.n = y[y.ndim() - 1];
  p.k = a[a.ndim() - (p.transpose_a ? 2 : 1)];
  if (p.batch_b == 1 && !p.transpose_a) {
    // One matrix for all: the rows of the whole batch are one product.
    p.m *= p.batch;
    p.batch = p.batch_a = 1;
  }
  return p;
}

namespace {

std::unique_ptr<Kernel> build(const Request& request, const Product& p, int threads) {
  const auto type = computed_type(request);
  const bool flat = p.batch == 1;
  const auto a_of = [&](memory::data_type t) {
    return operand(p.batch_a, p.m, p.k, p.transpose_a, t, flat);
  };
  const auto b_of = [&](memory::data_type t) {
    return operand(p.batch_b, p.k, p.n, p.transpose_b, t, flat);
  };
  const auto a = a_of(type), b = b_of(type);
  const auto y = operand(p.batch, p.m, p.n, false, type_of(request.outputs[0].dtype), flat);
  const dnnl::matmul::primitive_desc desc(cpu_engine(), a, b, y, user_scratchpad());
  if (is_reference(desc.impl_info_str())) return nullptr;
  auto kernel = std::make_unique<SequenceKernel>();
  const auto slot_a = kernel->read_as(kernel->input(0, a_of(type_of(request.inputs[0].dtype))), a);
  const auto slot_b = kernel->read_as(kernel->input(1, b_of(type_of(request.inputs[1].dtype))), b);
  const auto slot_y = kernel->output(0, y);
  kernel->step(dnnl::matmul(desc), desc.scratchpad_desc(),
               {{DNNL_ARG_SRC, slot_a}, {DNNL_ARG_WEIGHTS, slot_b}, {DNNL_ARG_DST, slot_y}});
  kernel->finish(desc.impl_info_str(), threads, p.flops());
  return kernel;
}

std::unique_ptr<Kernel> prepare(const Request& request) {
  if (!serves_all(request)) return nullptr;
  const Product p = product_of(request);
  const int threads = useful_threads(p.flops(), request.threads);
  try {
    if (auto kernel = matmul_in_pieces(request, p, threads)) return kernel;
    const ThreadScope scope(threads);
    return build(request, p, threads);
  } catch (const dnnl::error&) {
    return nullptr;
  }
}

}  // namespace

void register_matmul(Registry& registry) { registry.add("matmul", 10, "onednn", prepare); }

}  // namespace mixflow::onednn
