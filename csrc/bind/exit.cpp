// The ends of a process: interpreter exit and fork.
//
// The hazard: at exit a worker may need the GIL for a callback, so draining releases it; and a
// callback that never ends must not keep the process alive, so draining has a deadline. Daemon
// threads go on to the last moment: see Unlocked and Entered.
#include <chrono>
#include <memory>
#include <thread>

#include "bind/modules.h"
#include "bind/waits.h"

namespace mixflow::bind {
namespace {

constexpr std::chrono::seconds kExitDeadline{10};

bool drained_by(std::chrono::steady_clock::time_point deadline) {
  while (std::chrono::steady_clock::now() < deadline) {
    try {
      if (plan::engine().wait_all(50)) return true;
    } catch (const std::exception&) {  // an error that nobody waited for: exit goes on
    }
  }
  return false;
}

// False when the deadline passed. The engine is left as it is then: joining its threads could hang.
bool close_by(std::chrono::steady_clock::time_point deadline) {
  Unlocked unlocked;
  if (!drained_by(deadline)) return false;
  plan::engine().close();
  return true;
}

void close_at_exit() {
  const auto deadline = std::chrono::steady_clock::now() + kExitDeadline;
  begin_exit();
  if (!close_by(deadline)) return;
  stop_unlocking();
  while (others_inside() && std::chrono::steady_clock::now() < deadline) {
    nb::gil_scoped_release others;  // not an Unlocked: that does nothing from now on
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
}

void close() {
  Unlocked unlocked;
  plan::engine().close();
}

void before_fork() {
  auto unlocked = std::make_unique<Unlocked>();
  plan::engine().before_fork([&] { unlocked.reset(); });
}

}  // namespace

void bind_exit(nb::module_& m) {
  m.def("close", close, "Drains and closes the engine; every later push is an error.");
  nb::object at_exit = nb::cpp_function(close_at_exit);
  nb::module_::import_("atexit").attr("register")(at_exit);
  nb::object after = nb::cpp_function([] { plan::engine().after_fork(); });
  nb::object after_in_child = nb::cpp_function([] {
    forget_other_threads();
    plan::engine().after_fork();
  });
  nb::module_::import_("os").attr("register_at_fork")(
      nb::arg("before") = nb::cpp_function(before_fork), nb::arg("after_in_parent") = after,
      nb::arg("after_in_child") = after_in_child);
}

}  // namespace mixflow::bind
