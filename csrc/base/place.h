// On which core a thread runs. Hints only: where the system has no such calls, nothing happens.
#pragma once

#include <atomic>
#include <chrono>

namespace mixflow {

using ThreadNumber = int;  // the system's; 0 = the calling thread

// Number of the calling thread for PlaceKeeper::move_away. 0 where unknown.
ThreadNumber this_thread_number();
// Core on which the calling thread runs; -1 where unknown.
int current_cpu();

// Two threads that wake one another in turn can share one core for a long time while another one
// idles: each sleeps before the system has a reason to move it. A keeper moves one of them; there
// is one keeper per thread that is moved.
class PlaceKeeper {
 public:
  // Moves the keeper's thread off core `cpu`, to any other that it may use; afterwards it may use
  // the same cores as before. At most once per millisecond, and by one caller at a time: a second
  // one would take what the first allows for a moment for what the thread may use.
  void move_away(ThreadNumber thread, int cpu);

 private:
  std::atomic_flag busy_ = ATOMIC_FLAG_INIT;
  std::chrono::steady_clock::time_point last_{};
};

}  // namespace mixflow
