// The inner loops of reductions, one table per instruction set.
#pragma once

#include "kernels/element.h"
#include "kernels/isa.h"

namespace mixflow::kernels {

enum class ReduceOp : uint8_t { sum, prod, max, min };

// Accumulators are double for floats and int64 for integers. Float32 sums add up to 512 elements
// in float32 lanes before they go to double, so their error stays near one unit in the last place.
constexpr int64_t kReduceColumns = 512;

// acc[0] = op(acc[0], x[0], ..., x[n - 1])
using ReduceRow = void (*)(const void* x, int64_t n, void* acc);
// acc[j] = op(acc[j], x[r * stride + j] for r in [0, rows)), j in [0, n), n <= kReduceColumns.
using ReduceColumns = void (*)(const void* x, int64_t rows, int64_t stride, int64_t n, void* acc);

struct ReduceTable {
  ReduceRow (*row)(ReduceOp op, DType dtype);
  ReduceColumns (*columns)(ReduceOp op, DType dtype);
};

namespace isa_baseline {
extern const ReduceTable reduce_table;
}
namespace isa_avx2 {
extern const ReduceTable reduce_table;
}
namespace isa_avx512 {
extern const ReduceTable reduce_table;
}

inline const ReduceTable& reduce_table() { return MIXFLOW_PICK(reduce_table); }

}  // namespace mixflow::kernels
