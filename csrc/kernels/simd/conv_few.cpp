// Convolution of few channels: tiles of filters x vectors of places (or x taps) in registers.
#include "kernels/conv_few.h"

#include "kernels/simd/transpose.h"

namespace mixflow::kernels::MIXFLOW_ISA {
namespace {

// Vectors of places of a tile: with the filters they fill the registers.
#if defined(__AVX512F__)
constexpr int kVectors = 6;
#else
constexpr int kVectors = 2;
#endif

template <int filters, int vectors>
void forward_tile(const FewForward& t, int64_t place) {
  const FewImage& m = t.image;
  Lanes sums[filters][vectors];
#pragma GCC unroll 4
  for (int f = 0; f < filters; ++f) {
    const Lanes start = t.bias ? Lanes{} + t.bias[f] : Lanes{};
#pragma GCC unroll 6
    for (int v = 0; v < vectors; ++v) sums[f][v] = start;
  }
  const float* w = t.weights;
  for (int64_t c = 0; c < m.channels; ++c) {
    for (int64_t row = 0; row < m.kernel_rows; ++row) {
      const float* x = m.image + c * m.plane + row * m.pitch + place;
      for (int64_t col = 0; col < m.kernel_cols; ++col, ++w) {
        Lanes at[vectors];
#pragma GCC unroll 6
        for (int v = 0; v < vectors; ++v) at[v] = load(x + col + v * kWide);
#pragma GCC unroll 4
        for (int f = 0; f < filters; ++f) {
          const float weight = w[f * t.weight_step];
#pragma GCC unroll 6
          for (int v = 0; v < vectors; ++v) sums[f][v] += weight * at[v];
        }
      }
    }
  }
#pragma GCC unroll 4
  for (int f = 0; f < filters; ++f) {
#pragma GCC unroll 6
    for (int v = 0; v < vectors; ++v) put(t.strip + f * m.places + place + v * kWide, sums[f][v]);
  }
}

template <int filters>
void forward(const FewForward& t) {
  int64_t place = 0;
  for (; place + kVectors * kWide <= t.image.places; place += kVectors * kWide) {
    forward_tile<filters, kVectors>(t, place);
  }
  for (; place < t.image.places; place += kWide) forward_tile<filters, 1>(t, place);
}

// `taps` neighbouring taps of one row of a channel.
template <int filters, int taps>
void grad_tile(const FewImage& m, const float* strip, const float* x, float* sums, int64_t step) {
  Lanes total[filters][taps];
#pragma GCC unroll 4
  for (int f = 0; f < filters; ++f) {
#pragma GCC unroll 5
    for (int k = 0; k < taps; ++k) total[f][k] = load(sums + f * step + k * kFewLanes);
  }
  for (int64_t place = 0; place < m.places; place += kWide) {
    Lanes dy[filters];
#pragma GCC unroll 4
    for (int f = 0; f < filters; ++f) dy[f] = load(strip + f * m.places + place);
#pragma GCC unroll 5
    for (int k = 0; k < taps; ++k) {
      const Lanes at = load(x + place + k);
#pragma GCC unroll 4
      for (int f = 0; f < filters; ++f) total[f][k] += dy[f] * at;
    }
  }
#pragma GCC unroll 4
  for (int f = 0; f < filters; ++f) {
#pragma GCC unroll 5
    for (int k = 0; k < taps; ++k) put(sums + f * step + k * kFewLanes, total[f][k]);
  }
}

template <int filters>
void weight_grad(const FewWeightGrad& t) {
  const FewImage& m = t.image;
  const int64_t step = m.channels * m.kernel_rows * m.kernel_cols * kFewLanes;
  float* sums = t.sums;
  for (int64_t c = 0; c < m.channels; ++c) {
    for (int64_t row = 0; row < m.kernel_rows; ++row) {
      const float* x = m.image + c * m.plane + row * m.pitch;
      int64_t col = 0;
      for (; col + kFewColumns <= m.kernel_cols; col += kFewColumns) {
        grad_tile<filters, kFewColumns>(m, t.strip, x + col, sums, step);
        sums += kFewColumns * kFewLanes;
      }
      if (col + 3 <= m.kernel_cols) {
        grad_tile<filters, 3>(m, t.strip, x + col, sums, step);
        sums += 3 * kFewLanes;
        col += 3;
      }
      for (; col < m.kernel_cols; ++col, sums += kFewLanes) {
        grad_tile<filters, 1>(m, t.strip, x + col, sums, step);
      }
    }
  }
}

}  // namespace

// Rows are short: the calls of memcpy would cost more than the copies.
void few_rows(const FewRows& t) {
  for (int64_t row = 0; row < t.rows; ++row) {
    const float* from = t.from + row * t.from_step;
    float* to = t.to + row * t.to_step;
    int64_t col = 0;
    for (; col + kWide <= t.cols; col += kWide) put(to + col, load(from + col));
    if (col < t.cols) put_some(to + col, load_some(from + col, t.cols - col), t.cols - col);
  }
}

void few_forward(const FewForward& t) {
  switch (t.filters) {
    case 1:
      return forward<1>(t);
    case 2:
      return forward<2>(t);
    case 3:
      return forward<3>(t);
    default:
      return forward<4>(t);
  }
}

void few_weight_grad(const FewWeightGrad& t) {
  switch (t.filters) {
    case 1:
      return weight_grad<1>(t);
    case 2:
      return weight_grad<2>(t);
    case 3:
      return weight_grad<3>(t);
    default:
      return weight_grad<4>(t);
  }
}

}  // namespace mixflow::kernels::MIXFLOW_ISA
