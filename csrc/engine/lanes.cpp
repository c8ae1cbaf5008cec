#include "engine/lanes.h"

#include <algorithm>
#include <system_error>
#include <utility>

namespace mixflow::engine {
namespace {

constexpr int kIoWorkers = 4;

thread_local Worker* this_worker = nullptr;

bool runs_later(const Record* a, const Record* b) {
  if (a->priority != b->priority) return a->priority < b->priority;
  return a->order > b->order;
}

// Files and sockets keep no core busy; the python worker's cores are the interpreter's affair.
bool leases(LaneKind kind) { return kind != LaneKind::io && kind != LaneKind::python; }

}  // namespace

Lanes::Lanes(std::mutex& mutex, Execute execute)
    : mutex_(mutex),
      execute_(std::move(execute)),
      budget_(std::max(1, static_cast<int>(std::thread::hardware_concurrency()))),
      free_(budget_) {}

void Lanes::enqueue(Record& record) {
  if (keep(record)) return;
  LaneQueue& queue = queue_of(record.lane);
  queue.ready.push_back(&record);
  std::push_heap(queue.ready.begin(), queue.ready.end(), runs_later);
  wake(queue);
}

void Lanes::set_budget(int threads) {
  free_ += threads - budget_;
  budget_ = threads;
  serve_starved();
  for (auto& queue : queues_) wake(*queue);
}

Worker* Lanes::self() const {
  return this_worker && this_worker->lanes == this ? this_worker : nullptr;
}

void Lanes::block(Worker& worker) {
  if (worker.blocked++ > 0) return;
  --worker.lane->running;
  free_ += worker.leased;
  serve_starved();
  wake(*worker.lane);
}

void Lanes::resume(Worker& worker) {
  if (--worker.blocked > 0) return;
  ++worker.lane->running;
  free_ -= worker.leased;
}

void Lanes::join(Lock& lock) {
  const auto queues = std::move(queues_);
  queues_.clear();
  starved_.clear();
  for (const auto& queue : queues) {
    for (const auto& worker : queue->workers) {
      worker->stop = true;
      worker->changed.notify_one();
    }
  }
  lock.unlock();
  for (const auto& queue : queues) {
    for (const auto& worker : queue->workers) worker->thread.join();
  }
  lock.lock();
}

LaneQueue& Lanes::queue_of(const Lane& asked) {
  const Lane lane = asked.kind == LaneKind::python ? Lane{LaneKind::python, 0} : asked;
  for (auto& queue : queues_) {
    if (queue->lane == lane) return *queue;
  }
  queues_.push_back(std::make_unique<LaneQueue>());
  queues_.back()->lane = lane;
  return *queues_.back();
}

int Lanes::cap(const LaneQueue& queue) const {
  switch (queue.lane.kind) {
    case LaneKind::small:
      return budget_;
    case LaneKind::io:
      return kIoWorkers;
    default:
      return 1;
  }
}

int32_t Lanes::need(const Record& record, const LaneQueue& queue) const {
  return queue.lane.kind == LaneKind::small ? 1 : std::min(record.wanted, budget_);
}

// At the top of the loop the worker is counted in `looking`.
void Lanes::work(Worker& worker) {
  this_worker = &worker;
  Lock lock(mutex_);
  for (;;) {
    Record* kept = std::exchange(worker.next, nullptr);
    Record* record = kept ? kept : take(*worker.lane);
    if (record) {
      worker.running = true;
      worker.leased = record->leased;
      execute_(*record, lock, worker);
      worker.ending = false;
    } else if (!worker.graveyard.empty()) {
      lock.unlock();
      worker.graveyard.clear();
      lock.lock();
    } else if (worker.stop) {
      return;
    } else {
      idle(worker, lock);
    }
  }
}

void Lanes::over(Worker& worker) {
  worker.running = false;
  worker.ending = true;
  --worker.lane->running;
  ++worker.lane->looking;
  free_ += worker.leased;
  if (worker.leased > 0) serve_starved();
}

void Lanes::idle(Worker& worker, Lock& lock) {
  --worker.lane->looking;
  worker.lane->idle.push_back(&worker);
  worker.changed.wait(lock, [&] { return worker.signalled || worker.stop; });
  worker.signalled = false;
}

// The first ready task, if the lane has room for it and its cores are free.
Record* Lanes::take(LaneQueue& queue) {
  if (queue.ready.empty() || queue.running >= cap(queue)) return nullptr;
  Record* record = queue.ready.front();
  if (leases(queue.lane.kind) && !lease(queue, *record)) return nullptr;
  std::pop_heap(queue.ready.begin(), queue.ready.end(), runs_later);
  queue.ready.pop_back();
  --queue.looking;
  ++queue.running;
  if (!queue.ready.empty()) wake(queue);
  return record;
}

// A short task that a worker makes ready as it ends another one stays with that worker: waking a
// second one costs more than the task, and the two then wake each other in turn. Not where others
// wait for the cores, for the worker (a chain of short tasks has no end) or came before.
bool Lanes::keep(Record& record) {
  Worker* worker = record.short_task ? self() : nullptr;
  if (!worker || !worker->ending || worker->stop || worker->next) return false;
  const LaneQueue& own = *worker->lane;
  if (!leases(own.lane.kind) || !starved_.empty() || free_ < 1) return false;
  if (!own.ready.empty() || own.running >= cap(own)) return false;
  if (!queue_of(record.lane).ready.empty()) return false;
  record.leased = std::min(free_, std::max(worker->leased, 1));  // what its helpers have, too
  free_ -= record.leased;
  --worker->lane->looking;
  ++worker->lane->running;
  worker->next = &record;
  return true;
}

bool Lanes::lease(LaneQueue& queue, Record& record) {
  const int32_t wanted = need(record, queue);
  const bool first = starved_.empty() || starved_.front() == &queue;
  if (!first || free_ < wanted) {
    if (!queue.starved) starved_.push_back(&queue);
    queue.starved = true;
    return false;
  }
  record.leased = wanted;
  free_ -= wanted;
  if (queue.starved) {
    starved_.pop_front();
    queue.starved = false;
    serve_starved();
  }
  return true;
}

// Makes sure that one more worker looks for a task, if that can help.
void Lanes::wake(LaneQueue& queue) {
  if (static_cast<size_t>(queue.looking) >= queue.ready.size()) return;
  if (queue.running + queue.looking >= cap(queue)) return;
  ++queue.looking;
  if (queue.idle.empty()) return start_worker(queue);
  Worker* worker = queue.idle.back();
  queue.idle.pop_back();
  worker->signalled = true;
  worker->changed.notify_one();
}

void Lanes::start_worker(LaneQueue& queue) {
  queue.workers.push_back(std::make_unique<Worker>());
  Worker* worker = queue.workers.back().get();
  worker->lanes = this;
  worker->lane = &queue;
  try {
    worker->thread = std::thread([this, worker] { work(*worker); });
  } catch (const std::system_error&) {
    // No more threads now: the workers that exist go on, and the next push tries again.
    queue.workers.pop_back();
    --queue.looking;
  }
}

void Lanes::serve_starved() {
  while (!starved_.empty()) {
    LaneQueue& queue = *starved_.front();
    if (!queue.ready.empty() && queue.running < cap(queue)) {
      if (free_ >= need(*queue.ready.front(), queue)) wake(queue);
      return;
    }
    // It takes its place again when it next has room.
    starved_.pop_front();
    queue.starved = false;
  }
}

}  // namespace mixflow::engine
