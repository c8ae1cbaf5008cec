// The engine as Python sees it: callbacks as tasks, waits, traces, limits.
#include "engine/engine.h"

#include <nanobind/stl/optional.h>

#include <optional>

#include "bind/completion.h"
#include "bind/modules.h"
#include "bind/waits.h"

namespace mixflow::bind {
namespace {

// Calls a Python function on a worker of the python lane.
template <class... Args>
void call_python(const Held& function, Args&&... args) {
  const nb::gil_scoped_acquire locked;
  drain_graveyard();
  try {
    nb::handle(function.get())(nb::cast(std::forward<Args>(args))...);
  } catch (const nb::python_error& error) {
    throw_as_error(error);
  } catch (const abi::__forced_unwind&) {
    park();
  }
}

// Runs a Python callable on the python lane. It ends when everything that the callable pushed has
// ended. When it was itself pushed by a host call, what it pushes belongs to that call too.
class CallbackTask final : public engine::Task {
 public:
  CallbackTask(Held function, std::string name)
      : function_(std::move(function)), name_(std::move(name)), outer_(plan::current_scope()) {
    lane = engine::Lane{engine::LaneKind::python, 0};
    ends_with_children = true;
    if (outer_) outer_->mark_used();
  }

  void run(engine::TaskContext&) override {
    try {
      plan::with_scope(outer_, [this] { call_python(function_); });
    } catch (...) {
      if (outer_) outer_->fail(std::current_exception(), name_);
      throw;
    }
  }
  std::string describe() const override { return name_; }

 private:
  Held function_;
  std::string name_;
  plan::ScopeRef outer_;
};

// Starts something that goes on elsewhere (a message to a server); holds no worker meanwhile.
class AsynchronousTask final : public engine::Task {
 public:
  AsynchronousTask(Held function, std::string name)
      : function_(std::move(function)), name_(std::move(name)) {
    lane = engine::Lane{engine::LaneKind::python, 0};
  }

  void run(engine::TaskContext& context) override {
    const auto ending = std::make_shared<Ending>(context.defer());
    try {
      call_python(function_, PyCompletion{ending});
    } catch (...) {
      ending->done(std::current_exception());
    }
  }
  std::string describe() const override { return name_; }

 private:
  Held function_;
  std::string name_;
};

std::unique_ptr<engine::Task> callback_task(Held function, const std::string& name,
                                            bool asynchronous) {
  if (asynchronous) return std::make_unique<AsynchronousTask>(std::move(function), name);
  return std::make_unique<CallbackTask>(std::move(function), name);
}

void push_callback(nb::handle function, nb::handle reads, nb::handle writes,
                   const std::string& name, int priority, const std::string& lane,
                   bool asynchronous, bool inline_ok) {
  const Entered scope;
  check(lane == "python", "[push] expected lane 'python' for a Python callback, got '", lane, "'");
  check(asynchronous || !inline_ok,
        "[push] expected 'inline_ok' for an asynchronous callback only, got a plain one");
  check(PyCallable_Check(function.ptr()) != 0, "[push] expected a callable, got ",
        Py_TYPE(function.ptr())->tp_name);
  auto task = callback_task(hold(function), name, asynchronous);
  task->priority = priority;
  task->inline_ok = inline_ok;
  task->site = current_site();
  for (nb::handle item : reads) task->reads.push_back(chunk_of(item)->tag());
  for (nb::handle item : writes) {
    const plan::ChunkRef& chunk = chunk_of(item);
    plan::Array whole;  // a callback may write all of the storage, or part: keep older errors
    whole.chunk = chunk;
    whole.desc.dtype = DType::uint8;
    whole.desc.shape = Shape{static_cast<int64_t>(chunk->bytes())};
    plan::declare_write(task.get(), whole);
  }
  push_unlocked([&] { plan::engine().push(std::move(task)); });
}

const char* name_of_lane(engine::LaneKind kind) {
  switch (kind) {
    case engine::LaneKind::compute:
      return "compute";
    case engine::LaneKind::small:
      return "small";
    case engine::LaneKind::copy_in:
      return "copy_in";
    case engine::LaneKind::copy_out:
      return "copy_out";
    case engine::LaneKind::io:
      return "io";
    case engine::LaneKind::python:
      return "python";
  }
  return "";
}

nb::list numbers(const std::vector<uint64_t>& values) {
  nb::list made;
  for (uint64_t value : values) made.append(value);
  return made;
}

nb::dict from_event(const engine::TraceEvent& event) {
  nb::dict made;
  made["order"] = event.order;
  made["name"] = event.name;
  made["lane"] = name_of_lane(event.lane.kind);
  made["device"] = event.lane.device;
  made["start_ns"] = event.start_ns;
  made["end_ns"] = event.end_ns;
  made["reads"] = numbers(event.reads);
  made["writes"] = numbers(event.writes);
  nb::list released;
  for (auto [tag, time] : event.released) released.append(nb::make_tuple(tag, time));
  made["released"] = released;
  made["skipped"] = event.skipped;
  made["failed"] = event.failed;
  return made;
}

nb::list stop_trace() {
  const Entered scope;
  nb::list made;
  for (const auto& event : plan::engine().stop_trace()) made.append(from_event(event));
  return made;
}

void wait_all() {
  const Entered scope;
  engine::WaitPoint point;
  wait_interruptibly([&](int64_t ms) { return plan::engine().wait_all(ms, &point); });
}

void set_engine(const std::string& kind) {
  wait_all();
  Unlocked unlocked;
  plan::set_engine(kind);
}

void wait_tag(PyTag& self) {
  const Entered scope;
  const engine::TagRef tag = self.chunk->tag();
  engine::WaitPoint point;
  wait_interruptibly([&](int64_t ms) { return plan::engine().wait_for_write(tag, ms, &point); });
}

}  // namespace

void bind_engine(nb::module_& m) {
  nb::class_<PyTag>(m, "Tag")
      .def("__init__",
           [](PyTag* self) { new (self) PyTag{std::make_shared<plan::Chunk>(0, Device{})}; })
      .def_prop_ro("version", [](PyTag& t) { return t.chunk->version(); })
      .def("wait", wait_tag);
  m.def("push", push_callback, nb::arg("fn"), nb::arg("reads"), nb::arg("writes"),
        nb::arg("name") = "call", nb::arg("priority") = 0, nb::arg("lane") = "python",
        nb::arg("asynchronous") = false, nb::arg("inline_ok") = false);
  nb::class_<PyCompletion>(m, "Completion")
      .def("done", &PyCompletion::done, nb::arg("error") = nb::none());
  m.def("wait_all", wait_all);
  m.def("set_engine", set_engine, nb::arg("kind"));
  m.def("engine_kind", [] { return plan::engine_kind(); });
  m.def("set_threads", [](int count) {
    check(count >= 1, "[set_threads] expected at least 1, got ", count);
    Unlocked unlocked;
    plan::engine().set_core_budget(count);
  });
  m.def("threads", [] { return plan::engine().core_budget(); });
  m.def("pending", [] { return plan::engine().pending(); });
  m.def(
      "set_queue_limits",
      [](size_t tasks, size_t nbytes) { plan::engine().set_limits({tasks, nbytes}); },
      nb::arg("tasks"), nb::arg("nbytes"));
  m.def("start_trace", [] { plan::engine().start_trace(); });
  m.def("stop_trace", stop_trace);
}

}  // namespace mixflow::bind
