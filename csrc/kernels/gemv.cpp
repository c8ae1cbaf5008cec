// Matrix products with a side of length 1 (a layer of one unit, and its gradient): oneDNN's general
// product reads the matrix at less than half of the speed that the memory has.
#include "kernels/gemv.h"

#include "kernels/dispatch.h"

namespace mixflow::kernels {
namespace {

constexpr int kRank = 11;             // before oneDNN's product
constexpr double kPerElement = 0.15;  // nanoseconds that an element of the matrix takes

class GemvKernel final : public Kernel {
 public:
  // `matrix`: which input it is. `by_rows`: whether it is stored with its inner side last.
  GemvKernel(const Request& r, int matrix, bool by_rows, int64_t size, int64_t inner)
      : matrix_(matrix), by_rows_(by_rows), size_(size), inner_(inner) {
    set_cost(*this, r, static_cast<double>(size * inner) * kPerElement);
  }

  void run(const Buffers& buffers, const RunContext&) const override {
    parallel_for(threads, size_, 16, [&](int64_t begin, int64_t end) {
      GemvTask task;
      task.size = end - begin;
      task.inner = inner_;
      task.pitch = by_rows_ ? inner_ : size_;
      task.matrix =
          static_cast<const float*>(buffers.in[matrix_]) + begin * (by_rows_ ? inner_ : 1);
      task.vector = static_cast<const float*>(buffers.in[1 - matrix_]);
      task.out = static_cast<float*>(buffers.out[0]) + begin;
      (by_rows_ ? MIXFLOW_PICK(gemv_rows) : MIXFLOW_PICK(gemv_columns))(task);
    });
  }

 private:
  int matrix_;
  bool by_rows_;
  int64_t size_, inner_;
};

std::unique_ptr<Kernel> prepare(const Request& r) {
  expect_counts(r, 2, 1);
  const Shape& y = r.outputs[0].shape;
  if (!all_of_dtype(r, DType::float32) || r.inputs[0].shape.ndim() != 2 ||
      r.inputs[1].shape.ndim() != 2 || (y[0] != 1 && y[1] != 1)) {
    return nullptr;
  }
  expect_plain(r);
  const bool first = y[1] == 1;  // the first input is the matrix
  const int number = first ? 0 : 1;
  const bool by_rows = first != r.attrs.flag(first ? "transpose_a" : "transpose_b");
  const int64_t inner = r.inputs[number].shape[by_rows ? 1 : 0];
  return std::make_unique<GemvKernel>(r, number, by_rows, first ? y[0] : y[1], inner);
}

}  // namespace

void register_gemv_kernels(Registry& registry) { registry.add("matmul", kRank, "gemv", prepare); }

}  // namespace mixflow::kernels
