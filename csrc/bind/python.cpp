#include "bind/python.h"

#include <atomic>
#include <mutex>
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

void set_python_error(const Error& error) { PyErr_SetString(error_type, error.what()); }

void install_errors() {
  error_type =
      nb::object(nb::module_::import_("mixflow.errors").attr("MXNetError")).release().ptr();
  nb::register_exception_translator([](const std::exception_ptr& p, void*) {
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
