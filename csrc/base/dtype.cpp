#include "base/dtype.h"

namespace mixflow {

const char* name_of(DType dtype) {
  switch (dtype) {
    case DType::float32: return "float32";
    case DType::float64: return "float64";
    case DType::float16: return "float16";
    case DType::uint8: return "uint8";
    case DType::int32: return "int32";
    case DType::int8: return "int8";
    case DType::int64: return "int64";
    case DType::boolean: return "bool";
    case DType::bfloat16: return "bfloat16";
  }
  return "unknown";
}

}  // namespace mixflow
