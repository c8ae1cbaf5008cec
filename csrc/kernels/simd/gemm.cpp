// Matrix product after Goto and van de Geijn (2008): A and B are packed block by block into the
// order in which a tile of C, kept in registers, reads them.
#include "kernels/gemm.h"

#include "kernels/simd/nn_vector.h"

namespace mixflow::kernels::MIXFLOW_ISA {
namespace {

template <class T>
constexpr int64_t kTileCols = 2 * kLanes<T>;

inline int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }

// Panels of kTileRows rows; within a panel, column after column. Missing rows are zero.
template <class T>
void pack_a(const GemmTask<T>& t, int64_t row, int64_t rows, int64_t col, int64_t depth, T* to) {
  for (int64_t i = 0; i < rows; i += kTileRows) {
    const int64_t count = least(kTileRows, rows - i);
    const T* from = t.a + (row + i) * t.a_row + col * t.a_col;
    if (count < kTileRows) {
      for (int64_t p = 0; p < depth * kTileRows; ++p) to[p] = 0;
    }
    if (t.a_row == 1) {
      for (int64_t p = 0; p < depth; ++p) {
        for (int64_t r = 0; r < count; ++r) to[p * kTileRows + r] = from[p * t.a_col + r];
      }
    } else {
      for (int64_t r = 0; r < count; ++r) {
        for (int64_t p = 0; p < depth; ++p) to[p * kTileRows + r] = from[r * t.a_row + p * t.a_col];
      }
    }
    to += depth * kTileRows;
  }
}

// Panels of kTileCols columns; within a panel, row after row. Missing columns are zero.
template <class T>
void pack_b(const GemmTask<T>& t, int64_t row, int64_t depth, int64_t col, int64_t cols, T* to) {
  constexpr int64_t width = kTileCols<T>;
  for (int64_t j = 0; j < cols; j += width) {
    const int64_t count = least(width, cols - j);
    const T* from = t.b + row * t.b_row + (col + j) * t.b_col;
    if (count < width) {
      for (int64_t p = 0; p < depth * width; ++p) to[p] = 0;
    }
    if (t.b_col == 1 && count == width) {
      for (int64_t p = 0; p < depth; ++p) {
        put(to + p * width, load(from + p * t.b_row));
        put(to + p * width + kLanes<T>, load(from + p * t.b_row + kLanes<T>));
      }
    } else if (t.b_col == 1) {
      for (int64_t p = 0; p < depth; ++p) {
        for (int64_t c = 0; c < count; ++c) to[p * width + c] = from[p * t.b_row + c];
      }
    } else {
      for (int64_t p = 0; p < depth; ++p) {
        for (int64_t c = 0; c < count; ++c) to[p * width + c] = from[p * t.b_row + c * t.b_col];
      }
    }
    to += depth * width;
  }
}

// One tile of C: kTileRows x two vectors, summed over the packed depth.
template <class T>
inline void tile(int64_t depth, const T* a, const T* b, T* c, int64_t c_row, bool accumulate) {
  vec<T> left[kTileRows], right[kTileRows];
#pragma GCC unroll 14
  for (int r = 0; r < kTileRows; ++r) left[r] = right[r] = vec<T>{};
  for (int64_t p = 0; p < depth; ++p) {
    const vec<T> b0 = load(b), b1 = load(b + kLanes<T>);
#pragma GCC unroll 14
    for (int r = 0; r < kTileRows; ++r) {
      left[r] += a[r] * b0;
      right[r] += a[r] * b1;
    }
    a += kTileRows;
    b += kTileCols<T>;
  }
#pragma GCC unroll 14
  for (int r = 0; r < kTileRows; ++r) {
    T* row = c + r * c_row;
    if (accumulate) {
      left[r] += load(row);
      right[r] += load(row + kLanes<T>);
    }
    put(row, left[r]);
    put(row + kLanes<T>, right[r]);
  }
}

// A tile at the edge of C goes through a full tile of its own.
template <class T>
void edge_tile(int64_t depth, const T* a, const T* b, T* c, int64_t c_row, bool accumulate,
               int64_t rows, int64_t cols) {
  constexpr int64_t width = kTileCols<T>;
  T full[kTileRows * width];
  tile(depth, a, b, full, width, false);
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t j = 0; j < cols; ++j) {
      const T value = full[r * width + j];
      c[r * c_row + j] = accumulate ? c[r * c_row + j] + value : value;
    }
  }
}

template <class T>
void block(const T* a, const T* b, T* c, int64_t c_row, int64_t rows, int64_t cols, int64_t depth,
           bool accumulate) {
  constexpr int64_t width = kTileCols<T>;
  for (int64_t j = 0; j < cols; j += width) {
    const int64_t some_cols = least(width, cols - j);
    for (int64_t i = 0; i < rows; i += kTileRows) {
      const int64_t some_rows = least(kTileRows, rows - i);
      T* corner = c + i * c_row + j;
      if (some_rows == kTileRows && some_cols == width) {
        tile(depth, a + i * depth, b + j * depth, corner, c_row, accumulate);
      } else {
        edge_tile(depth, a + i * depth, b + j * depth, corner, c_row, accumulate, some_rows,
                  some_cols);
      }
    }
  }
}

template <class T>
void clear(const GemmTask<T>& t) {
  if (t.accumulate) return;
  for (int64_t i = 0; i < t.m; ++i) {
    for (int64_t j = 0; j < t.n; ++j) t.c[i * t.c_row + j] = 0;
  }
}

template <class T>
void product(const GemmTask<T>& t) {
  if (t.k == 0) return clear(t);
  constexpr int64_t width = kTileCols<T>;
  for (int64_t j = 0; j < t.n; j += kGemmCols) {
    const int64_t cols = least(kGemmCols, t.n - j);
    for (int64_t p = 0; p < t.k; p += kGemmDepth) {
      const int64_t depth = least(kGemmDepth, t.k - p);
      T* packed_b = t.workspace;
      T* packed_a = packed_b + (cols + width - 1) / width * width * depth;
      pack_b(t, p, depth, j, cols, packed_b);
      for (int64_t i = 0; i < t.m; i += kGemmRows) {
        const int64_t rows = least(kGemmRows, t.m - i);
        pack_a(t, i, rows, p, depth, packed_a);
        block(packed_a, packed_b, t.c + i * t.c_row + j, t.c_row, rows, cols, depth,
              t.accumulate || p > 0);
      }
    }
  }
}

}  // namespace

void gemm_f32(const GemmTask<float>& task) { product(task); }
void gemm_f64(const GemmTask<double>& task) { product(task); }

}  // namespace mixflow::kernels::MIXFLOW_ISA
