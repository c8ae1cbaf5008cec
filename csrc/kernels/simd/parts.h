// The parts of the loop table, one per source file.
#pragma once

#include "kernels/loops.h"

namespace mixflow::kernels::MIXFLOW_ISA {

LoopSet unary_math(Op op, Domain domain);  // exponentials and the like: called by unary
LoopSet unary(Op op, Domain domain);
LoopSet binary(Op op, Domain domain);
LoopSet select(Domain domain);
LoopSet load(DType from);
LoopSet store(Domain from, DType to);
LoopSet cast(Domain from, DType to);
LoopSet nonzero(Domain from, Domain to);

}  // namespace mixflow::kernels::MIXFLOW_ISA
