// The products of Winograd's points. Operands come from the transforms in the order in which a tile
// of C, kept in registers, reads them, so nothing is packed here.
#include "kernels/simd/transpose.h"
#include "kernels/winograd.h"

namespace mixflow::kernels::MIXFLOW_ISA {
namespace {

// Rows of a tile of the weight gradient: a divisor of the lanes, and enough sums in flight to hide
// the latency of a multiplication.
#if defined(__AVX512F__)
constexpr int kGradRows = 8;
#else
constexpr int kGradRows = 4;
#endif

template <int rows>
inline void finish(const vec<float>* left, const vec<float>* right, float* c, int64_t c_step,
                   bool accumulate) {
#pragma GCC unroll 14
  for (int r = 0; r < rows; ++r) {
    float* first = c + r * kWide;
    float* second = first + c_step;
    put(first, accumulate ? left[r] + load(first) : left[r]);
    put(second, accumulate ? right[r] + load(second) : right[r]);
  }
}

// kTileRows tiles x two blocks of filters; b holds both blocks of a channel side by side.
inline void forward_tile(const float* a, int64_t a_step, const float* b, int64_t depth, float* c,
                         int64_t c_step, bool accumulate) {
  vec<float> left[kTileRows], right[kTileRows];
#pragma GCC unroll 14
  for (int r = 0; r < kTileRows; ++r) left[r] = right[r] = vec<float>{};
  for (int64_t first = 0; first < depth; first += kWide) {
    const int64_t lanes = depth - first < kWide ? depth - first : kWide;
#pragma GCC unroll 2
    for (int64_t lane = 0; lane < lanes; ++lane) {
      const vec<float> b0 = load(b), b1 = load(b + kWide);
#pragma GCC unroll 14
      for (int r = 0; r < kTileRows; ++r) {
        left[r] += a[r * kWide + lane] * b0;
        right[r] += a[r * kWide + lane] * b1;
      }
      b += 2 * kWide;
    }
    a += a_step;
  }
  finish<kTileRows>(left, right, c, c_step, accumulate);
}

// kGradRows channels x two blocks of filters, summed over tiles.
inline void grad_tile(const float* a, const float* b, int64_t b_step, int64_t depth, float* c,
                      int64_t c_step, bool accumulate) {
  vec<float> left[kGradRows], right[kGradRows];
#pragma GCC unroll 8
  for (int r = 0; r < kGradRows; ++r) left[r] = right[r] = vec<float>{};
#pragma GCC unroll 2
  for (int64_t tile = 0; tile < depth; ++tile) {
    const vec<float> b0 = load(b), b1 = load(b + b_step);
#pragma GCC unroll 8
    for (int r = 0; r < kGradRows; ++r) {
      left[r] += a[r] * b0;
      right[r] += a[r] * b1;
    }
    a += kWide;
    b += kWide;
  }
  finish<kGradRows>(left, right, c, c_step, accumulate);
}

}  // namespace

WinogradIsa winograd_isa() { return {kWide, kTileRows}; }

void winograd_product(const WinogradProduct& p) {
  const int64_t panel_size = (p.depth + kWide - 1) / kWide * kWide * 2 * kWide;
  for (int64_t panel = 0; panel < p.panels; ++panel) {
    const float* b = p.b + panel * panel_size;
    float* c = p.c + 2 * panel * p.c_step;
    for (int64_t row = 0; row < p.rows; row += kTileRows) {
      forward_tile(p.a + row * kWide, p.a_step, b, p.depth, c + row * kWide, p.c_step,
                   p.accumulate);
    }
  }
}

void winograd_product_grad(const WinogradProduct& p) {
  for (int64_t panel = 0; panel < p.panels; ++panel) {
    const float* b = p.b + 2 * panel * p.b_step;
    float* c = p.c + 2 * panel * p.c_step;
    for (int64_t row = 0; row < p.rows; row += kGradRows) {
      const float* a = p.a + row / kWide * p.a_step + row % kWide;
      grad_tile(a, b, p.b_step, p.depth, c + row * kWide, p.c_step, p.accumulate);
    }
  }
}

}  // namespace mixflow::kernels::MIXFLOW_ISA
