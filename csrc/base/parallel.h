// Splits a range over the threads of the current team. The only place that knows OpenMP.
#pragma once

#include <cstdint>
#include <functional>

namespace mixflow {

// Calls body(begin, end) on disjoint parts of [0, count), on at most `threads` threads, and waits.
// Parts are multiples of `grain` except the last; runs on the caller when one part is enough.
template <class Body>
void parallel_for(int threads, int64_t count, int64_t grain, const Body& body);

}  // namespace mixflow

#include "base/parallel_impl.h"
