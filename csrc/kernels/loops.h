// The loops over blocks that programs are made of, one table per instruction set.
#pragma once

#include "kernels/isa.h"
#include "kernels/program.h"

namespace mixflow::kernels {

// out[i] = op(a[i], b[i], c[i]) for i in [0, n). Unused operands may be null. `out` may be exactly
// an operand of the same element size. Does not block; thread-safe.
using Loop = void (*)(const void* a, const void* b, const void* c, void* out, int64_t n);

// One loop per set of operands that are a single value for the whole block: bit k for operand k.
struct LoopSet {
  Loop by_scalars[8] = {};
};

struct LoopTable {
  LoopSet (*unary)(Op op, Domain domain);
  LoopSet (*binary)(Op op, Domain domain);
  LoopSet (*select)(Domain domain);
  LoopSet (*load)(DType from);                // memory form to domain form
  LoopSet (*store)(Domain from, DType to);    // domain form to memory form
  LoopSet (*cast)(Domain from, DType to);     // domain form to the domain form of `to`, rounded
  LoopSet (*nonzero)(Domain from, Domain to);
};

namespace isa_baseline {
extern const LoopTable loop_table;
}
namespace isa_avx2 {
extern const LoopTable loop_table;
}
namespace isa_avx512 {
extern const LoopTable loop_table;
}

inline const LoopTable& loop_table() { return MIXFLOW_PICK(loop_table); }

}  // namespace mixflow::kernels
