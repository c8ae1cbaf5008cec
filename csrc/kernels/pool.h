// Pooling of planes on one thread; pool.cpp splits the planes over threads.
#pragma once

#include <cstdint>

#include "base/shape.h"
#include "kernels/isa.h"

namespace mixflow::kernels {

struct Request;

enum class PoolMode { max, avg, sum, lp };

// Always three spatial axes (missing ones lead, of size 1). A plane is one channel of one image.
struct PoolGeometry {
  int64_t in[3] = {1, 1, 1}, out[3] = {1, 1, 1}, kernel[3] = {1, 1, 1};
  int64_t stride[3] = {1, 1, 1}, pad[3] = {0, 0, 0};
  PoolMode mode = PoolMode::max;
  bool include_pad = true;  // avg divides by padding too, but not by what lies beyond `in + pad`
  int64_t power = 2;        // of lp

  int64_t in_size() const { return in[0] * in[1] * in[2]; }
  int64_t out_size() const { return out[0] * out[1] * out[2]; }
};

template <class T>
struct PoolTask {
  const PoolGeometry* geometry = nullptr;
  int64_t planes = 0;
  const T* x = nullptr;   // (planes, in)
  const T* dy = nullptr;  // (planes, out); of take: values (planes, in)
  T* result = nullptr;    // forward and take: (planes, out); grad: (planes, in)
};

#define MIXFLOW_DECLARE_POOL                   \
  void pool_f32(const PoolTask<float>&);       \
  void pool_f64(const PoolTask<double>&);      \
  void pool_grad_f32(const PoolTask<float>&);  \
  void pool_grad_f64(const PoolTask<double>&); \
  void pool_take_f32(const PoolTask<float>&);  \
  void pool_take_f64(const PoolTask<double>&);
namespace isa_baseline {
MIXFLOW_DECLARE_POOL
}
namespace isa_avx2 {
MIXFLOW_DECLARE_POOL
}
namespace isa_avx512 {
MIXFLOW_DECLARE_POOL
}
#undef MIXFLOW_DECLARE_POOL

// forward: y from x. grad: dx from dy (and x for max). take: values at the first maxima of x.
inline void pool_forward(const PoolTask<float>& t) { MIXFLOW_PICK(pool_f32)(t); }
inline void pool_forward(const PoolTask<double>& t) { MIXFLOW_PICK(pool_f64)(t); }
inline void pool_grad(const PoolTask<float>& t) { MIXFLOW_PICK(pool_grad_f32)(t); }
inline void pool_grad(const PoolTask<double>& t) { MIXFLOW_PICK(pool_grad_f64)(t); }
inline void pool_take(const PoolTask<float>& t) { MIXFLOW_PICK(pool_take_f32)(t); }
inline void pool_take(const PoolTask<double>& t) { MIXFLOW_PICK(pool_take_f64)(t); }

// The windows of a request with attributes kernel, stride, pad, mode, count_include_pad, p_value.
PoolGeometry pool_geometry(const Request& r, const Shape& x, const Shape& y);

}  // namespace mixflow::kernels
