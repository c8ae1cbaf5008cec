// The helpers of a thread that runs wide tasks: a team whose owner never waits for a late helper.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <exception>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "base/place.h"
#include "base/team.h"

namespace mixflow::engine {

// Hazard: a parallel region with one fixed part per thread ends when the slowest thread ends. A
// helper that the system wakes late, or puts on the owner's core, doubles the time of the region.
// Here pieces are claimed one by one: a helper that is not there costs nothing, and one that loses
// its core costs the piece that it holds. Idle helpers look out for work for some microseconds,
// letting others run meanwhile, and then sleep.
//
// Owned by one thread: only that one may call its methods.
class WorkerTeam final : public Team {
 public:
  explicit WorkerTeam(int helpers);
  ~WorkerTeam() override;  // joins
  WorkerTeam(const WorkerTeam&) = delete;
  WorkerTeam& operator=(const WorkerTeam&) = delete;

  // As asked for; fewer threads serve where the system refused to start one.
  int size() const { return size_; }
  // Work is about to come: wakes helpers that sleep. Does not block.
  void summon();

 protected:
  void run_pieces(int pieces, const void* object, Call call) override;

 private:
  struct Helper {
    std::thread thread;
    std::atomic<ThreadNumber> number{0};
    std::atomic<bool> awake{false};
  };
  struct Job {
    const void* object = nullptr;
    Call call = nullptr;
  };

  void publish(uint32_t pieces);
  int claim();
  void perform(int piece);
  void work(Helper& helper);
  bool look_out(uint32_t* round);
  void sleep(Helper& helper, uint32_t round);
  void keep_apart(Helper& helper);
  void wait_for_last();
  uint32_t round() const;

  // Round (32 bits), number of pieces (16), next piece (16): a claim succeeds only in the round
  // that it has seen, so that `job_` is the one that the claimed piece belongs to.
  std::atomic<uint64_t> ticket_{0};
  Job job_;                    // written by the owner while no piece is out
  std::atomic<int> left_{0};   // pieces that are not over
  std::atomic<int> owner_cpu_{-1};
  std::mutex mutex_;
  std::condition_variable work_, over_;
  std::atomic<int> sleeping_{0};  // helpers that wait for `work_`
  std::atomic<bool> owner_sleeps_{false};
  bool stop_ = false;             // guarded by mutex_
  std::exception_ptr error_;      // guarded by mutex_
  PlaceKeeper places_;            // the owner's
  const int size_;
  std::vector<std::unique_ptr<Helper>> helpers_;
};

// The team of the calling thread and `threads` - 1 helpers, which look out for work; made when it is
// first asked for or asked for another size. Its helpers end with the thread. Only for threads that
// are joined before a fork.
WorkerTeam& summon_team(int threads);

}  // namespace mixflow::engine
