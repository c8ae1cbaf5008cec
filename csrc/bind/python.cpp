#include "bind/python.h"

#include "engine/engine.h"

#include <atomic>
#include <chrono>
#include <mutex>
#include <thread>
#include <vector>

namespace mixflow::bind {
namespace {

struct Graveyard {
  std::mutex mutex;
  std::vector<std::function<void()>> buried;
  std::atomic<bool> any{false};
};

// Leaked: workers may bury during static destruction.
Graveyard& graveyard() {
  static Graveyard* instance = new Graveyard();  // NOLINT: see above
  return *instance;
}

PyObject* error_type = nullptr;  // mixflow.errors.MXNetError, for the life of the process

// All guarded by the GIL.
int unlocked = 0;
int threads_entered = 0;
bool exiting = false;
bool closed_at_exit = false;
unsigned long main_thread = 0;

thread_local int entered = 0;  // calls on this thread's stack

bool finalizing() {
#if PY_VERSION_HEX >= 0x030D0000
  return Py_IsFinalizing() != 0;
#else
  return _Py_IsFinalizing() != 0;
#endif
}

void look_for_signals() {
  if (finalizing()) park();
  nb::gil_scoped_acquire locked;
  if (PyErr_CheckSignals() != 0) throw nb::python_error();
}

}  // namespace

void bury(std::function<void()> release) {
  Graveyard& yard = graveyard();
  std::lock_guard<std::mutex> lock(yard.mutex);
  yard.buried.push_back(std::move(release));
  yard.any.store(true, std::memory_order_release);
}

void drain_graveyard() {
  Graveyard& yard = graveyard();
  while (yard.any.load(std::memory_order_acquire)) {
    std::vector<std::function<void()>> taken;
    {
      std::lock_guard<std::mutex> lock(yard.mutex);
      taken.swap(yard.buried);
      yard.any.store(false, std::memory_order_release);
    }
    for (auto& release : taken) release();  // may run Python code, and bury more
  }
}

Held hold(nb::handle object) {
  return Held(object.inc_ref().ptr(), [](PyObject* dead) { bury([dead] { Py_DECREF(dead); }); });
}

Unlocked::Unlocked() {
  if (closed_at_exit) return;
  ++unlocked;
  state_ = PyEval_SaveThread();
}

Unlocked::~Unlocked() {
  if (!state_) return;
  if (finalizing()) park();
  PyEval_RestoreThread(state_);
  --unlocked;
}

Entered::Entered() {
  if (closed_at_exit && PyThread_get_thread_ident() != main_thread) {
    throw Error("[engine] expected an open engine, got one that was closed at exit");
  }
  if (entered++ == 0) ++threads_entered;
}

Entered::~Entered() {
  if (--entered == 0) --threads_entered;
}

void begin_exit() {
  exiting = true;
  main_thread = PyThread_get_thread_ident();
}
void stop_unlocking() { closed_at_exit = true; }
bool others_inside() { return unlocked > 0 || threads_entered > (entered > 0 ? 1 : 0); }
void forget_other_threads() {
  unlocked = 0;
  threads_entered = entered > 0 ? 1 : 0;
}

void park() {
  while (true) std::this_thread::sleep_for(std::chrono::hours(1));
}

// A daemon thread that meets the closed engine at exit ends as it would have ended anyway: silently.
void set_python_error(const Error& error) {
  if (exiting && PyThread_get_thread_ident() != main_thread) {
    PyErr_SetNone(PyExc_SystemExit);
    return;
  }
  PyErr_SetString(error_type, error.what());
}

void install_errors() {
  error_type =
      nb::object(nb::module_::import_("mixflow.errors").attr("MXNetError")).release().ptr();
  engine::set_wait_hook(look_for_signals);
  nb::register_exception_translator([](const std::exception_ptr& p, void*) {
    if (!p) park();  // Python ends the thread, see Entered: its deadline had passed
    try {
      std::rethrow_exception(p);
    } catch (const Error& error) {
      set_python_error(error);
    }
  });
}

void throw_as_error(const nb::python_error& error) {
  const std::string text = nb::str(error.value()).c_str();
  if (!text.empty() && text[0] == '[') throw Error(text);
  const std::string type = nb::str(error.type().attr("__name__")).c_str();
  throw Error(type + ": " + text);
}

}  // namespace mixflow::bind
