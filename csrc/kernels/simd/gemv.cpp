// Sums of products over the rows, or over the columns, of a matrix.
#include "kernels/gemv.h"

#include "kernels/simd/nn_vector.h"

namespace mixflow::kernels::MIXFLOW_ISA {
namespace {

constexpr int64_t kWidth = kLanes<float>;
// Rows that are read at a time: as many streams from memory, and as many independent sums.
constexpr int kRows = 8;

template <int rows>
void dot(const float* matrix, int64_t pitch, const float* v, float* out, int64_t count) {
  vec<float> sums[rows] = {};
  int64_t i = 0;
  for (; i + kWidth <= count; i += kWidth) {
    const vec<float> factor = load(v + i);
#pragma GCC unroll 8
    for (int r = 0; r < rows; ++r) sums[r] += load(matrix + r * pitch + i) * factor;
  }
  for (int r = 0; r < rows; ++r) {
    float total = sum_lanes<float>(sums[r]);
    for (int64_t j = i; j < count; ++j) total += matrix[r * pitch + j] * v[j];
    out[r] = total;
  }
}

// out += the sum of rows of the matrix times elements of v
template <int rows>
void add_rows(const float* matrix, int64_t pitch, const float* v, float* out, int64_t count) {
  int64_t j = 0;
  for (; j + kWidth <= count; j += kWidth) {
    vec<float> sum = load(out + j);
#pragma GCC unroll 8
    for (int r = 0; r < rows; ++r) sum += load(matrix + r * pitch + j) * v[r];
    put(out + j, sum);
  }
  for (; j < count; ++j) {
    for (int r = 0; r < rows; ++r) out[j] += matrix[r * pitch + j] * v[r];
  }
}

}  // namespace

void gemv_rows(const GemvTask& t) {
  int64_t i = 0;
  for (; i + kRows <= t.size; i += kRows) {
    dot<kRows>(t.matrix + i * t.pitch, t.pitch, t.vector, t.out + i, t.inner);
  }
  for (; i < t.size; ++i) dot<1>(t.matrix + i * t.pitch, t.pitch, t.vector, t.out + i, t.inner);
}

void gemv_columns(const GemvTask& t) {
  for (int64_t first = 0; first < t.size; first += kGemvColumns) {
    const int64_t count = t.size - first < kGemvColumns ? t.size - first : kGemvColumns;
    const float* matrix = t.matrix + first;
    float* out = t.out + first;
    for (int64_t j = 0; j < count; ++j) out[j] = 0;
    int64_t p = 0;
    for (; p + kRows <= t.inner; p += kRows) {
      add_rows<kRows>(matrix + p * t.pitch, t.pitch, t.vector + p, out, count);
    }
    for (; p < t.inner; ++p) add_rows<1>(matrix + p * t.pitch, t.pitch, t.vector + p, out, count);
  }
}

}  // namespace mixflow::kernels::MIXFLOW_ISA
