// The reference engine: a list of tasks in push order, scanned naively. A task runs inside push on
// the calling thread, unless a task that has not ended yet (a caller up the stack, or a deferred
// one) holds one of its tags; then whoever ends that task runs it.
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <list>
#include <mutex>
#include <thread>

#include "engine/engine.h"
#include "engine/group.h"
#include "engine/helper_threads.h"
#include "engine/task_error.h"
#include "engine/trace.h"

namespace mixflow::engine {
namespace {

class SerialEngine;
using Clock = std::chrono::steady_clock;
using Lock = std::unique_lock<std::mutex>;

struct SerialTag : Tag {
  SerialTag(uint64_t engine, uint64_t number) : engine_(engine), number_(number) {}
  uint64_t version() const override { return versions.load(std::memory_order_acquire); }
  uint64_t engine_id() const override { return engine_; }
  uint64_t number() const override { return number_; }

  const uint64_t engine_;
  const uint64_t number_;
  std::atomic<uint64_t> versions{0};
  FailureRef failure;  // guarded by the engine's mutex
};

struct SerialAccess {
  std::shared_ptr<SerialTag> tag;
  bool write = false;
  bool reads = false;
  bool released = false;
};

// A task in the list. Guarded by the engine's mutex, except `task` while it runs.
struct Entry : TaskContext, std::enable_shared_from_this<Entry> {
  Entry(SerialEngine& engine, std::unique_ptr<Task> task) : engine(engine), task(std::move(task)) {}
  void release(const TagRef& tag, std::exception_ptr error) override;
  std::shared_ptr<Completion> defer() override;
  int threads() const override;

  SerialEngine& engine;
  std::unique_ptr<Task> task;
  std::vector<SerialAccess> accesses;  // one per tag
  GroupRef member_of;
  GroupRef own_group;
  FailureRef failure;  // its first error
  TraceEvent event;
  bool traced = false;
  bool started = false;
  bool deferred = false;
  int open = 1;  // the run itself and its completion: the task ends when both are over
};
using EntryRef = std::shared_ptr<Entry>;

// The tasks on the stack of this thread, innermost first.
struct Frame {
  Entry* entry;
  Frame* previous;
};
thread_local Frame* frames = nullptr;

class SerialCompletion : public Completion {
 public:
  explicit SerialCompletion(EntryRef entry) : entry_(std::move(entry)) {}
  ~SerialCompletion() override;
  void done(std::exception_ptr error) override;

 private:
  const EntryRef entry_;
  std::atomic<bool> done_{false};
};

class SerialEngine : public Engine {
 public:
  ~SerialEngine() override { close(); }

  TagRef new_tag() override { return std::make_shared<SerialTag>(id_, ++tags_); }

  void push(std::unique_ptr<Task> task) override {
    Entry* parent = current();
    auto entry = std::make_shared<Entry>(*this, std::move(task));
    entry->accesses = merge(*entry->task);
    Lock lock(mutex_);
    if (forking_ && !parent) wait(lock, -1, [&] { return !forking_; });
    check(!closed_ || parent, "[engine] push: expected an open engine, got a closed one");
    entry->event.order = ++order_;
    entry->traced = trace_.on();
    join_group(*entry, parent);
    entries_.push_back(entry);
    run_ready(lock);
  }

  void wait_for_read(const TagRef& tag) override { wait_tag(tag, false, -1, nullptr); }
  void wait_for_write(const TagRef& tag) override { wait_tag(tag, true, -1, nullptr); }
  void wait_all() override { wait_every(-1, nullptr); }
  bool wait_for_read(const TagRef& tag, int64_t ms, WaitPoint* point) override {
    return wait_tag(tag, false, std::max<int64_t>(ms, 0), point);
  }
  bool wait_for_write(const TagRef& tag, int64_t ms, WaitPoint* point) override {
    return wait_tag(tag, true, std::max<int64_t>(ms, 0), point);
  }
  bool wait_all(int64_t ms, WaitPoint* point) override {
    return wait_every(std::max<int64_t>(ms, 0), point);
  }

  bool idle(const TagRef& tag) const override {
    SerialTag& own = checked(tag);
    Lock lock(mutex_);
    return !own.failure && !pending_access(own, true, UINT64_MAX);
  }

  void close() override {
    check(!current(), "[engine] close: expected no call from inside a task");
    Lock lock(mutex_);
    closed_ = true;
    wait(lock, -1, [&] { return entries_.empty(); });
    lock.unlock();
    helpers_.join();
  }

  // Holds the mutex over the fork, so that the child finds everything at rest.
  void before_fork(const std::function<void()>& drained) override {
    check(!current(), "[engine] before_fork: expected no call from inside a task");
    Lock lock(mutex_);
    wait(lock, -1, [&] { return !forking_; });
    forking_ = true;
    forker_ = getpid();
    wait(lock, -1, [&] { return entries_.empty(); });
    helpers_.join();  // they need no lock of ours once every task has ended
    lock.unlock();
    drained();
    lock.lock();
    fork_lock_ = std::move(lock);
  }
  void after_fork() override {
    if (!fork_lock_.owns_lock()) return;
    forking_ = false;
    if (getpid() != forker_) waiters_.clear();  // their threads do not exist in the child
    notify_waiters();
    fork_lock_.unlock();
  }

  void start_trace() override {
    Lock lock(mutex_);
    trace_.start();
  }
  std::vector<TraceEvent> stop_trace() override {
    Lock lock(mutex_);
    return trace_.stop();
  }
  void set_limits(const Limits&) override {}  // tasks end inside push: nothing queues up
  void set_core_budget(int threads) override { budget_ = std::max(1, threads); }
  int core_budget() const override { return budget_; }
  size_t pending() const override {
    Lock lock(mutex_);
    return entries_.size();
  }

  void release(Entry& entry, const TagRef& tag, const std::exception_ptr& error) {
    FailureRef failure = make_failure(entry, error);
    Lock lock(mutex_);
    for (SerialAccess& access : entry.accesses) {
      if (access.tag != tag) continue;
      check(!access.released, "[engine] release: expected a tag that is still held, got one that ",
            "was released before; in ", entry.task->describe());
      if (failure) unraised_.add(failure);
      if (entry.traced) entry.event.released.emplace_back(access.tag->number(), now_ns());
      settle(access, failure);
      notify_waiters();
      run_ready(lock);
      return;
    }
    throw Error("[engine] release: expected a declared tag, got another; in " +
                entry.task->describe());
  }

  std::shared_ptr<Completion> defer(Entry& entry) {
    Lock lock(mutex_);
    check(!entry.deferred, "[engine] defer: expected one call, got a second; in ",
          entry.task->describe());
    entry.deferred = true;
    ++entry.open;
    return std::make_shared<SerialCompletion>(entry.shared_from_this());
  }

  // The completion is over.
  void complete(Entry& entry, const std::exception_ptr& error) {
    const FailureRef failure = make_failure(entry, error);
    // One critical section: once the task has ended, the engine may be closed and destroyed.
    Lock lock(mutex_);
    finish(entry, failure);
    run_ready(lock);
  }

 private:
  Entry* current() const {
    for (Frame* frame = frames; frame; frame = frame->previous) {
      if (&frame->entry->engine == this) return frame->entry;
    }
    return nullptr;
  }

  SerialTag& checked(const TagRef& tag) const {
    check(tag && tag->engine_id() == id_, "[engine] expected a tag of this engine, got ",
          tag ? "a tag of another" : "none");
    return static_cast<SerialTag&>(*tag);
  }

  std::vector<SerialAccess> merge(const Task& task) const {
    std::vector<SerialAccess> accesses;
    const auto add = [&](const TagRef& tag) -> SerialAccess& {
      checked(tag);
      for (SerialAccess& access : accesses) {
        if (access.tag == tag) return access;
      }
      accesses.push_back({std::static_pointer_cast<SerialTag>(tag)});
      return accesses.back();
    };
    for (const TagRef& tag : task.writes) add(tag).write = true;
    for (const TagRef& tag : task.reads) add(tag).reads = true;
    return accesses;
  }

  static void join_group(Entry& entry, Entry* parent) {
    if (!parent) return;
    if (!parent->own_group) parent->own_group = Group::within(parent->member_of);
    entry.member_of = parent->own_group;
    Group::enter(entry.member_of.get());
  }

  // Whether no earlier task that has not ended holds a conflicting access.
  bool can_run(const Entry& entry) const {
    return std::all_of(entry.accesses.begin(), entry.accesses.end(), [&](const auto& access) {
      return !pending_access(*access.tag, access.write, entry.event.order - 1);
    });
  }

  // Whether a task pushed up to `order` still holds a write (or, with any, an access) of the tag.
  bool pending_access(const SerialTag& tag, bool any, uint64_t order) const {
    for (const EntryRef& entry : entries_) {
      if (entry->event.order > order) return false;
      for (const SerialAccess& access : entry->accesses) {
        if (access.tag.get() == &tag && !access.released && (any || access.write)) return true;
      }
    }
    return false;
  }

  // Runs every task that may run, in push order; the lock is let go while one runs.
  void run_ready(Lock& lock) {
    for (;;) {
      const auto found = std::find_if(entries_.begin(), entries_.end(), [&](const EntryRef& e) {
        return !e->started && can_run(*e);
      });
      if (found == entries_.end()) break;
      const EntryRef entry = *found;
      entry->started = true;
      entry->event.start_ns = now_ns();
      if (FailureRef inherited = inherited_failure(*entry)) {
        entry->failure = inherited;
        entry->event.skipped = true;
        entry->open = 0;
        end(*entry);
        continue;
      }
      lock.unlock();
      execute(*entry);
      lock.lock();
    }
  }

  static FailureRef inherited_failure(const Entry& entry) {
    FailureRef failure;
    if (entry.task->run_on_error) return failure;
    for (const SerialAccess& access : entry.accesses) {
      if (access.reads) failure = older(failure, access.tag->failure);
    }
    return failure;
  }

  // One of the things that keep the task open is over. With the mutex held.
  void finish(Entry& entry, const FailureRef& failure) {
    if (failure) fail(entry, failure);
    if (--entry.open == 0 && !waits_for_children(entry)) end(entry);
  }

  // Only run_ready calls it, and goes on with what became ready.
  void execute(Entry& entry) {
    const auto job = [&] {
      std::exception_ptr error;
      Frame frame{&entry, frames};
      frames = &frame;
      try {
        entry.task->run(entry);
      } catch (...) {
        error = std::current_exception();
      }
      frames = frame.previous;
      const FailureRef failure = make_failure(entry, error);
      const Lock lock(mutex_);  // the last one that a helper thread takes for this task
      finish(entry, failure);
    };
    if (entry.task->threads > 1) {
      helpers_.run(job);
    } else {
      job();
    }
  }

  static FailureRef make_failure(const Entry& entry, const std::exception_ptr& error) {
    if (!error) return nullptr;
    auto failure = std::make_shared<Failure>();
    failure->order = entry.event.order;
    failure->text = failure_text(error, entry.task.get(), entry.task->site);
    return failure;
  }

  void fail(Entry& entry, const FailureRef& failure) {
    if (entry.failure) return;
    entry.failure = failure;
    entry.event.failed = true;
    unraised_.add(failure);
  }

  static bool waits_for_children(const Entry& entry) {
    return entry.task->ends_with_children && entry.own_group && entry.own_group->pending > 0;
  }

  void settle(SerialAccess& access, const FailureRef& failure) {
    access.released = true;
    if (!access.write) return;
    SerialTag& tag = *access.tag;
    if (failure) {
      if (!access.reads || !tag.failure) tag.failure = failure;
      return;
    }
    if (!access.reads) tag.failure = nullptr;
    tag.versions.fetch_add(1, std::memory_order_release);
  }

  void notify_waiters() {
    for (auto* waiter : waiters_) waiter->notify_one();
  }

  void take_over_children(Entry& entry) {
    if (!entry.task->ends_with_children || !entry.own_group) return;
    const FailureRef failure = entry.own_group->failure;
    if (failure && !failure->raised && !entry.failure) {
      entry.failure = failure;
      entry.event.failed = true;
    }
  }

  void end(Entry& entry) {
    const EntryRef keep = entry.shared_from_this();
    take_over_children(entry);
    for (SerialAccess& access : entry.accesses) {
      if (!access.released) settle(access, entry.failure);
    }
    record(entry);
    entries_.remove(keep);
    if (entry.own_group) entry.own_group->over = true;
    Group::leave(entry.member_of.get(), entry.failure);
    notify_waiters();
    for (const EntryRef& other : EntryList(entries_)) {
      if (other->open == 0 && other->own_group && !waits_for_children(*other)) {
        if (std::find(entries_.begin(), entries_.end(), other) != entries_.end()) end(*other);
      }
    }
  }

  void record(Entry& entry) {
    if (!entry.traced) return;
    entry.event.end_ns = now_ns();
    entry.event.name = description(*entry.task);
    entry.event.lane = entry.task->lane;
    for (const SerialAccess& access : entry.accesses) {
      if (access.write) entry.event.writes.push_back(access.tag->number());
      if (access.reads) entry.event.reads.push_back(access.tag->number());
    }
    trace_.add(entry.event);
  }

  // Waits until the condition holds; false when ms (if not negative) passed first.
  template <class Condition>
  bool wait(Lock& lock, int64_t ms, Condition condition) {
    const auto deadline = Clock::now() + std::chrono::milliseconds(std::max<int64_t>(ms, 0));
    std::condition_variable changed;
    waiters_.push_back(&changed);
    bool over = condition();
    while (!over) {
      if (ms < 0) {
        changed.wait(lock);
      } else if (changed.wait_until(lock, deadline) == std::cv_status::timeout) {
        over = condition();
        break;
      }
      over = condition();
    }
    waiters_.remove(&changed);
    return over;
  }

  uint64_t begin(WaitPoint* point) const {
    if (!point) return order_;
    if (point->order == 0) point->order = std::max<uint64_t>(order_, 1);
    return point->order;
  }

  bool wait_tag(const TagRef& tag, bool any, int64_t ms, WaitPoint* point) {
    SerialTag& own = checked(tag);
    Lock lock(mutex_);
    const uint64_t order = begin(point);
    if (!held_by_caller(own, any) &&
        !wait(lock, ms, [&] { return !pending_access(own, any, order); })) {
      return false;
    }
    raise(own.failure);
    return true;
  }

  // Whether a task on this thread's stack holds the tag in a way that makes the wait pointless.
  bool held_by_caller(const SerialTag& tag, bool any) const {
    for (Frame* frame = frames; frame; frame = frame->previous) {
      for (const SerialAccess& access : frame->entry->accesses) {
        if (access.tag.get() != &tag || access.released) continue;
        check(access.write || !any, "[engine] wait_for_write: expected a tag that the calling ",
              "task does not read, got one that it reads; in ", frame->entry->task->describe());
        return true;
      }
    }
    return false;
  }

  bool wait_every(int64_t ms, WaitPoint* point) {
    Entry* inside = current();
    Lock lock(mutex_);
    if (inside) {
      const GroupRef group = inside->own_group;
      if (!group) return true;
      if (!wait(lock, ms, [&] { return group->pending == 0; })) return false;
      if (group->failure && !group->failure->raised) raise(group->failure);
      return true;
    }
    const uint64_t order = begin(point);
    const auto over = [&] { return entries_.empty() || entries_.front()->event.order > order; };
    if (!wait(lock, ms, over)) return false;
    raise(unraised_.take_oldest());
    return true;
  }

  void raise(const FailureRef& failure) {
    if (!failure) return;
    unraised_.raise(failure);
    throw TaskError(failure->text);
  }

  using EntryList = std::list<EntryRef>;

  const uint64_t id_ = next_engine_id();
  mutable std::mutex mutex_;  // guards all below but the atomics; never held while a task runs
  EntryList entries_;         // tasks that have not ended, in push order
  std::list<std::condition_variable*> waiters_;  // each on the stack of its waiting thread
  UnraisedFailures unraised_;
  TraceRecorder trace_;
  uint64_t order_ = 0;
  bool closed_ = false;
  bool forking_ = false;  // other threads wait in push until the fork is over
  Lock fork_lock_;
  pid_t forker_ = 0;
  std::atomic<uint64_t> tags_{0};
  std::atomic<int> budget_{std::max(1, static_cast<int>(std::thread::hardware_concurrency()))};
  HelperThreads helpers_;
};

void Entry::release(const TagRef& tag, std::exception_ptr error) {
  engine.release(*this, tag, error);
}
std::shared_ptr<Completion> Entry::defer() { return engine.defer(*this); }
int Entry::threads() const { return std::max(1, std::min(task->threads, engine.core_budget())); }

void SerialCompletion::done(std::exception_ptr error) {
  check(!done_.exchange(true), "[engine] done: expected one call, got a second");
  entry_->engine.complete(*entry_, error);
}
SerialCompletion::~SerialCompletion() {
  if (done_.exchange(true)) return;
  entry_->engine.complete(*entry_, std::make_exception_ptr(Error("the task was abandoned")));
}

}  // namespace

std::unique_ptr<Engine> make_serial_engine() { return std::make_unique<SerialEngine>(); }

}  // namespace mixflow::engine
