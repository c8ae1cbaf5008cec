// One block of channels as a vector; the compiler splits it where registers are narrower.
#pragma once

#include <cstdint>

#include "kernels/element.h"

// Wide vectors change the calling convention only where a function is not inlined: these are local.
#pragma GCC diagnostic ignored "-Wpsabi"

namespace mixflow::kernels::MIXFLOW_ISA {

template <int kSize>
struct BlockVec;
template <>
struct BlockVec<8> {
  typedef float type __attribute__((vector_size(32), aligned(4), may_alias));
  typedef uint32_t bits __attribute__((vector_size(32)));
  typedef uint16_t halves __attribute__((vector_size(16), aligned(2), may_alias));
};
template <>
struct BlockVec<16> {
  typedef float type __attribute__((vector_size(64), aligned(4), may_alias));
  typedef uint32_t bits __attribute__((vector_size(64)));
  typedef uint16_t halves __attribute__((vector_size(32), aligned(2), may_alias));
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

// bfloat16 in memory: the upper halves of floats, rounded to nearest even; NaN stays NaN.
template <int kSize>
inline Block<kSize> load_block(const BHalf* p) {
  using Vec = BlockVec<kSize>;
  const auto raw = *reinterpret_cast<const typename Vec::halves*>(p);
  return reinterpret_cast<Block<kSize>>(__builtin_convertvector(raw, typename Vec::bits) << 16);
}
template <int kSize>
inline void put_block(BHalf* p, Block<kSize> v) {
  using Vec = BlockVec<kSize>;
  using Bits = typename Vec::bits;
  const Bits bits = reinterpret_cast<Bits>(v);
  const Bits rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
  const Bits chosen = v == v ? rounded : (bits >> 16) | 0x40u;
  const auto made = __builtin_convertvector(chosen, typename Vec::halves);
  *reinterpret_cast<typename Vec::halves*>(p) = made;
}

}  // namespace mixflow::kernels::MIXFLOW_ISA
