// The tasks that were pushed while one task ran, and by those in turn.
#pragma once

#include <cstddef>
#include <memory>

#include "engine/task_error.h"

namespace mixflow::engine {

struct Record;

// Guarded by the lock of the engine. A task that pushes others owns one, made at the first push.
struct Group {
  // Nearest group around it whose owner has not ended; a group whose owner has ended is passed
  // over at every walk, so that a chain of tasks that push their successors stays short.
  std::shared_ptr<Group> parent;
  bool over = false;  // its owner has ended: nobody asks for it any more
  // Members that have not ended, those of nested groups included: zero means that everything
  // which the owner has caused so far is over.
  size_t pending = 0;
  // Oldest failure of a member that no wait has raised; wait_all inside the owner raises it.
  FailureRef failure;
  Record* owner = nullptr;  // set while the owner's end waits for pending == 0 (threaded engine)

  // The group of a task that is a member of `around`.
  static std::shared_ptr<Group> within(const std::shared_ptr<Group>& around) {
    auto group = std::make_shared<Group>();
    group->parent = around;
    return group;
  }
  static void enter(Group* group) {
    for (; group; group = group->next()) ++group->pending;
  }
  static void leave(Group* group, const FailureRef& failed) {
    for (; group; group = group->next()) {
      --group->pending;
      if (!failed) continue;
      const bool fresh = group->failure && !group->failure->raised;
      group->failure = fresh ? older(group->failure, failed) : failed;
    }
  }
  // The parent, after dropping those that are over. A walk that enters and one that leaves may
  // differ only in groups that are over, whose counts mean nothing.
  Group* next() {
    while (parent && parent->over) parent = std::shared_ptr<Group>(parent->parent);
    return parent.get();
  }
};
using GroupRef = std::shared_ptr<Group>;

}  // namespace mixflow::engine
