// What a plan makes of its parameters alone (weights in a kernel's own order, folded norms), kept
// by a binding between runs.
//
// The hazard: kept values must never outlive the parameters that they were made of. Each run takes
// the versions of those arguments when it is pushed, which is when the order of writes is fixed;
// it makes everything anew unless they are the versions of what is kept.
#pragma once

#include <cstdint>
#include <vector>

#include "plan/array.h"
#include "storage/storage.h"

namespace mixflow::plan {

// Versions of arguments, in one order for a plan.
using Stamps = std::vector<uint64_t>;

// Version of an argument for a run that is being pushed. Memory that others may write without
// pushing (an export, foreign memory) has a version that equals no other.
uint64_t stamp_of(const Chunk& chunk);

// Not thread-safe: for the one run of its binding that is going on.
class Kept {
 public:
  // Memory for what is kept. Allocated at the first call.
  char* memory(size_t bytes);
  // Whether the memory holds what arguments of these versions give. If not, it is about to be
  // overwritten, and holds nothing until `filled`.
  bool holds(const Stamps& stamps);
  void filled(Stamps stamps) { stamps_ = std::move(stamps); }

 private:
  storage::BlockRef block_;
  Stamps stamps_;
};

}  // namespace mixflow::plan
