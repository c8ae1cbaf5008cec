// The helpers of a thread that runs wide tasks: a team whose owner never waits for a late helper.
#pragma once

#include <atomic>
#include <chrono>
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
// its core costs the piece that it holds. Each member begins with pieces of its own, the same ones
// for the same number of pieces, so that what it wrote before is in its core's cache; only when
// these are gone does it take those of others. Idle helpers look out for work for a while, letting
// others run meanwhile, and then sleep.
//
// Owned by one thread: only that one may call its methods.
class WorkerTeam final : public Team {
 public:
  explicit WorkerTeam(int helpers);
  ~WorkerTeam() override;  // joins
  WorkerTeam(const WorkerTeam&) = delete;
  WorkerTeam& operator=(const WorkerTeam&) = delete;

  // Members, the owner included; fewer serve where the system refused to start one.
  int size() const override { return size_; }
  int most() const { return most_; }
  // Members that later rounds count on: 1 to most(). The other helpers sleep.
  void resize(int members);
  // Work is about to come: wakes helpers that sleep. Does not block.
  void summon();
  // Whether a helper looks out for work.
  bool awake() const;

 protected:
  void run_pieces(int pieces, const void* object, Call call) override;

 private:
  // Pieces of one member: round (32 bits), end (16), next piece (16). A claim succeeds only in the
  // round that it has seen, so that `job_` is the one that the claimed piece belongs to.
  struct alignas(64) Ticket {
    std::atomic<uint64_t> value{0};
  };
  struct Helper {
    std::thread thread;
    std::atomic<ThreadNumber> number{0};
    std::atomic<uint32_t> sleeps{1};  // begun and ended; odd while it sleeps or has not started
    std::condition_variable called;
    PlaceKeeper place;
    // The owner's: the sleep from which it called the helper last, and when.
    uint32_t called_at = 0;
    std::chrono::steady_clock::time_point woken;

    bool awake() const { return sleeps.load() % 2 == 0; }
  };
  struct Job {
    const void* object = nullptr;
    Call call = nullptr;
  };

  void publish(int pieces);
  void call(Helper& helper);
  int claim(Ticket& ticket);
  int claim_any(int member);
  void perform(int piece);
  void work(int member);
  bool look_out(const Ticket& ticket, uint32_t* seen) const;
  void sleep(int member, uint32_t seen);
  void keep_apart();
  void wait_for_last();

  const int most_;
  int size_;                     // the owner's
  std::vector<Ticket> tickets_;  // by member; the owner is member 0
  Job job_;                      // written by the owner while no piece is out
  std::atomic<int> left_{0};     // pieces that are not over
  std::atomic<int> owner_cpu_{-1};
  std::mutex mutex_;
  std::condition_variable over_;
  std::atomic<bool> owner_sleeps_{false};
  bool stop_ = false;         // guarded by mutex_
  std::exception_ptr error_;  // guarded by mutex_
  std::vector<std::unique_ptr<Helper>> helpers_;
};

// The team of the calling thread and `threads` - 1 helpers, which look out for work; made when it
// is first asked for or asked for more members than it has. Its helpers end with the thread. Only
// for threads that are joined before a fork.
WorkerTeam& summon_team(int threads);
// The same team, with at most so many members, if some of its helpers are awake, else null: for
// work too short to wake anybody.
WorkerTeam* awake_team(int threads);

}  // namespace mixflow::engine
