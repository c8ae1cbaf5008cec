// Batch normalisation of a block of channels on one thread; norm.cpp splits the channels.
#pragma once

#include <cstdint>

#include "kernels/isa.h"

namespace mixflow::kernels {

constexpr int64_t kNormBlock = 256;  // most channels of a task

// Tensors are (outer, channels, inner), `stride` elements from one outer index to the next;
// vectors have one element per channel. What a function does not use stays null.
template <class T>
struct NormTask {
  int64_t outer = 0, channels = 0, inner = 0, stride = 0;
  const T* x = nullptr;
  const T* dy = nullptr;
  T* result = nullptr;  // y or dx; y may be x
  const T* gamma = nullptr;
  const T* beta = nullptr;
  const T* mean = nullptr;
  const T* inv_std = nullptr;
  T* first = nullptr;   // mean, or dgamma
  T* second = nullptr;  // variance, or dbeta
  double eps = 0;
};

#define MIXFLOW_DECLARE_NORM                    \
  void norm_stats_f32(const NormTask<float>&);  \
  void norm_stats_f64(const NormTask<double>&); \
  void norm_apply_f32(const NormTask<float>&);  \
  void norm_apply_f64(const NormTask<double>&); \
  void norm_train_f32(const NormTask<float>&);  \
  void norm_train_f64(const NormTask<double>&); \
  void norm_grad_f32(const NormTask<float>&);   \
  void norm_grad_f64(const NormTask<double>&);
namespace isa_baseline {
MIXFLOW_DECLARE_NORM
}
namespace isa_avx2 {
MIXFLOW_DECLARE_NORM
}
namespace isa_avx512 {
MIXFLOW_DECLARE_NORM
}
#undef MIXFLOW_DECLARE_NORM

inline void norm_stats(const NormTask<float>& t) { MIXFLOW_PICK(norm_stats_f32)(t); }
inline void norm_stats(const NormTask<double>& t) { MIXFLOW_PICK(norm_stats_f64)(t); }
inline void norm_apply(const NormTask<float>& t) { MIXFLOW_PICK(norm_apply_f32)(t); }
inline void norm_apply(const NormTask<double>& t) { MIXFLOW_PICK(norm_apply_f64)(t); }
inline void norm_train(const NormTask<float>& t) { MIXFLOW_PICK(norm_train_f32)(t); }
inline void norm_train(const NormTask<double>& t) { MIXFLOW_PICK(norm_train_f64)(t); }
inline void norm_grad(const NormTask<float>& t) { MIXFLOW_PICK(norm_grad_f32)(t); }
inline void norm_grad(const NormTask<double>& t) { MIXFLOW_PICK(norm_grad_f64)(t); }

}  // namespace mixflow::kernels
