// Vectors of the instruction set that this file is compiled for. Only for files under simd/.
#pragma once

#include <cstdint>

namespace mixflow::kernels::MIXFLOW_ISA {

// Tile of a matrix product: kTileRows rows of two vectors fill the register file.
#if defined(__AVX512F__)
constexpr int kVectorBytes = 64;
constexpr int kTileRows = 14;
#elif defined(__AVX2__)
constexpr int kVectorBytes = 32;
constexpr int kTileRows = 6;
#else
constexpr int kVectorBytes = 16;
constexpr int kTileRows = 4;
#endif

template <class T>
struct Vec;
template <>
struct Vec<float> {
  typedef float type __attribute__((vector_size(kVectorBytes), aligned(4), may_alias));
};
template <>
struct Vec<double> {
  typedef double type __attribute__((vector_size(kVectorBytes), aligned(8), may_alias));
};
template <class T>
using vec = typename Vec<T>::type;

template <class T>
constexpr int64_t kLanes = kVectorBytes / static_cast<int64_t>(sizeof(T));

template <class T>
inline vec<T> load(const T* p) {
  return *reinterpret_cast<const vec<T>*>(p);
}
template <class T>
inline void put(T* p, vec<T> v) {
  *reinterpret_cast<vec<T>*>(p) = v;
}
template <class T>
inline T sum_lanes(vec<T> v) {
  T total = 0;
  for (int64_t i = 0; i < kLanes<T>; ++i) total += v[i];
  return total;
}

}  // namespace mixflow::kernels::MIXFLOW_ISA
