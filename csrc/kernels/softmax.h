// Softmax of lines on one thread; softmax.cpp splits the lines over threads.
#pragma once

#include <cstdint>

#include "kernels/isa.h"

namespace mixflow::kernels {

// x and y are (length, inner) with `stride` elements between rows: softmax down each of the
// `inner` columns. y may be x.
template <class T>
struct SoftmaxTask {
  const T* x = nullptr;
  T* y = nullptr;
  int64_t length = 0, inner = 0, stride = 0;
  bool log = false;
};

#define MIXFLOW_DECLARE_SOFTMAX                \
  void softmax_f32(const SoftmaxTask<float>&); \
  void softmax_f64(const SoftmaxTask<double>&);
namespace isa_baseline {
MIXFLOW_DECLARE_SOFTMAX
}
namespace isa_avx2 {
MIXFLOW_DECLARE_SOFTMAX
}
namespace isa_avx512 {
MIXFLOW_DECLARE_SOFTMAX
}
#undef MIXFLOW_DECLARE_SOFTMAX

inline void softmax(const SoftmaxTask<float>& task) { MIXFLOW_PICK(softmax_f32)(task); }
inline void softmax(const SoftmaxTask<double>& task) { MIXFLOW_PICK(softmax_f64)(task); }

}  // namespace mixflow::kernels
