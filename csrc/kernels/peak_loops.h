// The loops of simd/peak.cpp.
#pragma once

#include <cstdint>

#include "kernels/isa.h"

namespace mixflow::kernels {

#define MIXFLOW_DECLARE_PEAK                                     \
  float multiply_adds(int64_t rounds, float factor, float term); \
  int64_t flops_of_round();                                      \
  void triad(float* a, const float* b, const float* c, float s, int64_t count);
namespace isa_baseline {
MIXFLOW_DECLARE_PEAK
}
namespace isa_avx2 {
MIXFLOW_DECLARE_PEAK
}
namespace isa_avx512 {
MIXFLOW_DECLARE_PEAK
}
#undef MIXFLOW_DECLARE_PEAK

}  // namespace mixflow::kernels
