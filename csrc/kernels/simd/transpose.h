// Moves between rows (one per channel) and vectors over channels. Only for files under simd/.
#pragma once

#include <cstring>
#include <utility>
#if defined(__AVX512F__)
#include <immintrin.h>
#endif

#include "kernels/simd/nn_vector.h"

namespace mixflow::kernels::MIXFLOW_ISA {

using Lanes = vec<float>;
constexpr int64_t kWide = kLanes<float>;

// The first `count` elements, zeros behind them; touches no memory beyond them.
inline Lanes load_some(const float* from, int64_t count) {
#if defined(__AVX512F__)
  return (Lanes)_mm512_maskz_loadu_ps(static_cast<__mmask16>((1u << count) - 1), from);
#else
  Lanes value{};
  for (int64_t i = 0; i < count; ++i) value[i] = from[i];
  return value;
#endif
}

inline void put_some(float* to, Lanes value, int64_t count) {
#if defined(__AVX512F__)
  _mm512_mask_storeu_ps(to, static_cast<__mmask16>((1u << count) - 1), (__m512)value);
#else
  for (int64_t i = 0; i < count; ++i) to[i] = value[i];
#endif
}

typedef int LaneIndex __attribute__((vector_size(kVectorBytes)));

template <int... i>
inline Lanes zip_low(Lanes a, Lanes b, std::integer_sequence<int, i...>) {
  const LaneIndex index = {(i % 2 * static_cast<int>(kWide) + i / 2)...};
  return __builtin_shuffle(a, b, index);
}
template <int... i>
inline Lanes zip_high(Lanes a, Lanes b, std::integer_sequence<int, i...>) {
  constexpr int half = static_cast<int>(kWide) / 2;
  const LaneIndex index = {(i % 2 * static_cast<int>(kWide) + half + i / 2)...};
  return __builtin_shuffle(a, b, index);
}

// Transposes a square in registers: zipping the halves log2(lanes) times.
inline void transpose(Lanes* v) {
  constexpr auto every = std::make_integer_sequence<int, static_cast<int>(kWide)>{};
#pragma GCC unroll 4
  for (int64_t step = 1; step < kWide; step *= 2) {
    Lanes next[kWide];
#pragma GCC unroll 8
    for (int64_t i = 0; i < kWide / 2; ++i) {
      next[2 * i] = zip_low(v[i], v[i + kWide / 2], every);
      next[2 * i + 1] = zip_high(v[i], v[i + kWide / 2], every);
    }
#pragma GCC unroll 16
    for (int64_t i = 0; i < kWide; ++i) v[i] = next[i];
  }
}

// to[col][lane] = from[lane * step + col]; lanes from `rows` on are zero.
inline void rows_to_lanes(const float* from, int64_t step, int64_t rows, int64_t cols, float* to) {
  for (int64_t col = 0; col < cols; col += kWide) {
    const int64_t count = cols - col < kWide ? cols - col : kWide;
    Lanes v[kWide];
    if (count == kWide && rows == kWide) {
#pragma GCC unroll 16
      for (int64_t r = 0; r < kWide; ++r) v[r] = load(from + r * step + col);
    } else {
      for (int64_t r = 0; r < kWide; ++r) {
        v[r] = r < rows ? load_some(from + r * step + col, count) : Lanes{};
      }
    }
    transpose(v);
    if (count == kWide) {
#pragma GCC unroll 16
      for (int64_t c = 0; c < kWide; ++c) put(to + (col + c) * kWide, v[c]);
    } else {
      for (int64_t c = 0; c < count; ++c) put(to + (col + c) * kWide, v[c]);
    }
  }
}

// The way back: to[lane * step + col] = from[col][lane] for lanes below `rows`.
inline void lanes_to_rows(const float* from, int64_t cols, float* to, int64_t step, int64_t rows) {
  for (int64_t col = 0; col < cols; col += kWide) {
    const int64_t count = cols - col < kWide ? cols - col : kWide;
    Lanes v[kWide];
#pragma GCC unroll 16
    for (int64_t c = 0; c < kWide; ++c) {
      v[c] = c < count ? load(from + (col + c) * kWide) : Lanes{};
    }
    transpose(v);
    if (count == kWide && rows == kWide) {
#pragma GCC unroll 16
      for (int64_t r = 0; r < kWide; ++r) put(to + r * step + col, v[r]);
    } else {
      for (int64_t r = 0; r < rows; ++r) put_some(to + r * step + col, v[r], count);
    }
  }
}

}  // namespace mixflow::kernels::MIXFLOW_ISA
