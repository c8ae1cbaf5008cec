// Elements in memory and the types that kernels compute in.
//
// Hazard: this header is compiled for several instruction sets. A function with linkage would be
// merged by the linker, and a processor without AVX-512 could then run the AVX-512 copy. So
// everything here lives in an unnamed namespace: each translation unit keeps its own copy.
#pragma once

#include <cstdint>

#include "base/dtype.h"

namespace mixflow::kernels {

// The types that programs compute in.
enum class Domain : uint8_t { f32 = 0, f64 = 1, i64 = 2 };

constexpr Domain domain_of(DType dtype) {
  switch (dtype) {
    case DType::float32:
    case DType::float16:
    case DType::bfloat16:
      return Domain::f32;
    case DType::float64:
      return Domain::f64;
    default:
      return Domain::i64;
  }
}

// Whether the memory form of a dtype is the form that is computed with.
constexpr bool is_direct(DType dtype) {
  return dtype == DType::float32 || dtype == DType::float64 || dtype == DType::int64;
}

constexpr bool is_floating(DType dtype) { return domain_of(dtype) != Domain::i64; }

namespace {

struct Half {
  uint16_t bits;
};
struct BHalf {
  uint16_t bits;
};
struct Boolean {
  uint8_t value;
};

template <class To, class From>
inline To bit_cast(From from) {
  return __builtin_bit_cast(To, from);
}

// Binary16 to binary32: shift the fields into place and correct the exponent by a multiplication
// with 2^112, which also renormalises subnormals.
inline float half_to_float(uint16_t bits) {
  const uint32_t magnitude = static_cast<uint32_t>(bits & 0x7fffu) << 13;
  const float scaled = bit_cast<float>(magnitude) * bit_cast<float>(uint32_t{0x77800000u});
  const uint32_t special = magnitude >= 0x0f800000u ? 0x7f800000u : 0u;
  const uint32_t sign = static_cast<uint32_t>(bits & 0x8000u) << 16;
  return bit_cast<float>(bit_cast<uint32_t>(scaled) | special | sign);
}

// Binary32 to binary16, to nearest even. Subnormal results are rounded by adding 0.5, whose last
// place is the smallest half.
inline uint16_t float_to_half(float x) {
  const uint32_t bits = bit_cast<uint32_t>(x);
  const uint32_t magnitude = bits & 0x7fffffffu;
  const uint32_t normal = (magnitude - 0x38000000u + 0xfffu + ((magnitude >> 13) & 1u)) >> 13;
  const uint32_t small = bit_cast<uint32_t>(bit_cast<float>(magnitude) + 0.5f) - 0x3f000000u;
  uint32_t result = magnitude < 0x38800000u ? small : normal;
  result = magnitude >= 0x477ff000u ? 0x7c00u : result;
  result = magnitude > 0x7f800000u ? 0x7e00u : result;
  return static_cast<uint16_t>(result | ((bits >> 16) & 0x8000u));
}

inline float bhalf_to_float(uint16_t bits) {
  return bit_cast<float>(static_cast<uint32_t>(bits) << 16);
}

inline uint16_t float_to_bhalf(float x) {
  const uint32_t bits = bit_cast<uint32_t>(x);
  const uint32_t rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
  const uint32_t quiet = (bits >> 16) | 0x40u;
  return static_cast<uint16_t>((bits & 0x7fffffffu) > 0x7f800000u ? quiet : rounded);
}

// compute(x): memory form to computed form.
inline float compute(float x) { return x; }
inline double compute(double x) { return x; }
inline float compute(Half x) { return half_to_float(x.bits); }
inline float compute(BHalf x) { return bhalf_to_float(x.bits); }
inline int64_t compute(uint8_t x) { return x; }
inline int64_t compute(int8_t x) { return x; }
inline int64_t compute(int32_t x) { return x; }
inline int64_t compute(int64_t x) { return x; }
inline int64_t compute(Boolean x) { return x.value != 0; }

template <class T>
using Computed = decltype(compute(T{}));

// store<T>(x): computed form to memory form. Floats become integers by truncation.
template <class T>
struct Store {
  template <class C>
  static T from(C x) {
    return static_cast<T>(x);
  }
};
template <>
struct Store<Half> {
  template <class C>
  static Half from(C x) {
    return Half{float_to_half(static_cast<float>(x))};
  }
};
template <>
struct Store<BHalf> {
  template <class C>
  static BHalf from(C x) {
    return BHalf{float_to_bhalf(static_cast<float>(x))};
  }
};
template <>
struct Store<Boolean> {
  template <class C>
  static Boolean from(C x) {
    return Boolean{static_cast<uint8_t>(x != 0)};
  }
};

// Narrow integers wrap around, also from floats: those go through int64.
template <class T>
struct StoreNarrow {
  template <class C>
  static T from(C x) {
    return static_cast<T>(static_cast<int64_t>(x));
  }
};
template <>
struct Store<uint8_t> : StoreNarrow<uint8_t> {};
template <>
struct Store<int8_t> : StoreNarrow<int8_t> {};
template <>
struct Store<int32_t> : StoreNarrow<int32_t> {};

template <class T, class C>
inline T store(C x) {
  return Store<T>::from(x);
}

template <class T>
struct TypeTag {
  using type = T;
};

// The one dispatch over dtypes: calls fn(TypeTag<T>{}) with the memory type.
template <class Fn>
inline auto with_dtype(DType dtype, Fn&& fn) {
  switch (dtype) {
    case DType::float64:
      return fn(TypeTag<double>{});
    case DType::float16:
      return fn(TypeTag<Half>{});
    case DType::bfloat16:
      return fn(TypeTag<BHalf>{});
    case DType::uint8:
      return fn(TypeTag<uint8_t>{});
    case DType::int8:
      return fn(TypeTag<int8_t>{});
    case DType::int32:
      return fn(TypeTag<int32_t>{});
    case DType::int64:
      return fn(TypeTag<int64_t>{});
    case DType::boolean:
      return fn(TypeTag<Boolean>{});
    case DType::float32:
    default:
      return fn(TypeTag<float>{});
  }
}

template <class Fn>
inline auto with_domain(Domain domain, Fn&& fn) {
  if (domain == Domain::f64) return fn(TypeTag<double>{});
  if (domain == Domain::i64) return fn(TypeTag<int64_t>{});
  return fn(TypeTag<float>{});
}

}  // namespace
}  // namespace mixflow::kernels
