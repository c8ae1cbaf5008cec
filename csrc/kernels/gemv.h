// Products of a matrix and a vector: bound by reading the matrix, each element of it once.
#pragma once

#include <cstdint>

#include "kernels/isa.h"

namespace mixflow::kernels {

// A part of y = M v on one thread. Does not block; thread-safe.
struct GemvTask {
  int64_t size = 0;   // elements of y to compute
  int64_t inner = 0;  // elements of v
  int64_t pitch = 0;  // floats from one row of M, as it is stored, to the next
  const float* matrix = nullptr;
  const float* vector = nullptr;
  float* out = nullptr;
};

// Columns that gemv_columns sums at a time: their sums stay in the second cache. Short pieces of rows
// cost more than sums in the nearest cache save: reading starts anew with each.
constexpr int64_t kGemvColumns = 32768;

#define MIXFLOW_DECLARE_GEMV            \
  /* M is stored as (size, inner) */    \
  void gemv_rows(const GemvTask& task); \
  /* M is stored as (inner, size) */    \
  void gemv_columns(const GemvTask& task);
namespace isa_baseline {
MIXFLOW_DECLARE_GEMV
}
namespace isa_avx2 {
MIXFLOW_DECLARE_GEMV
}
namespace isa_avx512 {
MIXFLOW_DECLARE_GEMV
}
#undef MIXFLOW_DECLARE_GEMV

}  // namespace mixflow::kernels
