// Matrix products without oneDNN: threads split the batch, else the longer side of the result.
#include "kernels/dispatch.h"
#include "kernels/gemm.h"

namespace mixflow::kernels {
namespace {

struct Product {
  int64_t batch, m, n, k;
  int64_t step_a, step_b;  // elements from one matrix of the batch to the next; 0 = shared
  bool transpose_a, transpose_b;
};

int64_t leading(const Shape& shape) {
  int64_t total = 1;
  for (int i = 0; i < shape.ndim() - 2; ++i) total *= shape[i];
  return total;
}

Product product_of(const Request& r) {
  const Shape& a = r.inputs[0].shape;
  const Shape& b = r.inputs[1].shape;
  const Shape& y = r.outputs[0].shape;
  Product p;
  p.transpose_a = r.attrs.flag("transpose_a");
  p.transpose_b = r.attrs.flag("transpose_b");
  p.batch = leading(y);
  p.m = y[y.ndim() - 2];
  p.n = y[y.ndim() - 1];
  p.k = a[a.ndim() - (p.transpose_a ? 2 : 1)];
  check(p.k == b[b.ndim() - (p.transpose_b ? 1 : 2)], "[matmul] expected equal inner sizes, got ",
        a.str(), " and ", b.str());
  p.step_a = a.ndim() > 2 ? p.m * p.k : 0;
  p.step_b = b.ndim() > 2 ? p.k * p.n : 0;
  if (p.step_b == 0 && !p.transpose_a) {
    p.m *= p.batch;  // one matrix for all: the rows of the whole batch are one product
    p.batch = 1;
  }
  return p;
}

template <class T>
class MatmulKernel final : public Kernel {
 public:
  MatmulKernel(const Request& r, const Product& p) : p_(p) {
    set_cost(*this, r, static_cast<double>(p.batch * p.m) * static_cast<double>(p.n * p.k) / 25);
    if (p.batch >= threads) {
      pieces_ = p.batch;
    } else if (p.m >= p.n) {
      rows_ = split(p.m);
      pieces_ = p.batch * ((p.m + rows_ - 1) / rows_);
    } else {
      cols_ = split(p.n);
      pieces_ = p.batch * ((p.n + cols_ - 1) / cols_);
    }
    slice_ = gemm_workspace(rows_ ? rows_ : p.m, cols_ ? cols_ : p.n, p.k);
    workspace_bytes = static_cast<size_t>(slice_ * threads) * sizeof(T);
  }

  void run(const Buffers& buffers, const RunContext&) const override {
    // One part per thread, so that the part's number names its slice of the workspace.
    const int64_t per_thread = (pieces_ + threads - 1) / threads;
    parallel_for(threads, threads, 1, [&](int64_t begin, int64_t end) {
      for (int64_t part = begin; part < end; ++part) {
        const int64_t last = std::min(pieces_, (part + 1) * per_thread);
        for (int64_t i = part * per_thread; i < last; ++i) piece(buffers, i, part);
      }
    });
  }

 private:
  // Equal parts for the threads, rounded up so that tiles stay whole.
  int64_t split(int64_t size) const { return ((size + threads - 1) / threads + 63) / 64 * 64; }

  void piece(const Buffers& buffers, int64_t index, int64_t part) const {
    const int64_t per_matrix = pieces_ / p_.batch;
    const int64_t matrix = index / per_matrix;
    const int64_t row = index % per_matrix * rows_;
    const int64_t col = index % per_matrix * cols_;
    GemmTask<T> task;
    task.m = rows_ ? std::min(rows_, p_.m - row) : p_.m;
    task.n = cols_ ? std::min(cols_, p_.n - col) : p_.n;
    task.k = p_.k;
    task.a_row = p_.transpose_a ? 1 : p_.k;
    task.a_col = p_.transpose_a ? p_.m : 1;
    task.b_row = p_.transpose_b ? 1 : p_.n;
    task.b_col = p_.transpose_b ? p_.k : 1;
    task.c_row = p_.n;
    task.a = static_cast<const T*>(buffers.in[0]) + matrix * p_.step_a + row * task.a_row;
    task.b = static_cast<const T*>(buffers.in[1]) + matrix * p_.step_b + col * task.b_col;
    task.c = static_cast<T*>(buffers.out[0]) + (matrix * p_.m + row) * p_.n + col;
    task.workspace = static_cast<T*>(buffers.workspace) + part * slice_;
    gemm(task);
  }

  Product p_;
  int64_t rows_ = 0, cols_ = 0;  // size of a piece; 0 = whole
  int64_t pieces_ = 1;
  int64_t slice_ = 0;  // workspace elements of one thread
};

std::unique_ptr<Kernel> prepare(const Request& r) {
  expect_counts(r, 2, 1);
  expect_plain(r);
  const Product p = product_of(r);
  if (all_of_dtype(r, DType::float32)) return std::make_unique<MatmulKernel<float>>(r, p);
  if (all_of_dtype(r, DType::float64)) return std::make_unique<MatmulKernel<double>>(r, p);
  return nullptr;
}

}  // namespace

void register_matmul_kernels(Registry& registry) { registry.add("matmul", 0, "gemm", prepare); }

}  // namespace mixflow::kernels
