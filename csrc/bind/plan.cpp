// core.Plan, core.Arena and bound plans.
#include "plan/plan.h"

#include "bind/modules.h"
#include "bind/waits.h"

namespace mixflow::bind {
namespace {

// Turns the slots of one plan into indices of its tables.
class SpecReader {
 public:
  explicit SpecReader(plan::PlanSpec* spec) : spec_(spec) {}

  plan::Step step(nb::handle source) {
    plan::Step made;
    nb::object kernel = source.attr("kernel");
    if (nb::isinstance<PyKernel>(kernel)) {
      made.kernel = nb::cast<PyKernel&>(kernel).kernel;
    } else if (nb::isinstance<PyPlan>(kernel)) {
      made.nested = nb::cast<PyPlan&>(kernel).plan;
    } else {
      check(PyCallable_Check(kernel.ptr()) != 0,
            "[plan] expected a kernel, a plan or a callable as a step, got ",
            Py_TYPE(kernel.ptr())->tp_name);
      made.host = make_host_call(kernel);
    }
    made.label = nb::cast<std::string>(source.attr("label"));
    made.inputs = slots(source.attr("inputs"));
    made.outputs = slots(source.attr("outputs"));
    made.input_descs = to_descs(source.attr("input_descs"));
    made.output_descs = to_descs(source.attr("output_descs"));
    check(made.inputs.size() == made.input_descs.size() &&
              made.outputs.size() == made.output_descs.size(),
          "[plan] expected one descriptor for each slot of ", made.label);
    made.draw_slot = nb::cast<int64_t>(source.attr("draw_slot"));
    nb::object workspace = source.attr("workspace");
    if (!workspace.is_none()) made.workspace = range_slot(workspace[0], workspace[1]);
    made.steady = nb::cast<bool>(nb::getattr(source, "steady", nb::bool_(false)));
    nb::object prepared = nb::getattr(source, "prepared", nb::none());
    if (!prepared.is_none()) {
      check(made.kernel && made.inputs.size() > 1, "[plan] expected a kernel with weights in ",
            made.label, ", whose weights are to be kept");
      made.prepared = range_slot(prepared[0], prepared[1], plan::Slot::Kind::kept);
    }
    return made;
  }

 private:
  std::vector<plan::Slot> slots(nb::handle sequence) {
    std::vector<plan::Slot> made;
    for (nb::handle item : sequence) made.push_back(slot(item));
    return made;
  }

  static plan::Slot range_slot(nb::handle offset, nb::handle bytes,
                               plan::Slot::Kind kind = plan::Slot::Kind::arena) {
    plan::Slot made;
    made.kind = kind;
    made.offset = nb::cast<size_t>(offset);
    made.bytes = nb::cast<size_t>(bytes);
    return made;
  }

  plan::Slot slot(nb::handle item) {
    const auto kind = nb::cast<std::string>(nb::object(item[0]));
    plan::Slot made;
    if (kind == "null") return made;
    if (kind == "arena") return range_slot(nb::object(item[1]), nb::object(item[2]));
    if (kind == "kept") {
      return range_slot(nb::object(item[1]), nb::object(item[2]), plan::Slot::Kind::kept);
    }
    if (kind == "arg") {
      made.kind = plan::Slot::Kind::arg;
      made.index = nb::cast<int32_t>(nb::object(item[1]));
    } else if (kind == "scalar") {
      made.kind = plan::Slot::Kind::scalar;
      made.index = scalar(nb::cast<int32_t>(nb::object(item[1])),
                          to_dtype(nb::cast<int64_t>(nb::object(item[2]))));
    } else if (kind == "const") {
      nb::object array = item[1];
      made.kind = plan::Slot::Kind::constant;
      made.index = static_cast<int32_t>(spec_->constants.size());
      spec_->constants.push_back(to_array(array, "plan").array);
      wait_to_read(spec_->constants.back());  // so that runs need not acquire its tag
    } else {
      throw Error("[plan] expected a slot of kind arg, arena, kept, scalar, const or null, got " +
                  kind);
    }
    return made;
  }

  int32_t scalar(int32_t index, DType dtype) {
    auto& all = spec_->scalars;
    for (size_t i = 0; i < all.size(); ++i) {
      if (all[i].index == index && all[i].dtype == dtype) return static_cast<int32_t>(i);
    }
    all.push_back({index, dtype});
    return static_cast<int32_t>(all.size()) - 1;
  }

  plan::PlanSpec* spec_;
};

plan::Access to_access(const std::string& text) {
  if (text == "r") return plan::Access::read;
  if (text == "w") return plan::Access::write;
  check(text == "rw", "[plan] expected access 'r', 'w' or 'rw', got '", text, "'");
  return plan::Access::read_write;
}

void make_plan(PyPlan* self, nb::handle steps, nb::handle arg_descs, nb::handle arg_access,
               int64_t num_scalars, size_t arena_bytes, nb::object phase_ends,
               const std::string& label, size_t kept_bytes) {
  const Entered scope;
  plan::PlanSpec spec;
  SpecReader reader(&spec);
  for (nb::handle step : steps) spec.steps.push_back(reader.step(step));
  spec.arg_descs = to_descs(arg_descs);
  for (nb::handle item : arg_access) spec.access.push_back(to_access(nb::cast<std::string>(item)));
  spec.num_scalars = num_scalars;
  spec.arena_bytes = arena_bytes;
  spec.kept_bytes = kept_bytes;
  if (!phase_ends.is_none()) {
    for (nb::handle item : phase_ends) spec.phase_ends.push_back(nb::cast<int64_t>(item));
  }
  spec.label = label;
  new (self) PyPlan{std::make_shared<const plan::Plan>(std::move(spec))};
}

plan::ArenaRef to_arena(nb::handle arena) {
  if (arena.is_none()) return nullptr;
  check(nb::isinstance<PyArena>(arena), "[plan] expected an Arena, got ",
        Py_TYPE(arena.ptr())->tp_name);
  return nb::cast<PyArena&>(arena).arena;
}

// (argument, array) pairs; None = none.
std::vector<plan::Feed> to_feeds(nb::handle pairs, bool alias) {
  std::vector<plan::Feed> feeds;
  if (pairs.is_none()) return feeds;
  for (nb::handle pair : pairs) {
    feeds.push_back({nb::cast<int32_t>(nb::object(pair[0])),
                     to_array(nb::object(pair[1]), "plan").array, alias});
  }
  return feeds;
}

// `phase`: -1 = all of them as one task.
uint64_t push(const plan::BindingRef& binding, nb::handle scalars, int phase, nb::handle draws,
              const void* user, bool transient, std::vector<plan::Feed> feeds = {}) {
  const Entered scope;
  const std::vector<double> numbers = to_numbers(scalars);
  std::vector<uint64_t> recorded;
  plan::RunOptions options;
  options.scalars = numbers.data();
  options.num_scalars = numbers.size();
  options.phase = phase == -1 ? binding->plan().whole() : phase;
  options.feeds = std::move(feeds);
  options.site = current_site();
  options.user = user;
  options.transient = transient;
  if (!draws.is_none()) {
    for (nb::handle draw : draws) recorded.push_back(nb::cast<uint64_t>(draw));
    options.draws = &recorded;
  }
  return push_unlocked([&] { return plan::push_run(binding, options); });
}

// One run of a phase with a clock at every step; waits for it. Seconds of each step.
nb::list profile(PyBound& bound, nb::handle scalars, int phase) {
  const Entered scope;
  const std::vector<double> numbers = to_numbers(scalars);
  plan::RunOptions options;
  options.scalars = numbers.data();
  options.num_scalars = numbers.size();
  options.phase = phase;
  options.site = current_site();
  options.user = bound.binding.get();
  options.times = std::make_shared<std::vector<double>>();
  push_unlocked([&] { return plan::push_run(bound.binding, options); });
  for (const auto& arg : bound.binding->args()) wait_to_write(arg);
  wait_interruptibly([](int64_t ms) { return plan::engine().wait_all(ms); });
  nb::list seconds;
  for (double value : *options.times) seconds.append(value);
  return seconds;
}

uint64_t run_plan(PyPlan& self, nb::handle args, nb::handle scalars, nb::handle arena, int phase,
                  nb::handle draws) {
  const Entered scope;
  auto binding = std::make_shared<const plan::Binding>(self.plan, to_arrays(args, "plan"),
                                                       to_arena(arena), true);
  return push(binding, scalars, phase, draws, nullptr, true);
}

PyBound bind_plan_args(PyPlan& self, nb::handle args, nb::handle arena) {
  const Entered scope;
  return PyBound{std::make_shared<const plan::Binding>(self.plan, to_arrays(args, "plan"),
                                                       to_arena(arena), true)};
}

void define_plan(nb::module_& m) {
  nb::class_<PyPlan>(m, "Plan")
      .def("__init__", make_plan, nb::arg("steps"), nb::arg("arg_descs"), nb::arg("arg_access"),
           nb::arg("num_scalars") = 0, nb::arg("arena_bytes") = 0,
           nb::arg("phase_ends") = nb::none(), nb::arg("label") = "plan",
           nb::arg("kept_bytes") = 0)
      .def_prop_ro("steps", [](PyPlan& p) { return p.plan->steps().size(); })
      .def_prop_ro("host_calls", [](PyPlan& p) { return p.plan->host_calls(); })
      .def_prop_ro("arena_bytes", [](PyPlan& p) { return p.plan->arena_bytes(); })
      .def_prop_ro("kept_bytes", [](PyPlan& p) { return p.plan->kept_bytes(); })
      .def_prop_ro("num_draws", [](PyPlan& p) { return p.plan->num_draws(); })
      .def_prop_ro("phases", [](PyPlan& p) { return p.plan->phases(); })
      .def_prop_ro("label", [](PyPlan& p) { return p.plan->label(); })
      .def("run", run_plan, nb::arg("args"), nb::arg("scalars") = nb::tuple(),
           nb::arg("arena") = nb::none(), nb::arg("phase") = 0, nb::arg("draws") = nb::none())
      .def("bind", bind_plan_args, nb::arg("args"), nb::arg("arena") = nb::none());
}

}  // namespace

void bind_plan(nb::module_& m) {
  nb::class_<PyArena>(m, "Arena")
      .def(
          "__init__",
          [](PyArena* self, nb::handle device) {
            new (self) PyArena{std::make_shared<plan::Arena>(to_device(device))};
          },
          nb::arg("device") = nb::none())
      .def_prop_ro("bytes", [](PyArena& a) { return a.arena->bytes(); })
      .def_prop_ro("owner", [](PyArena& a) { return a.arena->owner(); });
  nb::class_<PyBound>(m, "Bound")
      .def(
          "run",
          [](PyBound& b, nb::handle scalars, int phase, nb::handle draws, nb::handle feeds,
             bool alias) {
            const Entered scope;
            return push(b.binding, scalars, phase, draws, b.binding.get(), false,
                        to_feeds(feeds, alias));
          },
          nb::arg("scalars") = nb::tuple(), nb::arg("phase") = 0, nb::arg("draws") = nb::none(),
          nb::arg("feeds") = nb::none(), nb::arg("alias") = false)
      .def("profile", profile, nb::arg("scalars") = nb::tuple(), nb::arg("phase") = 0)
      .def("executed_steps", [](PyBound& b) { return b.binding->executed_steps(); });
  define_plan(m);
}

}  // namespace mixflow::bind
