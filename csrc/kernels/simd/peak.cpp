// Loops that do nothing but keep the arithmetic units, or the memory, busy.
#include "kernels/peak_loops.h"
#include "kernels/simd/nn_vector.h"

namespace mixflow::kernels::MIXFLOW_ISA {

// Independent sums: more than latency times units, few enough for the registers.
constexpr int kChains = 12;

float multiply_adds(int64_t rounds, float factor, float term) {
  vec<float> sums[kChains], x = {}, y = {};
  for (int64_t lane = 0; lane < kLanes<float>; ++lane) {
    x[lane] = factor;
    y[lane] = term;
  }
  for (int i = 0; i < kChains; ++i) sums[i] = y * static_cast<float>(i);
  for (int64_t k = 0; k < rounds; ++k) {
#pragma GCC unroll 12
    for (int i = 0; i < kChains; ++i) sums[i] = sums[i] * x + y;
  }
  float total = 0;
  for (const auto& sum : sums) total += sum_lanes<float>(sum);
  return total;
}

int64_t flops_of_round() { return 2 * kChains * kLanes<float>; }

void triad(float* a, const float* b, const float* c, float s, int64_t count) {
#pragma GCC ivdep
  for (int64_t i = 0; i < count; ++i) a[i] = b[i] + s * c[i];
}

}  // namespace mixflow::kernels::MIXFLOW_ISA
