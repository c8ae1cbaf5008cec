// Writes a number as an element of some dtype: runtime scalars reach kernels as shape () buffers.
#pragma once

#include "base/dtype.h"

namespace mixflow::plan {

// Stores `value` at `target` (8 bytes are enough for every dtype), rounded to nearest even.
void store_scalar(double value, DType dtype, void* target);

}  // namespace mixflow::plan
