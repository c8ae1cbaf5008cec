// Recording of traces, and the oracle that checks one against the engine's promise.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "engine/engine.h"

namespace mixflow::engine {

int64_t now_ns();  // steady clock

// Collects events of tasks that were pushed while it is on. Guarded by the lock of the engine.
class TraceRecorder {
 public:
  void start();
  std::vector<TraceEvent> stop();
  bool on() const { return on_; }
  void add(TraceEvent event);

 private:
  bool on_ = false;
  std::vector<TraceEvent> events_;
};

// Happens-before oracle: for every tag, a task that conflicts with an earlier pushed one (one of
// the two writes) must not start before the earlier one ended or released the tag. Returns "" or
// a sentence that names the first violation.
std::string check_trace(const std::vector<TraceEvent>& events);

}  // namespace mixflow::engine
