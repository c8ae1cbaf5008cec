// What every binding needs of Python: objects that tasks own, waits that Ctrl-C can interrupt,
// error types, and the user's line.
//
// The hazard: engine workers hold no GIL, so they must never touch a reference count. An object
// that a task owned is buried, and the next thread that holds the GIL in a call of ours frees it.
#pragma once

#include <cxxabi.h>
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "base/error.h"

namespace mixflow::bind {

namespace nb = nanobind;

// Any thread, no GIL needed: runs `release` later, on a thread that holds the GIL.
void bury(std::function<void()> release);
// Needs the GIL. Cheap when nothing is buried.
void drain_graveyard();

// A reference that any thread may drop. Needs the GIL to be made and used, not to be destroyed.
using Held = std::shared_ptr<PyObject>;
Held hold(nb::handle object);

// Registers the translator from Error to mixflow.errors.MXNetError.
void install_errors();
// Sets the Python error that the translator would raise. Needs the GIL.
void set_python_error(const Error& error);
// Rethrows the Python error that is being handled as an Error with type name and message; a text
// of ours ("[operator] ...") is kept as it is. Needs the GIL, inside a catch block.
[[noreturn]] void throw_as_error(const nb::python_error& error);

// The interned line of the innermost frame outside this package; 0 when there is none. Needs the
// GIL.
uint32_t current_site();
std::string site_text(uint32_t site);
void install_sites();

// Releases the GIL for a scope.
//
// The hazard: a thread that asks for the GIL after the interpreter has gone is ended by Python in
// the middle of our frames, which terminates the process. So nothing here releases it any more once
// the engine was closed at exit (then nothing blocks either), and `close_at_exit` waits for those
// that are without it.
class Unlocked {
 public:
  Unlocked();
  ~Unlocked();
  Unlocked(const Unlocked&) = delete;
  Unlocked& operator=(const Unlocked&) = delete;

 private:
  PyThreadState* state_ = nullptr;
};

// A call of ours in which Python code may run: the first object of every such function.
//
// The hazard: Python code gives up the GIL, and a thread that asks for it after the interpreter has
// gone is ended by unwinding its stack: our destructors would then drop references without the GIL,
// and nanobind, whose frames cannot be unwound, ends the process. So `close_at_exit` waits until no
// other thread is in such a call, and from then on only the main thread may begin one.
class Entered {
 public:
  Entered();  // throws Error in threads other than the main one once the engine was closed at exit
  ~Entered();
  Entered(const Entered&) = delete;
  Entered& operator=(const Entered&) = delete;
};

// The process is ending: errors in threads other than the main one end them silently.
void begin_exit();
// The engine was closed at exit: no scope is unlocked or entered from here on.
void stop_unlocking();
// Whether another thread is without the GIL in a call of ours, or is in one that may run Python.
bool others_inside();
// In the child of a fork, where only the forking thread is left.
void forget_other_threads();
// All of these need the GIL.

// Never returns: what becomes of a worker whose Python has gone.
[[noreturn]] void park();

// Calls attempt(timeout_ms) without the GIL until it returns true; Ctrl-C raises in between.
template <class Attempt>
void wait_interruptibly(const Attempt& attempt) {
  constexpr int64_t kPollMs = 50;
  drain_graveyard();
  while (true) {
    bool ended = false;
    {
      Unlocked unlocked;
      ended = attempt(kPollMs);
    }
    drain_graveyard();
    if (ended) return;
    if (PyErr_CheckSignals() != 0) throw nb::python_error();
  }
}

// Calls push() without the GIL, because a full queue blocks.
template <class Push>
auto push_unlocked(const Push& push) {
  drain_graveyard();
  Unlocked unlocked;
  return push();
}

}  // namespace mixflow::bind
