// One block of channels as a vector; the compiler splits it where registers are narrower.
#pragma once

#include <cstdint>

// Wide vectors change the calling convention only where a function is not inlined: these are local.
#pragma GCC diagnostic ignored "-Wpsabi"

namespace mixflow::kernels::MIXFLOW_ISA {

template <int kSize>
struct BlockVec;
template <>
struct BlockVec<8> {
  typedef float type __attribute__((vector_size(32), aligned(4), may_alias));
};
template <>
struct BlockVec<16> {
  typedef float type __attribute__((vector_size(64), aligned(4), may_alias));
};
template <int kSize>
using Block = typename BlockVec<kSize>::type;

template <int kSize>
inline Block<kSize> load_block(const float* p) {
  return *reinterpret_cast<const Block<kSize>*>(p);
}
template <int kSize>
inline void put_block(float* p, Block<kSize> v) {
  *reinterpret_cast<Block<kSize>*>(p) = v;
}

}  // namespace mixflow::kernels::MIXFLOW_ISA
