// The tasks that were pushed while one task ran, and by those in turn.
#pragma once

#include <cstddef>
#include <memory>

#include "engine/task_error.h"

namespace mixflow::engine {

struct Record;

// Guarded by the lock of the engine. A task that pushes others owns one, made at the first push.
struct Group {
  std::shared_ptr<Group> parent;  // the group that the owner itself belongs to
  // Members that have not ended, those of nested groups included: zero means that everything
  // which the owner has caused so far is over.
  size_t pending = 0;
  // Oldest failure of a member that no wait has raised; wait_all inside the owner raises it.
  FailureRef failure;
  Record* owner = nullptr;  // set while the owner's end waits for pending == 0 (threaded engine)

  static void enter(Group* group) {
    for (; group; group = group->parent.get()) ++group->pending;
  }
  static void leave(Group* group, const FailureRef& failed) {
    for (; group; group = group->parent.get()) {
      --group->pending;
      const bool fresh = group->failure && !group->failure->raised;
      group->failure = fresh ? older(group->failure, failed) : failed;
    }
  }
};
using GroupRef = std::shared_ptr<Group>;

}  // namespace mixflow::engine
