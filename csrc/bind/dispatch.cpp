// Imperative calls: invoke, its cache, and the thread's recording and training flags.
#include "bind/call_cache.h"
#include "bind/modules.h"
#include "bind/waits.h"

namespace mixflow::bind {
namespace {

struct Hooks {
  CallCache cache;
  uint64_t misses = 0;
  nb::object miss_handler;
  nb::object recorder;
  nb::object desc_type;  // mixflow.ir.types.Desc
};

// Leaked: Python objects must not be destroyed after the interpreter.
Hooks& hooks() {
  static Hooks* instance = new Hooks();  // NOLINT: see above
  return *instance;
}

thread_local bool recording = false;
thread_local bool training = false;

nb::object from_desc(const Desc& desc, Layout layout) {
  Hooks& h = hooks();
  if (!h.desc_type.is_valid()) {
    h.desc_type = nb::module_::import_("mixflow.ir.types").attr("Desc");
  }
  return h.desc_type(static_cast<int>(desc.dtype), from_shape(desc.shape), layout.id,
                     from_device(desc.device));
}

CallCache::EntryRef to_entry(nb::handle made) {
  auto entry = std::make_shared<plan::CallEntry>();
  nb::object plan_object = made.attr("plan");
  check(nb::isinstance<PyPlan>(plan_object), "[invoke] expected a plan from the miss handler");
  entry->plan = nb::cast<PyPlan&>(plan_object).plan;
  entry->out_descs = to_descs(made.attr("out_descs"));
  entry->visible = nb::cast<int64_t>(made.attr("visible"));
  entry->name = nb::cast<std::string>(made.attr("name"));
  for (nb::handle pair : nb::object(made.attr("inplace"))) {
    entry->inplace.emplace_back(nb::cast<int>(nb::object(pair[0])),
                                nb::cast<int>(nb::object(pair[1])));
  }
  check(entry->visible >= 0 && entry->visible <= static_cast<int64_t>(entry->out_descs.size()), "[",
        entry->name, "] expected at most as many visible outputs as outputs");
  return entry;
}

CallCache::EntryRef look_up(const Signature& signature) {
  Hooks& h = hooks();
  const uint64_t hash = CallCache::hash_of(signature);
  if (auto found = h.cache.find(signature, hash)) return found;
  check(h.miss_handler.is_valid(), "[invoke] expected a miss handler, got none");
  nb::list descs;
  for (const plan::Array& array : signature.inputs) {
    descs.append(from_desc(array.desc, array.chunk->layout()));
  }
  ++h.misses;
  nb::object handler = h.miss_handler;
  auto entry = to_entry(handler(signature.op_id, signature.params, descs,
                                from_device(signature.device), signature.training));
  h.cache.insert(signature, hash, entry);
  return entry;
}

// What a call says about `out`: nothing, one array, or a sequence of them.
std::vector<plan::Array> out_arrays(nb::handle out) {
  if (!out.is_valid() || out.is_none()) return {};
  if (is_array(out)) return {as_array(out).array};
  return to_arrays(out, "invoke");
}

nb::list list_of(PyObject* const* items, size_t count) {
  nb::list made;
  for (size_t i = 0; i < count; ++i) made.append(nb::handle(items[i]));
  return made;
}

// Python objects of the first `count` outputs; where `out` was given they are its own.
nb::list wrap_outputs(const plan::CallResult& result, size_t count, nb::handle out) {
  nb::list made;
  const bool single = out.is_valid() && !out.is_none() && is_array(out);
  const bool several = out.is_valid() && !out.is_none() && !single;
  const size_t given = single ? 1 : several ? nb::len(out) : 0;
  for (size_t i = 0; i < count; ++i) {
    if (i < given) {
      made.append(single ? nb::borrow(out) : nb::object(out[i]));
    } else {
      made.append(wrap(result.outputs[i]));
    }
  }
  return made;
}

struct Recorded {
  int64_t op_id;
  nb::handle params;
  const double* scalars;
  size_t num_scalars;
  nb::list inputs;
  nb::list versions;
};

void record(const Recorded& call, nb::handle outputs, uint64_t first_draw) {
  nb::list numbers;
  for (size_t i = 0; i < call.num_scalars; ++i) numbers.append(call.scalars[i]);
  nb::object recorder = hooks().recorder;
  recorder(call.op_id, call.params, numbers, call.inputs, outputs, first_draw, call.versions);
}

bool set_flag(bool* flag, bool on) { return std::exchange(*flag, on); }

nb::object invoke_from_python(int64_t op_id, nb::handle inputs, nb::handle params,
                              nb::handle scalars, nb::handle out, nb::handle device) {
  const Entered scope;
  auto fast = nb::steal<nb::object>(PySequence_Fast(inputs.ptr(), "inputs: expected a sequence"));
  if (!fast.is_valid()) throw nb::python_error();
  const std::vector<double> numbers = to_numbers(scalars);
  return invoke(op_id, PySequence_Fast_ITEMS(fast.ptr()),
                static_cast<size_t>(PySequence_Fast_GET_SIZE(fast.ptr())), params, numbers.data(),
                numbers.size(), out, device);
}

}  // namespace

nb::object invoke(int64_t op_id, PyObject* const* inputs, size_t count, nb::handle params,
                  const double* scalars, size_t num_scalars, nb::handle out, nb::handle device) {
  plan::Call call;
  call.inputs.reserve(count);
  for (size_t i = 0; i < count; ++i) call.inputs.push_back(to_array(inputs[i], "invoke").array);
  call.out = out_arrays(out);
  call.scalars = scalars;
  call.num_scalars = num_scalars;
  const Device where = count ? call.inputs[0].desc.device : to_device(device);
  const auto entry = look_up({op_id, params, call.inputs, where, training});

  const bool taped = recording && hooks().recorder.is_valid();
  Recorded recorded{op_id, params, scalars, num_scalars, {}, {}};
  if (taped) {
    recorded.inputs = list_of(inputs, count);
    for (const auto& array : call.inputs) recorded.versions.append(array.chunk->version());
  }
  call.site = current_site();
  const auto result = push_unlocked([&] { return plan::push_call(*entry, std::move(call)); });

  const bool has_out = out.is_valid() && !out.is_none();
  const auto visible = static_cast<size_t>(entry->visible);
  if (!taped) {
    if (has_out) return nb::borrow(out);
    if (visible == 1) return wrap(result.outputs[0]);
    return wrap_outputs(result, visible, out);
  }
  nb::list outputs = wrap_outputs(result, result.outputs.size(), out);
  record(recorded, outputs, result.first_draw);
  if (has_out) return nb::borrow(out);
  if (visible == 1) return nb::object(outputs[0]);
  return nb::steal<nb::object>(PyList_GetSlice(outputs.ptr(), 0, static_cast<Py_ssize_t>(visible)));
}

void bind_dispatch(nb::module_& m) {
  m.def("invoke", invoke_from_python, nb::arg("op_id"), nb::arg("inputs"), nb::arg("params"),
        nb::arg("scalars") = nb::tuple(), nb::arg("out") = nb::none(),
        nb::arg("device") = nb::none());
  m.def("set_miss_handler", [](nb::object handler) { hooks().miss_handler = handler; });
  m.def(
      "set_recorder",
      [](nb::object recorder) { hooks().recorder = recorder.is_none() ? nb::object() : recorder; },
      nb::arg("recorder").none());
  m.def("clear_dispatch_cache", [] { hooks().cache.clear(); });
  m.def("dispatch_misses", [] { return hooks().misses; });
  m.def("set_recording", [](bool on) { return set_flag(&recording, on); });
  m.def("set_training", [](bool on) { return set_flag(&training, on); });
  m.def("is_recording", [] { return recording; });
  m.def("is_training", [] { return training; });
}

}  // namespace mixflow::bind
