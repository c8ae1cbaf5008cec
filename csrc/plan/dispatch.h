// What a cached imperative call needs after its signature was found: its plan, its outputs, and
// where `out=` may not be written directly.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "plan/runner.h"

namespace mixflow::plan {

// Immutable once made; shared by every call of its signature.
struct CallEntry {
  PlanRef plan;
  std::vector<Desc> out_descs;  // hidden outputs included
  int64_t visible = 1;
  std::vector<std::pair<int, int>> inplace;  // (output, input) that may be one memory
  std::string name;
};

struct Call {
  std::vector<Array> inputs;
  std::vector<Array> out;  // empty, or one per visible output
  const double* scalars = nullptr;
  size_t num_scalars = 0;
  uint32_t site = 0;
};

struct CallResult {
  std::vector<Array> outputs;  // all of them; visible ones are those of `out` when it was given
  uint64_t first_draw = 0;
};

// Allocates outputs, pushes the plan, and copies into `out` where it aliases an input in a way that
// the plan does not allow. Throws Error when `out` has another dtype, shape or device.
CallResult push_call(const CallEntry& entry, Call call);

}  // namespace mixflow::plan
