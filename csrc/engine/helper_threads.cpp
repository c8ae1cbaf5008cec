#include "engine/helper_threads.h"

#include <utility>

namespace mixflow::engine {
namespace {

thread_local bool on_helper = false;

}  // namespace

void HelperThreads::work(Helper& helper) {
  on_helper = true;
  std::unique_lock<std::mutex> lock(helper.mutex);
  for (;;) {
    helper.changed.wait(lock, [&] { return helper.job || helper.stop; });
    if (!helper.job) return;
    lock.unlock();
    (*helper.job)();
    lock.lock();
    helper.job = nullptr;
    helper.changed.notify_all();
  }
}

std::unique_ptr<HelperThreads::Helper> HelperThreads::take() {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    ++busy_;
    if (!idle_.empty()) {
      auto helper = std::move(idle_.back());
      idle_.pop_back();
      return helper;
    }
  }
  auto helper = std::make_unique<Helper>();
  helper->thread = std::thread([raw = helper.get()] { work(*raw); });
  return helper;
}

void HelperThreads::run(const std::function<void()>& job) {
  if (on_helper) return job();
  auto helper = take();
  {
    std::unique_lock<std::mutex> lock(helper->mutex);
    helper->job = &job;
    helper->changed.notify_all();
    helper->changed.wait(lock, [&] { return helper->job == nullptr; });
  }
  std::lock_guard<std::mutex> lock(mutex_);
  idle_.push_back(std::move(helper));
  --busy_;
  returned_.notify_all();
}

void HelperThreads::join() {
  std::unique_lock<std::mutex> guard(mutex_);
  returned_.wait(guard, [this] { return busy_ == 0; });
  for (auto& helper : idle_) {
    {
      std::lock_guard<std::mutex> lock(helper->mutex);
      helper->stop = true;
      helper->changed.notify_all();
    }
    helper->thread.join();
  }
  idle_.clear();
}

}  // namespace mixflow::engine
