#include "plan/scalar.h"

#include <cmath>
#include <cstdint>
#include <cstring>

namespace mixflow::plan {
namespace {

template <class T>
void put(T value, void* target) {
  std::memcpy(target, &value, sizeof value);
}

template <class T>
void put_integer(double value, void* target) {
  put(static_cast<T>(static_cast<int64_t>(value)), target);
}

uint32_t bits_of(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof bits);
  return bits;
}

uint16_t to_bfloat16(float value) {
  const uint32_t bits = bits_of(value);
  if (std::isnan(value)) return static_cast<uint16_t>((bits >> 16) | 0x40);
  return static_cast<uint16_t>((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
}

uint16_t to_float16(float value) {
  const auto sign = static_cast<uint16_t>((bits_of(value) >> 16) & 0x8000);
  if (std::isnan(value)) return sign | 0x7e00;
  const float magnitude = std::fabs(value);
  if (magnitude >= 65520.0f) return sign | 0x7c00;  // rounds to infinity
  if (magnitude < 6.103515625e-05f) {               // subnormal: units of 2^-24
    return sign | static_cast<uint16_t>(std::nearbyint(std::ldexp(magnitude, 24)));
  }
  int exponent;
  const float fraction = std::frexp(magnitude, &exponent);  // in [0.5, 1)
  const auto mantissa = static_cast<uint32_t>(std::nearbyint(std::ldexp(fraction, 11)));
  // A mantissa of 2048 carries into the exponent by plain addition.
  return sign | static_cast<uint16_t>(((exponent + 13) << 10) + mantissa);
}

}  // namespace

void store_scalar(double value, DType dtype, void* target) {
  switch (dtype) {
    case DType::float32:
      return put(static_cast<float>(value), target);
    case DType::float64:
      return put(value, target);
    case DType::float16:
      return put(to_float16(static_cast<float>(value)), target);
    case DType::bfloat16:
      return put(to_bfloat16(static_cast<float>(value)), target);
    case DType::uint8:
      return put_integer<uint8_t>(value, target);
    case DType::int8:
      return put_integer<int8_t>(value, target);
    case DType::int32:
      return put_integer<int32_t>(value, target);
    case DType::int64:
      return put_integer<int64_t>(value, target);
    case DType::boolean:
      return put(static_cast<uint8_t>(value != 0), target);
  }
}

}  // namespace mixflow::plan
