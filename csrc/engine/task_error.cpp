#include "engine/task_error.h"

#include <atomic>
#include <mutex>
#include <utility>

namespace mixflow::engine {
namespace {

struct Resolver {
  std::mutex mutex;
  std::function<std::string(uint32_t)> function;
};

Resolver& resolver() {
  static Resolver instance;
  return instance;
}

std::string text_of(const std::exception_ptr& error) {
  try {
    std::rethrow_exception(error);
  } catch (const std::exception& e) {
    return e.what();
  } catch (...) {
    return "an exception of an unknown type";
  }
}

}  // namespace

void set_site_resolver(std::function<std::string(uint32_t)> function) {
  std::lock_guard<std::mutex> lock(resolver().mutex);
  resolver().function = std::move(function);
}

std::string site_text(uint32_t site) {
  if (site == 0) return "";
  std::function<std::string(uint32_t)> function;
  {
    std::lock_guard<std::mutex> lock(resolver().mutex);
    function = resolver().function;
  }
  return function ? function(site) : "";
}

std::string description(const Task& task) {
  try {
    return task.describe();
  } catch (...) {
    return "task";
  }
}

std::string failure_text(const std::exception_ptr& error, const Task* task, uint32_t number) {
  std::string text = text_of(error) + "; in " + (task ? description(*task) : "task");
  const std::string site = site_text(number);
  return site.empty() ? text : text + ", created at " + site;
}

FailureRef older(const FailureRef& a, const FailureRef& b) {
  if (!a || !b) return a ? a : b;
  return b->order < a->order ? b : a;
}

uint64_t next_engine_id() {
  static std::atomic<uint64_t> engines{0};
  return ++engines;
}

void UnraisedFailures::add(const FailureRef& failure) {
  if (failure->raised) return;
  failures_.emplace(failure->order, failure);
  if (failures_.size() > kMost) failures_.erase(std::prev(failures_.end()));
}

void UnraisedFailures::raise(const FailureRef& failure) {
  if (failure->raised) return;
  failure->raised = true;
  auto [first, last] = failures_.equal_range(failure->order);
  for (auto it = first; it != last; ++it) {
    if (it->second == failure) {
      failures_.erase(it);
      return;
    }
  }
}

FailureRef UnraisedFailures::take_oldest() {
  if (failures_.empty()) return nullptr;
  FailureRef failure = failures_.begin()->second;
  failure->raised = true;
  failures_.erase(failures_.begin());
  return failure;
}

}  // namespace mixflow::engine
