// The engine proper. One mutex guards all queues: it is held for well under a microsecond per
// task, and it makes an append to many tags atomic without any order of locks. No user code (run,
// destructors of tasks, describe except while a trace is on) is called while it is held.
#pragma once

#include <sys/types.h>

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <vector>

#include "engine/lanes.h"
#include "engine/record.h"
#include "engine/task_error.h"
#include "engine/trace.h"

namespace mixflow::engine {

class ThreadedEngine : public Engine {
 public:
  ThreadedEngine();
  ~ThreadedEngine() override;

  TagRef new_tag() override;
  void push(std::unique_ptr<Task> task) override;

  void wait_for_read(const TagRef& tag) override { wait_tag(tag, false, -1, nullptr); }
  void wait_for_write(const TagRef& tag) override { wait_tag(tag, true, -1, nullptr); }
  void wait_all() override { wait_every(-1, nullptr); }
  bool wait_for_read(const TagRef& tag, int64_t timeout_ms, WaitPoint* point) override;
  bool wait_for_write(const TagRef& tag, int64_t timeout_ms, WaitPoint* point) override;
  bool wait_all(int64_t timeout_ms, WaitPoint* point) override;
  bool idle(const TagRef& tag) const override;

  void close() override;
  void before_fork(const std::function<void()>& drained) override;
  void after_fork() override;

  void start_trace() override;
  std::vector<TraceEvent> stop_trace() override;
  void set_limits(const Limits& limits) override;
  void set_core_budget(int threads) override;
  int core_budget() const override;
  size_t pending() const override;

  // For the record and its completion.
  void release(Record& record, const TagRef& tag, const std::exception_ptr& error);
  std::shared_ptr<Completion> defer(Record& record);
  // The run or the completion is over; the last one ends the task. May destroy the record.
  void finish(Record& record, const std::exception_ptr& error);

 private:
  // A producer that waits for room; lives on its stack.
  struct Producer {
    size_t bytes = 0;
    bool admitted = false;
    bool refused = false;
    std::condition_variable changed;
  };
  // A thread that waits for ends of tasks; lives on its stack.
  struct EndWaiter {
    uint64_t order = 0;            // all tasks up to this push number,
    const Group* group = nullptr;  // or the members of this group,
    bool drained = false;          // or everything, reserved places included
    bool over = false;
    std::condition_variable changed;
  };

  TagState& checked(const TagRef& tag) const;
  Record* current() const;
  void execute(Record& record, Lock& lock, Worker& worker);
  void run_inline(Record& record, Lock& lock);
  std::exception_ptr call(Record& record);
  bool work_over(Record& record, const std::exception_ptr& error);
  FailureRef make_failure(const Record& record, const std::exception_ptr& error) const;

  // All from here on: with the mutex held.
  void admit(Lock& lock, Record& record, bool exempt);
  void wait_for_room(Lock& lock, size_t bytes);
  void give_up(Producer& producer);
  bool fits(size_t bytes) const;
  bool low() const;
  void admit_producers();
  void append(Record& record, Record* parent);
  bool may_run_inline(const Record& record) const;
  void fail(Record& record, const FailureRef& failure);
  void end(Record& record, Graveyard& graveyard);
  void end_one(Record& record, Graveyard& graveyard);
  void handle_ready(Graveyard& graveyard);
  void leave_groups(Record& record, Graveyard& graveyard);
  void unlink(Record& record, Graveyard& graveyard);
  void record_event(Record& record);
  bool over(const EndWaiter& waiter) const;
  void wake_end_waiters();
  bool wait_end(Lock& lock, EndWaiter& waiter, int64_t timeout_ms);
  template <class Waiter>
  bool block(Lock& lock, Waiter& waiter, int64_t timeout_ms);
  bool wait_tag(const TagRef& tag, bool any, int64_t timeout_ms, WaitPoint* point);
  bool wait_every(int64_t timeout_ms, WaitPoint* point);
  bool held_by_caller(const TagState& tag, bool any) const;
  uint64_t begin(WaitPoint* point) const;
  void raise(const FailureRef& failure);
  void drain(Lock& lock);

  const uint64_t id_ = next_engine_id();
  std::atomic<uint64_t> tags_{0};

  // Held by close(), and from before_fork to after_fork. Taken before mutex_.
  std::mutex lifecycle_;
  Lock lifecycle_lock_;  // over the fork

  mutable std::mutex mutex_;
  Lanes lanes_;
  Record* first_ = nullptr;  // pending tasks in push order
  Record* last_ = nullptr;
  uint64_t order_ = 0;  // of the last task pushed; unique, and ascending in every tag's queue
  // Pending tasks plus places reserved for admitted producers, and the bytes of both. Beyond the
  // limits only by tasks pushed from inside tasks, or by one larger task that is alone.
  size_t pending_ = 0;
  size_t pending_bytes_ = 0;
  const size_t limits_default_;  // of bytes: a quarter of memory
  Limits limits_;
  std::deque<Producer*> producers_;      // waiting for room, served in order
  std::vector<EndWaiter*> end_waiters_;  // none of them is over
  std::vector<Record*> ready_;           // granted tasks not yet handed to a lane; empty in between
  UnraisedFailures unraised_;
  TraceRecorder trace_;
  bool closed_ = false;
  // User threads wait in push until the fork is over. Written under both locks.
  bool forking_ = false;
  Lock fork_lock_;  // held over the fork, so that the child finds everything at rest
  pid_t forker_ = 0;
};

}  // namespace mixflow::engine
