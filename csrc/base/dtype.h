// Element types. The codes are those of MXNet's files, so they can be written as they are.
#pragma once

#include <cstddef>
#include <cstdint>

namespace mixflow {

enum class DType : int32_t {
  float32 = 0,
  float64 = 1,
  float16 = 2,
  uint8 = 3,
  int32 = 4,
  int8 = 5,
  int64 = 6,
  boolean = 7,
  bfloat16 = 12,
};

// Bytes of one element; 0 for a code that is not a DType.
constexpr size_t size_of(DType dtype) {
  switch (dtype) {
    case DType::float64:
    case DType::int64:
      return 8;
    case DType::float32:
    case DType::int32:
      return 4;
    case DType::float16:
    case DType::bfloat16:
      return 2;
    case DType::uint8:
    case DType::int8:
    case DType::boolean:
      return 1;
  }
  return 0;
}

const char* name_of(DType dtype);

}  // namespace mixflow
