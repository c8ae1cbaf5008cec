// The queue of accesses of one tag, for the threaded engine.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <vector>

#include "engine/engine.h"
#include "engine/task_error.h"

namespace mixflow::engine {

struct Record;
class TagState;

// One task's access to one tag. Guarded by the engine's mutex.
struct Access {
  TagState* tag = nullptr;  // alive: the record holds the references of the task's lists
  Record* record = nullptr;
  Access* previous = nullptr;  // neighbours in the tag's queue, while not released
  Access* next = nullptr;
  bool write = false;
  bool reads = false;     // a write may read too: it then inherits the tag's failure
  bool released = false;  // out of the queue; its effect on the tag is settled
};

// A thread that waits for a tag; lives on that thread's stack.
struct TagWaiter {
  uint64_t order = 0;  // covers accesses of tasks with a push number up to this
  bool any = false;    // all accesses, or only the writes
  bool over = false;
  FailureRef failure;  // what the tag carried at the moment when the wait was over
  std::condition_variable changed;
};

// All but the constants and version() is guarded by the engine's mutex.
class TagState : public Tag {
 public:
  TagState(uint64_t engine, uint64_t number) : engine_(engine), number_(number) {}
  uint64_t version() const override { return version_.load(std::memory_order_acquire); }
  uint64_t engine_id() const override { return engine_; }
  uint64_t number() const override { return number_; }

  // Adds the access at the end; true when it is granted at once.
  bool append(Access& access);
  // Ends a granted access: settles its effect (version, failure), takes it out of the queue, adds
  // the records whose last access this grants to `ready`, and wakes waits that are over.
  void release(Access& access, const FailureRef& failure, std::vector<Record*>& ready);

  // Whether an access (a write, unless any) of a task pushed up to `order` is in the queue.
  bool pending(bool any, uint64_t order) const;
  const FailureRef& failure() const { return failure_; }

  void add_waiter(TagWaiter& waiter) { waiters_.push_back(&waiter); }
  void remove_waiter(TagWaiter& waiter);

 private:
  void settle(const Access& access, const FailureRef& failure);
  void unlink(Access& access);
  void grant(std::vector<Record*>& ready);
  void wake_waiters();

  const uint64_t engine_;
  const uint64_t number_;
  std::atomic<uint64_t> version_{0};
  // The queue, in push order. Everything before first_held_ is granted, nothing from it on is.
  // The granted part is either one write, alone, or any number of reads.
  Access* head_ = nullptr;
  Access* tail_ = nullptr;
  Access* first_held_ = nullptr;
  // Failure of the last write that ended, or one that it inherited.
  FailureRef failure_;
  std::vector<TagWaiter*> waiters_;
};

}  // namespace mixflow::engine
