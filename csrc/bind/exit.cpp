// The ends of a process: interpreter exit and fork.
//
// The hazard: at exit a worker may need the GIL for a callback, so draining releases it; and a
// callback that never ends must not keep the process alive, so draining has a deadline.
#include <chrono>

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

void close_at_exit() {
  nb::gil_scoped_release unlocked;
  // Past the deadline the engine is left as it is: joining its threads could hang.
  if (drained_by(std::chrono::steady_clock::now() + kExitDeadline)) plan::engine().close();
}

void close() {
  nb::gil_scoped_release unlocked;
  plan::engine().close();
}

void before_fork() {
  nb::gil_scoped_release unlocked;
  plan::engine().before_fork();
}

}  // namespace

void bind_exit(nb::module_& m) {
  m.def("close", close, "Drains and closes the engine; every later push is an error.");
  nb::object at_exit = nb::cpp_function(close_at_exit);
  nb::module_::import_("atexit").attr("register")(at_exit);
  nb::object after = nb::cpp_function([] { plan::engine().after_fork(); });
  nb::module_::import_("os").attr("register_at_fork")(
      nb::arg("before") = nb::cpp_function(before_fork), nb::arg("after_in_parent") = after,
      nb::arg("after_in_child") = after);
}

}  // namespace mixflow::bind
