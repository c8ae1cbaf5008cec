// The end of an asynchronous task as Python holds it.
#pragma once

#include <atomic>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "bind/python.h"
#include "engine/engine.h"

namespace mixflow::bind {

// What an asynchronous callback gets: the task ends when `done` is called, from any thread. A lost
// one ends the task with an error.
class Ending {
 public:
  explicit Ending(std::shared_ptr<engine::Completion> completion)
      : completion_(std::move(completion)) {}

  // False if the task has ended before.
  bool done(std::exception_ptr error) {
    if (ended_.exchange(true)) return false;
    completion_->done(std::move(error));
    return true;
  }

 private:
  std::shared_ptr<engine::Completion> completion_;
  std::atomic<bool> ended_{false};
};

struct PyCompletion {
  std::shared_ptr<Ending> ending;

  void done(const std::optional<std::string>& error) {
    Unlocked unlocked;
    check(ending->done(error ? std::make_exception_ptr(Error(*error)) : nullptr),
          "[push] expected one call of done, got a second one");
  }
};

}  // namespace mixflow::bind
