// The engine runs tasks. A task declares the tags that it reads and the tags that it writes; the
// engine starts it when the accesses that were pushed before it to those tags allow it.
//
// Order guarantee, per tag: reads run together; a write waits for every earlier access and holds
// back every later one; the order is push order. Nothing else is ordered.
#pragma once

#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/error.h"

namespace mixflow::engine {

// A resource: the storage of an array, a random generator, a workspace, a KVStore key.
// Thread-safe. Lives as long as somebody holds it; pending tasks hold their tags.
class Tag {
 public:
  virtual ~Tag() = default;
  // Number of successful writes that have ended.
  virtual uint64_t version() const = 0;
  // Identity of the engine that made it; no other engine takes it. Never reused.
  virtual uint64_t engine_id() const = 0;
  // Its number in traces.
  virtual uint64_t number() const = 0;
};
using TagRef = std::shared_ptr<Tag>;

enum class LaneKind : uint8_t {
  compute,   // one worker per device, leases several threads of the core budget
  small,     // small independent work, one thread each
  copy_in,   // towards a device
  copy_out,  // from a device
  io,        // files and sockets; never holds compute threads
  python,    // the only lane whose worker takes the GIL
};

struct Lane {
  LaneKind kind = LaneKind::compute;
  int32_t device = 0;
  bool operator==(const Lane& o) const { return kind == o.kind && device == o.device; }
};

// Ends a deferred task, exactly once, from any thread. Dropping it without a call ends the task
// with an error ("abandoned"), so that a lost completion cannot hang the job.
class Completion {
 public:
  virtual ~Completion() = default;
  virtual void done(std::exception_ptr error = nullptr) = 0;
};

// What a running task may ask of its engine. Valid only while Task::run is on the stack, except
// for the completion, and `release`, which may be called until the task has ended.
class TaskContext {
 public:
  virtual ~TaskContext() = default;
  // Lets go of one declared tag before the task ends, with success or an error. Releasing a tag
  // twice, or one that was not declared, is an Error.
  virtual void release(const TagRef& tag, std::exception_ptr error = nullptr) = 0;
  // The task ends when the returned object is told so, not when run() returns.
  virtual std::shared_ptr<Completion> defer() = 0;
  // Threads leased for this task; at least 1.
  virtual int threads() const = 0;
};

// One unit of work. The engine owns it after push and destroys it when its work is over, on
// whatever thread that happens, just before it counts as ended (a skipped one: shortly after): a
// wait that returns finds the memory of the task free. A task must not own Python objects (bind/
// hands them back to a graveyard that a thread with the GIL empties).
class Task {
 public:
  virtual ~Task() = default;
  virtual void run(TaskContext& context) = 0;
  // Operator name and shapes; called only for errors and traces.
  virtual std::string describe() const { return "task"; }

  // A tag may stand in both lists or twice in one: it counts as one write if any write is there.
  // The engine takes the lists over; run() must not use them.
  std::vector<TagRef> reads;
  std::vector<TagRef> writes;
  Lane lane;
  int32_t priority = 0;    // larger first, among ready tasks of one lane
  int32_t threads = 1;     // threads to lease from the core budget
  // Small: may run on the pushing thread when its tags are idle (a task of the python lane: on one
  // that is no worker).
  bool inline_ok = false;
  // Runs even if a tag that it reads carries an error (waits and error handlers need this).
  bool run_on_error = false;
  // Interned line of the user's program that created the task; 0 = unknown.
  uint32_t site = 0;
  // Bytes of arrays that only pending tasks still hold, for the queue bound.
  size_t held_bytes = 0;
  // The task ends only when every task that was pushed while it ran (from its own thread, and by
  // those in turn) has ended too; their oldest error not yet raised becomes its error. Holds no
  // worker meanwhile. For Python callbacks.
  bool ends_with_children = false;
};

// One line of a trace. Times are steady-clock nanoseconds; `order` is the engine's global push
// number; early releases are listed so that the happens-before oracle can check them.
struct TraceEvent {
  uint64_t order = 0;
  std::string name;
  Lane lane;
  int64_t start_ns = 0;
  int64_t end_ns = 0;
  std::vector<uint64_t> reads;  // tag numbers
  std::vector<uint64_t> writes;
  std::vector<std::pair<uint64_t, int64_t>> released;  // (tag number, time)
  bool skipped = false;
  bool failed = false;
};

struct Limits {
  size_t max_tasks = 1 << 16;  // pending tasks before push blocks
  size_t max_bytes = 0;        // held bytes before push blocks; 0 = a quarter of memory
};

// Where a polled wait began; see the timed waits.
struct WaitPoint {
  uint64_t order = 0;  // push number that the wait covers; 0 = not begun
};

// Thread-safe, all of it. push and every wait may block; bind/ releases the GIL around them.
class Engine {
 public:
  virtual ~Engine() = default;  // closes

  virtual TagRef new_tag() = 0;

  // Appends the task to all of its tags atomically and returns at once, unless the queue bound
  // makes it wait (never on a lane worker, and a single task over the byte bound is admitted
  // alone). Throws Error after close, and what the wait hook throws.
  virtual void push(std::unique_ptr<Task> task) = 0;

  // Waits until every write pushed to the tag so far has ended; rethrows its error.
  virtual void wait_for_read(const TagRef& tag) = 0;
  // Waits until every access pushed to the tag so far has ended; rethrows its error.
  virtual void wait_for_write(const TagRef& tag) = 0;
  // Waits for everything pushed before; raises the oldest error not yet raised by any wait.
  virtual void wait_all() = 0;

  // The same waits with a time limit; false when it passed. Bind/ polls them so that Ctrl-C works.
  // Polls that pass one WaitPoint share the "so far" of the first of them, so that a producer that
  // never rests cannot keep the poller waiting for ever.
  virtual bool wait_for_read(const TagRef& tag, int64_t timeout_ms, WaitPoint* point = nullptr) = 0;
  virtual bool wait_for_write(const TagRef& tag, int64_t timeout_ms,
                              WaitPoint* point = nullptr) = 0;
  virtual bool wait_all(int64_t timeout_ms, WaitPoint* point = nullptr) = 0;

  // Inside a task: wait_all waits only for tasks pushed by that task (and by those in turn), since
  // others may wait for the task itself. A wait for a tag that the task holds returns at once when
  // its own access covers it, and is an Error when it could never return.

  // True when no access of the tag is pending and it carries no error.
  virtual bool idle(const TagRef& tag) const = 0;

  // Drains, joins every thread and refuses later pushes. Idempotent.
  virtual void close() = 0;
  // Around a fork: drains and joins; threads start again on the next push, in both processes.
  // `drained` is called, without any lock, when nothing runs any more and pushes wait; then the
  // engine's mutex is held over the fork. Bind/ takes the GIL in it: whoever waited for the GIL
  // while holding the mutex would wait for a thread that has the GIL and wants the mutex.
  virtual void before_fork(const std::function<void()>& drained = [] {}) = 0;
  virtual void after_fork() = 0;

  virtual void start_trace() = 0;
  virtual std::vector<TraceEvent> stop_trace() = 0;

  virtual void set_limits(const Limits& limits) = 0;
  // Threads of the whole process's core budget (all lanes, all CPU contexts).
  virtual void set_core_budget(int threads) = 0;
  virtual int core_budget() const = 0;
  virtual size_t pending() const = 0;
};

// The reference: runs each task inside push, on the calling thread.
std::unique_ptr<Engine> make_serial_engine();
std::unique_ptr<Engine> make_threaded_engine();

// Text of a call site ("train.py:12"); bind/ installs the resolver.
void set_site_resolver(std::function<std::string(uint32_t)> resolver);
std::string site_text(uint32_t site);

// What a thread that waits in push for room calls about every 50 ms, with no lock held; bind/ looks
// for Ctrl-C there. When it throws, nothing was pushed and push throws the same.
void set_wait_hook(std::function<void()> hook);

// A task's error with the task's description and site added; the original text comes first:
// "<original>; in <describe()>, created at <site_text>". Every wait throws a fresh one.
class TaskError : public Error {
 public:
  using Error::Error;
};

}  // namespace mixflow::engine
