// Waits and life cycle of the threaded engine.
#include <unistd.h>

#include <algorithm>
#include <chrono>

#include "engine/frames.h"
#include "engine/threaded_engine.h"

namespace mixflow::engine {
namespace {

constexpr int64_t kLongestMs = int64_t{1} << 40;  // no overflow when added to a clock

int64_t clamped(int64_t timeout_ms) {
  return std::min(std::max<int64_t>(timeout_ms, 0), kLongestMs);
}

// Hands the place of the lane task that waits on to a substitute.
class Substitute {
 public:
  explicit Substitute(Lanes& lanes) : lanes_(lanes), worker_(lanes.self()) {
    if (worker_ && worker_->running) {
      lanes_.block(*worker_);
    } else {
      worker_ = nullptr;
    }
  }
  ~Substitute() {
    if (worker_) lanes_.resume(*worker_);
  }
  Substitute(const Substitute&) = delete;
  Substitute& operator=(const Substitute&) = delete;

 private:
  Lanes& lanes_;
  Worker* worker_;
};

}  // namespace

bool ThreadedEngine::wait_for_read(const TagRef& tag, int64_t timeout_ms, WaitPoint* point) {
  return wait_tag(tag, false, clamped(timeout_ms), point);
}

bool ThreadedEngine::wait_for_write(const TagRef& tag, int64_t timeout_ms, WaitPoint* point) {
  return wait_tag(tag, true, clamped(timeout_ms), point);
}

bool ThreadedEngine::wait_all(int64_t timeout_ms, WaitPoint* point) {
  return wait_every(clamped(timeout_ms), point);
}

bool ThreadedEngine::idle(const TagRef& tag) const {
  const TagState& state = checked(tag);
  Lock lock(mutex_);
  return !state.failure() && !state.pending(true, UINT64_MAX);
}

// Sleeps until the waiter is over; false when the time (negative: no limit) passed first.
template <class Waiter>
bool ThreadedEngine::block(Lock& lock, Waiter& waiter, int64_t timeout_ms) {
  const Substitute substitute(lanes_);
  const auto over = [&] { return waiter.over; };
  if (timeout_ms >= 0) {
    return waiter.changed.wait_for(lock, std::chrono::milliseconds(timeout_ms), over);
  }
  waiter.changed.wait(lock, over);
  return true;
}

uint64_t ThreadedEngine::begin(WaitPoint* point) const {
  if (!point) return order_;
  if (point->order == 0) point->order = std::max<uint64_t>(order_, 1);
  return point->order;
}

// Whether a task on this thread's stack holds the tag in a way that makes the wait pointless:
// everything before its access has ended. Throws when the wait could never return.
bool ThreadedEngine::held_by_caller(const TagState& tag, bool any) const {
  for (const TaskFrame* frame = TaskFrame::top(); frame; frame = frame->outer()) {
    const Access* access = frame->record().find(&tag);
    if (!access || access->released) continue;
    check(access->write || !any, "[engine] wait_for_write: expected a tag that the calling task ",
          "does not read, got one that it reads; in ", description(*frame->record().task));
    return true;
  }
  return false;
}

bool ThreadedEngine::wait_tag(const TagRef& tag, bool any, int64_t timeout_ms, WaitPoint* point) {
  TagState& state = checked(tag);
  Lock lock(mutex_);
  TagWaiter waiter;
  waiter.order = begin(point);
  waiter.any = any;
  if (held_by_caller(state, any) || !state.pending(any, waiter.order)) {
    raise(state.failure());
    return true;
  }
  state.add_waiter(waiter);
  if (!block(lock, waiter, timeout_ms)) {
    state.remove_waiter(waiter);
    return false;
  }
  raise(waiter.failure);
  return true;
}

bool ThreadedEngine::over(const EndWaiter& waiter) const {
  if (waiter.drained) return pending_ == 0;
  if (waiter.group) return waiter.group->pending == 0;
  return !first_ || first_->order > waiter.order;
}

void ThreadedEngine::wake_end_waiters() {
  const auto wake = [this](EndWaiter* waiter) {
    if (!over(*waiter)) return false;
    waiter->over = true;
    waiter->changed.notify_one();
    return true;
  };
  end_waiters_.erase(std::remove_if(end_waiters_.begin(), end_waiters_.end(), wake),
                     end_waiters_.end());
}

bool ThreadedEngine::wait_end(Lock& lock, EndWaiter& waiter, int64_t timeout_ms) {
  if (over(waiter)) return true;
  end_waiters_.push_back(&waiter);
  if (block(lock, waiter, timeout_ms)) return true;
  end_waiters_.erase(std::remove(end_waiters_.begin(), end_waiters_.end(), &waiter),
                     end_waiters_.end());
  return false;
}

bool ThreadedEngine::wait_every(int64_t timeout_ms, WaitPoint* point) {
  const Record* inside = current();
  Lock lock(mutex_);
  EndWaiter waiter;
  if (!inside) {
    waiter.order = begin(point);
    if (!wait_end(lock, waiter, timeout_ms)) return false;
    if (const FailureRef failure = unraised_.take_oldest()) throw TaskError(failure->text);
    return true;
  }
  const GroupRef group = inside->own_group;
  if (!group) return true;
  waiter.group = group.get();
  if (!wait_end(lock, waiter, timeout_ms)) return false;
  if (group->failure && !group->failure->raised) raise(group->failure);
  return true;
}

void ThreadedEngine::raise(const FailureRef& failure) {
  if (!failure) return;
  unraised_.raise(failure);
  throw TaskError(failure->text);
}

void ThreadedEngine::drain(Lock& lock) {
  EndWaiter waiter;
  waiter.drained = true;
  wait_end(lock, waiter, -1);
}

void ThreadedEngine::close() {
  check(!current() && !lanes_.self(), "[engine] close: expected no call from inside a task");
  const Lock one_at_a_time(lifecycle_);
  Lock lock(mutex_);
  closed_ = true;
  for (Producer* producer : producers_) {
    producer->refused = true;
    producer->changed.notify_one();
  }
  producers_.clear();
  drain(lock);
  lanes_.join(lock);
}

void ThreadedEngine::before_fork(const std::function<void()>& drained) {
  check(!current() && !lanes_.self(), "[engine] before_fork: expected no call from inside a task");
  lifecycle_lock_ = Lock(lifecycle_);
  fork_lock_ = Lock(mutex_);
  forking_ = true;
  forker_ = getpid();
  drain(fork_lock_);
  lanes_.join(fork_lock_);  // nothing can be pushed meanwhile
  fork_lock_.unlock();
  drained();
  fork_lock_.lock();
}

void ThreadedEngine::after_fork() {
  if (!fork_lock_.owns_lock()) return;
  forking_ = false;
  if (getpid() != forker_) {
    // The threads that waited here do not exist in the child; neither do their stacks' owners.
    producers_.clear();
    end_waiters_.clear();
    pending_ = 0;
    pending_bytes_ = 0;
  }
  admit_producers();
  fork_lock_.unlock();
  lifecycle_lock_.unlock();
}

void ThreadedEngine::start_trace() {
  Lock lock(mutex_);
  trace_.start();
}

std::vector<TraceEvent> ThreadedEngine::stop_trace() {
  Lock lock(mutex_);
  return trace_.stop();
}

void ThreadedEngine::set_limits(const Limits& limits) {
  Lock lock(mutex_);
  const size_t bytes = limits.max_bytes ? limits.max_bytes : limits_default_;
  limits_ = {std::max<size_t>(limits.max_tasks, 1), bytes};
  admit_producers();
}

void ThreadedEngine::set_core_budget(int threads) {
  Lock lock(mutex_);
  lanes_.set_budget(std::max(1, threads));
}

int ThreadedEngine::core_budget() const {
  Lock lock(mutex_);
  return lanes_.budget();
}

size_t ThreadedEngine::pending() const {
  Lock lock(mutex_);
  return pending_;
}

}  // namespace mixflow::engine
