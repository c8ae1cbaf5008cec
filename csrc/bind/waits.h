// Waits for arrays as Python sees them: interruptible, quick when nothing is pending.
#pragma once

#include "bind/python.h"
#include "kvstore/lane.h"
#include "plan/array.h"
#include "plan/runtime.h"

namespace mixflow::bind {

inline void wait_to_read(const plan::Array& array) {
  const engine::TagRef& tag = array.chunk->tag();
  if (plan::engine().idle(tag)) return drain_graveyard();
  engine::WaitPoint point;
  wait_interruptibly([&](int64_t ms) {
    kvstore::help_with(tag, ms);
    return plan::engine().wait_for_read(tag, ms, &point);
  });
}

inline void wait_to_write(const plan::Array& array) {
  const engine::TagRef& tag = array.chunk->tag();
  if (plan::engine().idle(tag)) return drain_graveyard();
  engine::WaitPoint point;
  wait_interruptibly([&](int64_t ms) {
    kvstore::help_with(tag, ms);
    return plan::engine().wait_for_write(tag, ms, &point);
  });
}

}  // namespace mixflow::bind
