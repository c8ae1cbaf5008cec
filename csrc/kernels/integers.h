// Reading and writing index tensors, whose dtype may be any.
#pragma once

#include "base/dtype.h"

#include <cstdint>

namespace mixflow::kernels {

constexpr int64_t kIndexBlock = 256;

// out[i] = the element begin + i of data, truncated, for i in [0, n).
void read_integers(DType dtype, const void* data, int64_t begin, int64_t n, int64_t* out);

// The element begin + i of data = values[i], for i in [0, n).
void write_integers(DType dtype, const int64_t* values, int64_t n, void* data, int64_t begin);

}  // namespace mixflow::kernels
