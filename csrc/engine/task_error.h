// What an engine remembers of a task's error, and how its text is made.
#pragma once

#include <cstdint>
#include <exception>
#include <map>
#include <memory>
#include <string>

#include "engine/engine.h"

namespace mixflow::engine {

// One failure. Shared by every tag that carries it; guarded by the lock of the engine.
// Keeps the text and not the exception: each wait throws an object of its own, so that no two
// threads ever share one, and no exception that owns foreign objects outlives its thread.
struct Failure {
  uint64_t order = 0;   // push number of the task that failed
  std::string text;     // complete, as the user reads it
  bool raised = false;  // some wait has thrown it
};
using FailureRef = std::shared_ptr<Failure>;

// Its describe(), which may throw.
std::string description(const Task& task);

// "<original>; in <describe()>, created at <site_text>"; the last part only for a known site.
// Calls describe(): not under a lock. The task may be null when its work is over.
std::string failure_text(const std::exception_ptr& error, const Task* task, uint32_t site);

// The older of two failures by push order; either may be null.
FailureRef older(const FailureRef& a, const FailureRef& b);

// A number that no other engine of the process has.
uint64_t next_engine_id();

// The failures that no wait has raised yet, oldest first. Guarded by the lock of the engine.
class UnraisedFailures {
 public:
  void add(const FailureRef& failure);
  // Marks it as raised and forgets it.
  void raise(const FailureRef& failure);
  // The oldest, marked as raised; null when there is none.
  FailureRef take_oldest();

 private:
  // At most kMost, the oldest: a program that never waits must not grow memory without end.
  static constexpr size_t kMost = 256;
  std::multimap<uint64_t, FailureRef> failures_;
};

}  // namespace mixflow::engine
