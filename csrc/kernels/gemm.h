// The plain native matrix product: C (+)= A B on one thread, any strides of A and B.
#pragma once

#include <cstdint>

#include "kernels/isa.h"

namespace mixflow::kernels {

template <class T>
struct GemmTask {
  int64_t m = 0, n = 0, k = 0;
  const T* a = nullptr;  // element (i, p) at i * a_row + p * a_col
  int64_t a_row = 0, a_col = 0;
  const T* b = nullptr;  // element (p, j) at p * b_row + j * b_col
  int64_t b_row = 0, b_col = 0;
  T* c = nullptr;  // element (i, j) at i * c_row + j
  int64_t c_row = 0;
  bool accumulate = false;  // add to C instead of overwriting it
  T* workspace = nullptr;   // gemm_workspace elements, aligned to 64 bytes
};

// Blocks of A and B that are packed at a time. Multiples of every tile size.
constexpr int64_t kGemmRows = 168, kGemmCols = 512, kGemmDepth = 256;

// Elements of workspace for a product of at most this size.
inline int64_t gemm_workspace(int64_t m, int64_t n, int64_t k) {
  const auto round = [](int64_t size, int64_t unit) { return (size + unit - 1) / unit * unit; };
  const auto least = [](int64_t a, int64_t b) { return a < b ? a : b; };
  const int64_t depth = round(least(k, kGemmDepth), 16);
  return depth * (round(least(round(m, 84), kGemmRows), 16) + least(round(n, 64), kGemmCols));
}

#define MIXFLOW_DECLARE_GEMM             \
  void gemm_f32(const GemmTask<float>&); \
  void gemm_f64(const GemmTask<double>&);
namespace isa_baseline {
MIXFLOW_DECLARE_GEMM
}
namespace isa_avx2 {
MIXFLOW_DECLARE_GEMM
}
namespace isa_avx512 {
MIXFLOW_DECLARE_GEMM
}
#undef MIXFLOW_DECLARE_GEMM

inline void gemm(const GemmTask<float>& task) { MIXFLOW_PICK(gemm_f32)(task); }
inline void gemm(const GemmTask<double>& task) { MIXFLOW_PICK(gemm_f64)(task); }

}  // namespace mixflow::kernels
