// Push, run and end of tasks. Waits are in threaded_waits.cpp.
#include "engine/threaded_engine.h"

#include <unistd.h>

#include <algorithm>
#include <chrono>

#include "engine/frames.h"

namespace mixflow::engine {
namespace {

constexpr int kMostInline = 8;  // inline tasks on one stack; deeper ones go to their lane
constexpr std::chrono::milliseconds kHookPeriod{50};

std::function<void()>& wait_hook() {
  static std::function<void()> hook = [] {};  // set once, before any thread waits
  return hook;
}

void refuse() { throw Error("[engine] push: expected an open engine, got a closed one"); }

size_t quarter_of_memory() {
  const long pages = sysconf(_SC_PHYS_PAGES);
  const long page = sysconf(_SC_PAGE_SIZE);
  if (pages <= 0 || page <= 0) return size_t{1} << 30;
  return static_cast<size_t>(pages) / 4 * static_cast<size_t>(page);
}

class RecordCompletion : public Completion {
 public:
  explicit RecordCompletion(Record& record) : record_(record) {}
  ~RecordCompletion() override {
    if (done_.exchange(true)) return;
    record_.engine.finish(record_, std::make_exception_ptr(Error("the task was abandoned")));
  }
  void done(std::exception_ptr error) override {
    check(!done_.exchange(true), "[engine] done: expected one call, got a second");
    record_.engine.finish(record_, error);  // may destroy this object
  }

 private:
  Record& record_;  // alive until done_
  std::atomic<bool> done_{false};
};

}  // namespace

void Record::release(const TagRef& tag, std::exception_ptr error) {
  engine.release(*this, tag, error);
}
std::shared_ptr<Completion> Record::defer() { return engine.defer(*this); }

ThreadedEngine::ThreadedEngine()
    : lanes_(mutex_,
             [this](Record& record, Lock& lock, Worker& worker) { execute(record, lock, worker); }),
      limits_default_(quarter_of_memory()) {
  limits_.max_bytes = limits_default_;
}

ThreadedEngine::~ThreadedEngine() { close(); }

TagRef ThreadedEngine::new_tag() { return std::make_shared<TagState>(id_, ++tags_); }

TagState& ThreadedEngine::checked(const TagRef& tag) const {
  check(tag && tag->engine_id() == id_, "[engine] expected a tag of this engine, got ",
        tag ? "a tag of another" : "none");
  return static_cast<TagState&>(*tag);
}

Record* ThreadedEngine::current() const { return TaskFrame::innermost(*this); }

void ThreadedEngine::push(std::unique_ptr<Task> task) {
  for (const TagRef& tag : task->reads) checked(tag);
  for (const TagRef& tag : task->writes) checked(tag);
  bool small = task->inline_ok && task->threads <= 1;
  // A worker of another lane does not wait for the GIL; other threads come from Python.
  if (task->lane.kind == LaneKind::python && lanes_.self()) small = false;
  auto owner = std::make_unique<Record>(*this, std::move(task));
  Record& record = *owner;
  record.short_task = small && record.lane.kind == LaneKind::small;
  Record* parent = current();
  Graveyard graveyard;  // destroyed after the lock
  Lock lock(mutex_);
  admit(lock, record, parent || lanes_.self());
  append(*owner.release(), parent);  // from here on the list owns it
  if (record.held > 0) return;
  if (small && may_run_inline(record)) return run_inline(record, lock);
  ready_.push_back(&record);
  handle_ready(graveyard);
}

// Waits for room, unless the caller is exempt, and reserves it. Throws once closed.
void ThreadedEngine::admit(Lock& lock, Record& record, bool exempt) {
  const size_t bytes = record.held_bytes;
  if (closed_ && !exempt) refuse();
  if (!exempt && (forking_ || !producers_.empty() || !fits(bytes))) {
    return wait_for_room(lock, bytes);
  }
  ++pending_;
  pending_bytes_ += bytes;
}

void ThreadedEngine::wait_for_room(Lock& lock, size_t bytes) {
  Producer producer;
  producer.bytes = bytes;
  producers_.push_back(&producer);
  const auto decided = [&] { return producer.admitted || producer.refused; };
  while (!producer.changed.wait_for(lock, kHookPeriod, decided)) {
    lock.unlock();
    std::exception_ptr stop;
    try {
      wait_hook()();
    } catch (...) {
      stop = std::current_exception();
    }
    lock.lock();
    if (stop) {
      give_up(producer);
      std::rethrow_exception(stop);
    }
  }
  if (producer.refused) refuse();
}

// Takes the producer out of the queue, or gives back the place that it got meanwhile.
void ThreadedEngine::give_up(Producer& producer) {
  producers_.erase(std::remove(producers_.begin(), producers_.end(), &producer), producers_.end());
  if (producer.admitted) {
    --pending_;
    pending_bytes_ -= producer.bytes;
    wake_end_waiters();
  }
  admit_producers();
}

bool ThreadedEngine::fits(size_t bytes) const {
  if (pending_ >= limits_.max_tasks) return false;
  return pending_bytes_ == 0 || pending_bytes_ + bytes <= limits_.max_bytes;
}

// A producer that was stopped goes on when a quarter of the queue is free, so that a full queue
// does not cost it one switch of threads per task.
bool ThreadedEngine::low() const {
  return pending_ <= limits_.max_tasks / 4 * 3 &&
         (pending_bytes_ == 0 || pending_bytes_ <= limits_.max_bytes / 4 * 3);
}

void ThreadedEngine::admit_producers() {
  if (producers_.empty() || forking_ || !low()) return;
  while (!producers_.empty() && fits(producers_.front()->bytes)) {
    Producer* producer = producers_.front();
    producers_.pop_front();
    ++pending_;
    pending_bytes_ += producer->bytes;
    producer->admitted = true;
    producer->changed.notify_one();
  }
}

// Into the list of pending tasks, the group of its parent and the queues of all its tags.
void ThreadedEngine::append(Record& record, Record* parent) {
  record.order = ++order_;
  record.previous = last_;
  (last_ ? last_->next : first_) = &record;
  last_ = &record;
  if (parent) {
    if (!parent->own_group) parent->own_group = Group::within(parent->member_of);
    record.member_of = parent->own_group;
    Group::enter(record.member_of.get());
  }
  if ((record.traced = trace_.on())) record.event.name = description(*record.task);
  for (Access& access : record) {
    if (!access.tag->append(access)) ++record.held;
  }
}

bool ThreadedEngine::may_run_inline(const Record& record) const {
  const Record& r = record;
  const bool clean = std::all_of(r.accesses, r.accesses + r.count,
                                 [](const Access& access) { return !access.tag->failure(); });
  return clean && TaskFrame::depth() < kMostInline;
}

void ThreadedEngine::run_inline(Record& record, Lock& lock) {
  lock.unlock();
  finish(record, call(record));
}

void ThreadedEngine::execute(Record& record, Lock& lock, Worker& worker) {
  lock.unlock();
  worker.graveyard.clear();
  const bool last = work_over(record, call(record));
  lock.lock();
  lanes_.over(worker);
  if (last) end(record, worker.graveyard);
}

void ThreadedEngine::finish(Record& record, const std::exception_ptr& error) {
  if (!work_over(record, error)) return;
  Graveyard graveyard;  // destroyed after the lock
  Lock lock(mutex_);
  end(record, graveyard);
}

// Runs the task on this thread; returns what it threw.
std::exception_ptr ThreadedEngine::call(Record& record) {
  if (record.traced) record.event.start_ns = now_ns();
  const TaskFrame frame(record);
  try {
    record.task->run(record);
  } catch (...) {
    return std::current_exception();
  }
  return nullptr;
}

// One of run and completion is over. True for the last: then the task object is gone, and the
// caller must end the record. After false the record may be gone at any time.
bool ThreadedEngine::work_over(Record& record, const std::exception_ptr& error) {
  if (const FailureRef failure = make_failure(record, error)) {
    Lock lock(mutex_);
    fail(record, failure);
  }
  if (record.open.fetch_sub(1, std::memory_order_acq_rel) != 1) return false;
  record.task.reset();
  return true;
}

FailureRef ThreadedEngine::make_failure(const Record& record,
                                        const std::exception_ptr& error) const {
  if (!error) return nullptr;
  auto failure = std::make_shared<Failure>();
  failure->order = record.order;
  failure->text = failure_text(error, record.task.get(), record.site);
  return failure;
}

void ThreadedEngine::fail(Record& record, const FailureRef& failure) {
  if (record.failure) return;
  record.failure = failure;
  record.event.failed = true;
  unraised_.add(failure);
}

void ThreadedEngine::release(Record& record, const TagRef& tag, const std::exception_ptr& error) {
  const FailureRef failure = make_failure(record, error);
  Graveyard graveyard;  // destroyed after the lock
  Lock lock(mutex_);
  Access* access = record.find(tag.get());
  check(access, "[engine] release: expected a tag that the task declared, got another");
  check(!access->released, "[engine] release: expected a tag that the task holds, got one that it ",
        "has released before");
  if (failure) unraised_.add(failure);
  if (record.traced) record.event.released.emplace_back(tag->number(), now_ns());
  access->tag->release(*access, failure, ready_);
  handle_ready(graveyard);
}

std::shared_ptr<Completion> ThreadedEngine::defer(Record& record) {
  check(!record.deferred, "[engine] defer: expected one call, got a second");
  record.deferred = true;
  record.open.fetch_add(1, std::memory_order_relaxed);
  return std::make_shared<RecordCompletion>(record);
}

void ThreadedEngine::end(Record& record, Graveyard& graveyard) {
  if (record.ends_with_children && record.own_group && record.own_group->pending > 0) {
    record.own_group->owner = &record;  // the last member ends it
    return;
  }
  end_one(record, graveyard);
  handle_ready(graveyard);
}

void ThreadedEngine::end_one(Record& record, Graveyard& graveyard) {
  if (record.ends_with_children && record.own_group && !record.failure) {
    const FailureRef& failure = record.own_group->failure;
    if (failure && !failure->raised) {
      record.failure = failure;
      record.event.failed = true;
    }
  }
  if (record.traced) record.event.end_ns = now_ns();
  for (Access& access : record) {
    if (!access.released) access.tag->release(access, record.failure, ready_);
  }
  if (record.traced) record_event(record);
  if (record.own_group) record.own_group->over = true;
  unlink(record, graveyard);
  if (record.member_of) leave_groups(record, graveyard);
  if (!end_waiters_.empty()) wake_end_waiters();
}

// Skips what inherits a failure, which may make more tasks ready, and queues the rest.
void ThreadedEngine::handle_ready(Graveyard& graveyard) {
  for (size_t i = 0; i < ready_.size(); ++i) {
    Record& record = *ready_[i];
    FailureRef inherited;
    for (const Access& access : record) {
      if (access.reads && !record.run_on_error) inherited = older(inherited, access.tag->failure());
    }
    if (!inherited) {
      lanes_.enqueue(record);
      continue;
    }
    record.failure = inherited;
    record.event.skipped = true;
    if (record.traced) record.event.start_ns = now_ns();
    end_one(record, graveyard);
  }
  ready_.clear();
}

void ThreadedEngine::leave_groups(Record& record, Graveyard& graveyard) {
  Group::leave(record.member_of.get(), record.failure);
  for (GroupRef group = record.member_of; group; group->next(), group = group->parent) {
    if (group->pending > 0 || !group->owner) continue;
    end_one(*std::exchange(group->owner, nullptr), graveyard);
  }
}

void ThreadedEngine::unlink(Record& record, Graveyard& graveyard) {
  (record.previous ? record.previous->next : first_) = record.next;
  (record.next ? record.next->previous : last_) = record.previous;
  --pending_;
  pending_bytes_ -= record.held_bytes;
  graveyard.emplace_back(&record);
  admit_producers();
}

void ThreadedEngine::record_event(Record& record) {
  record.event.order = record.order;
  record.event.lane = record.lane;
  for (const Access& access : record) {
    if (access.write) record.event.writes.push_back(access.tag->number());
    if (access.reads) record.event.reads.push_back(access.tag->number());
  }
  trace_.add(std::move(record.event));
}

void set_wait_hook(std::function<void()> hook) { wait_hook() = std::move(hook); }

std::unique_ptr<Engine> make_threaded_engine() { return std::make_unique<ThreadedEngine>(); }

}  // namespace mixflow::engine
