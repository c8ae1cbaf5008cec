// Local response normalisation of one strip of an image on one thread.
#pragma once

#include <cstdint>

#include "kernels/isa.h"

namespace mixflow::kernels {

constexpr int64_t kLrnStrip = 64;  // most places of a strip

// Tensors are (channels, places) with `stride` elements between channels.
template <class T>
struct LrnTask {
  int64_t channels = 0, places = 0, stride = 0;
  const T* x = nullptr;
  const T* y = nullptr;    // gradient only
  const T* dy = nullptr;   // gradient only
  T* result = nullptr;     // y or dx
  T* workspace = nullptr;  // gradient only: 2 * channels * kLrnStrip elements
  T alpha = 0, beta = 0, knorm = 0;
  int64_t size = 1;  // odd
};

#define MIXFLOW_DECLARE_LRN                 \
  void lrn_f32(const LrnTask<float>&);      \
  void lrn_f64(const LrnTask<double>&);     \
  void lrn_grad_f32(const LrnTask<float>&); \
  void lrn_grad_f64(const LrnTask<double>&);
namespace isa_baseline {
MIXFLOW_DECLARE_LRN
}
namespace isa_avx2 {
MIXFLOW_DECLARE_LRN
}
namespace isa_avx512 {
MIXFLOW_DECLARE_LRN
}
#undef MIXFLOW_DECLARE_LRN

inline void lrn(const LrnTask<float>& t) { MIXFLOW_PICK(lrn_f32)(t); }
inline void lrn(const LrnTask<double>& t) { MIXFLOW_PICK(lrn_f64)(t); }
inline void lrn_grad(const LrnTask<float>& t) { MIXFLOW_PICK(lrn_grad_f32)(t); }
inline void lrn_grad(const LrnTask<double>& t) { MIXFLOW_PICK(lrn_grad_f64)(t); }

}  // namespace mixflow::kernels
