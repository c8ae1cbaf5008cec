// Threads that the serial engine owns, for tasks that open parallel regions.
#pragma once

#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

namespace mixflow::engine {

// Runs a function on a thread of its own while the caller waits. Thread-safe. An OpenMP runtime
// keeps a team per thread that opened a region; teams of user threads would not survive a fork
// and could not be joined, so parallel regions run only here.
class HelperThreads {
 public:
  ~HelperThreads() { join(); }
  // Blocking. Runs on the caller itself when that is one of the helpers.
  void run(const std::function<void()>& job);
  // Waits for calls of run() that are about to return, then ends all threads; a later run()
  // starts new ones. No job may be running.
  void join();

 private:
  struct Helper {
    std::thread thread;
    std::mutex mutex;
    std::condition_variable changed;
    const std::function<void()>* job = nullptr;  // set by the caller, cleared by the helper
    bool stop = false;
  };
  static void work(Helper& helper);
  std::unique_ptr<Helper> take();

  std::mutex mutex_;
  int busy_ = 0;  // helpers that calls of run() hold
  std::condition_variable returned_;
  std::vector<std::unique_ptr<Helper>> idle_;  // helpers without a job; others belong to callers
};

}  // namespace mixflow::engine
