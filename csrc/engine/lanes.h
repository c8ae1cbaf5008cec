// Lanes: queues of ready tasks with the workers that run them, and the core budget they share.
#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "engine/record.h"

namespace mixflow::engine {

class Lanes;
struct LaneQueue;
using Lock = std::unique_lock<std::mutex>;
// Ended records; destroyed only where no lock is held.
using Graveyard = std::vector<std::unique_ptr<Record>>;

struct Worker {
  Lanes* lanes = nullptr;
  LaneQueue* lane = nullptr;
  bool running = false;    // a lane task is on its stack
  bool ending = false;     // its task is over and makes others ready
  int32_t leased = 0;      // cores of that task; the record may be gone before the run is over
  int blocked = 0;         // depth of waits of that task
  Record* next = nullptr;  // a short task that its last one made ready: it runs that first
  bool signalled = false;  // told to look for a task
  bool stop = false;
  std::condition_variable changed;
  Graveyard graveyard;
  std::thread thread;
};

struct LaneQueue {
  Lane lane;
  std::vector<Record*> ready;  // a heap: larger priority first, then push order
  // Tasks that a worker runs now, without those blocked in a wait. A worker takes a task only
  // while running < cap; a waiting task that resumes may exceed it for a while.
  int running = 0;
  int looking = 0;  // workers that are about to look for a task: each may serve one ready task
  bool starved = false;
  std::vector<Worker*> idle;
  std::vector<std::unique_ptr<Worker>> workers;
};

// Guarded by the engine's mutex: every method is called with it held, unless it says otherwise.
class Lanes {
 public:
  // Called and returning with the lock held, which it lets go while the task runs. Calls over()
  // between the run and the end of the task.
  using Execute = std::function<void(Record&, Lock&, Worker&)>;
  Lanes(std::mutex& mutex, Execute execute);

  // Queues a ready task and makes sure that a worker takes it.
  void enqueue(Record& record);
  // The run of the worker's task is over: hands its place and its cores on.
  void over(Worker& worker);
  void set_budget(int threads);
  int budget() const { return budget_; }

  // The lane worker that is the calling thread; null for any other thread.
  Worker* self() const;
  // Around a wait inside a lane task: hands its place and its cores on, so that a substitute can
  // run what it waits for; takes them back without waiting.
  void block(Worker& worker);
  void resume(Worker& worker);

  // Ends and joins every worker; no task may be pending. Lets the lock go meanwhile.
  void join(Lock& lock);

 private:
  LaneQueue& queue_of(const Lane& lane);
  int cap(const LaneQueue& queue) const;
  int32_t need(const Record& record, const LaneQueue& queue) const;
  void work(Worker& worker);
  void idle(Worker& worker, Lock& lock);
  Record* take(LaneQueue& queue);
  bool lease(LaneQueue& queue, Record& record);
  void wake(LaneQueue& queue);
  void start_worker(LaneQueue& queue);
  bool keep(Record& record);
  void serve_starved();

  std::mutex& mutex_;
  const Execute execute_;
  std::vector<std::unique_ptr<LaneQueue>> queues_;
  // Lanes whose first task waits for cores, oldest first. Only the front one may lease: a task
  // that wants many cores cannot be overtaken for ever by tasks that want one.
  std::deque<LaneQueue*> starved_;
  int budget_;
  // budget_ minus the leases of running tasks; negative only after a resume or a smaller budget.
  int free_;
};

}  // namespace mixflow::engine
