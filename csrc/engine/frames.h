// The tasks that run on the stack of this thread: one from a lane, and those run inline in it.
#pragma once

#include "engine/record.h"

namespace mixflow::engine {

class TaskFrame {
 public:
  explicit TaskFrame(Record& record) : record_(record), outer_(top_), depth_(depth() + 1) {
    top_ = this;
  }
  ~TaskFrame() { top_ = outer_; }
  TaskFrame(const TaskFrame&) = delete;
  TaskFrame& operator=(const TaskFrame&) = delete;

  static const TaskFrame* top() { return top_; }
  static int depth() { return top_ ? top_->depth_ : 0; }
  // The innermost task of this engine; null outside of its tasks.
  static Record* innermost(const ThreadedEngine& engine) {
    for (const TaskFrame* frame = top_; frame; frame = frame->outer_) {
      if (&frame->record_.engine == &engine) return &frame->record_;
    }
    return nullptr;
  }
  Record& record() const { return record_; }
  const TaskFrame* outer() const { return outer_; }

 private:
  static inline thread_local TaskFrame* top_ = nullptr;
  Record& record_;
  TaskFrame* const outer_;
  const int depth_;
};

}  // namespace mixflow::engine
