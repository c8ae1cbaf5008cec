// A pushed task, as the threaded engine keeps it.
#pragma once

#include <array>
#include <atomic>
#include <memory>
#include <utility>
#include <vector>

#include "engine/engine.h"
#include "engine/group.h"
#include "engine/tag.h"

namespace mixflow::engine {

class ThreadedEngine;

// Owned by the engine's list of pending tasks from push until it ended. Guarded by the engine's
// mutex, except `task`, which belongs to the thread that runs it.
struct Record : TaskContext {
  Record(ThreadedEngine& engine, std::unique_ptr<Task> pushed);

  void release(const TagRef& tag, std::exception_ptr error) override;
  std::shared_ptr<Completion> defer() override;
  int threads() const override { return leased > 0 ? leased : 1; }

  Access* begin() { return accesses; }
  Access* end() { return accesses + count; }
  // The access to the tag; null when it was not declared.
  Access* find(const Tag* tag);

  ThreadedEngine& engine;
  std::unique_ptr<Task> task;  // null once its work is over
  // The task's lists: they keep the tags alive until the record is destroyed.
  std::vector<TagRef> reads;
  std::vector<TagRef> writes;
  // One per tag, sorted by tag address when there are more than kSmall.
  Access* accesses = nullptr;
  size_t count = 0;
  size_t held = 0;  // accesses that are not granted yet; 0 = ready

  Record* previous = nullptr;  // neighbours in the list of pending tasks, in push order
  Record* next = nullptr;

  uint64_t order = 0;
  size_t held_bytes = 0;
  bool run_on_error = false;
  bool ends_with_children = false;
  bool short_task = false;  // may run on whatever thread has just made it ready
  int32_t priority = 0;
  int32_t wanted = 1;  // threads that the task asks for
  uint32_t site = 0;
  int32_t leased = 0;  // threads taken from the budget while it runs
  Lane lane;
  GroupRef member_of;  // group of the task that pushed this one; null for the user's threads
  GroupRef own_group;  // of the tasks that this one pushed; null until it does
  FailureRef failure;  // its first error, or the one that it inherited
  // The run itself and the completion: the task's work is over when both are.
  std::atomic<int> open{1};
  bool deferred = false;
  bool traced = false;
  TraceEvent event;  // filled only when traced

 private:
  static constexpr size_t kSmall = 6;
  void merge();
  void merge_small();
  void merge_many();

  std::array<Access, kSmall> small_;  // storage of `accesses`, or:
  std::vector<Access> many_;
};

}  // namespace mixflow::engine
