// Prepared kernels.
#include "bind/modules.h"
#include "bind/waits.h"
#include "engine/worker_team.h"
#include "kernels/isa.h"
#include "kernels/kernel.h"
#include "kernels/peak.h"
#include "kernels/tuner.h"

namespace mixflow::bind {
namespace {

constexpr const char* kRegistryName = "mixflow.kernels.Registry";

kernels::Attr to_list_attr(nb::handle value) {
  std::vector<int64_t> whole;
  std::vector<double> numbers;
  bool integers = true;
  for (nb::handle item : value) {
    integers = integers && !PyFloat_Check(item.ptr());
    numbers.push_back(PyFloat_AsDouble(item.ptr()));
    if (PyErr_Occurred()) throw nb::python_error();
    if (integers) whole.push_back(nb::cast<int64_t>(item));
  }
  if (integers) return whole;
  return numbers;
}

kernels::Attr to_attr(const std::string& key, nb::handle value) {
  PyObject* p = value.ptr();
  if (PyBool_Check(p)) return p == Py_True;
  if (PyLong_Check(p)) return nb::cast<int64_t>(value);
  if (PyFloat_Check(p)) return PyFloat_AS_DOUBLE(p);
  if (PyUnicode_Check(p)) return nb::cast<std::string>(value);
  if (PyTuple_Check(p) || PyList_Check(p)) return to_list_attr(value);
  throw Error(concat("[prepare] expected a bool, number, text or tuple for ", key, ", got ",
                     Py_TYPE(p)->tp_name));
}

nb::object prepare(const std::string& primitive, nb::dict attrs, nb::handle inputs,
                   nb::handle outputs, int threads) {
  const Entered scope;
  kernels::Request request;
  request.primitive = primitive;
  for (auto [key, value] : attrs) {
    if (value.is_none()) continue;  // absent
    const auto name = nb::cast<std::string>(key);
    request.attrs.set(name, to_attr(name, value));
  }
  request.inputs = to_descs(inputs);
  request.outputs = to_descs(outputs);
  request.threads = threads > 0 ? threads : plan::engine().core_budget();
  auto kernel = kernels::registry().prepare(request);
  return kernel ? nb::cast(PyKernel{std::move(kernel)}) : nb::none();
}

// For tests: runs a kernel as a task on plain arrays and waits. With `prepared` the kernel gets its
// weights (the second input) in the form that it keeps between runs.
void run_kernel(const PyKernel& kernel, nb::handle ins, nb::handle outs, uint64_t seed,
                uint64_t draw, bool prepared) {
  const Entered scope;
  auto args = to_arrays(ins, "run_kernel");
  const size_t inputs = args.size();
  for (auto& out : to_arrays(outs, "run_kernel")) args.push_back(out);
  for (auto& arg : args) wait_to_write(arg);
  struct Task final : engine::Task {
    kernels::KernelRef kernel;
    std::vector<const void*> in;
    std::vector<void*> out;
    storage::BlockRef workspace, prepared;
    kernels::RunContext values;
    std::vector<plan::Array> keep;
    void run(engine::TaskContext&) override {
      const void* form = prepared ? prepared->data() : nullptr;
      if (prepared) kernel->prepare_weights(in[1], prepared->data());
      if (kernel->teamwork) values.team = &engine::summon_team(kernel->threads);
      kernel->run({in.data(), out.data(), workspace->data(), form}, values);
    }
    std::string describe() const override { return kernel->implementation; }
  };
  auto task = std::make_unique<Task>();
  task->kernel = kernel.kernel;
  task->workspace = storage::allocate(kernel.kernel->workspace_bytes);
  if (prepared) task->prepared = storage::allocate(kernel.kernel->prepared_bytes);
  task->values.seed = seed;
  task->values.draw = draw;
  task->threads = kernel.kernel->threads;
  plan::Chunk done(0, Device{});
  task->writes.push_back(done.tag());
  for (size_t i = 0; i < args.size(); ++i) {
    (i < inputs ? task->in.push_back(args[i].data()) : task->out.push_back(args[i].data()));
  }
  for (size_t i = inputs; i < args.size(); ++i) args[i].chunk->bump_version(0);
  task->keep = std::move(args);
  push_unlocked([&] { plan::engine().push(std::move(task)); });
  wait_interruptibly([&](int64_t ms) { return plan::engine().wait_for_write(done.tag(), ms); });
}

constexpr const char* kInstructionSets[] = {"baseline", "avx2", "avx512"};

// For tests: kernels prepared from now on use no better instruction set than this one.
const char* limit_instructions(const std::string& name) {
  for (int i = 0; i < 3; ++i) {
    if (name != kInstructionSets[i]) continue;
    return kInstructionSets[static_cast<int>(kernels::limit_isa(static_cast<kernels::Isa>(i)))];
  }
  throw Error("[limit_instructions] expected baseline, avx2 or avx512, got " + name);
}

}  // namespace

void bind_kernels(nb::module_& m) {
  nb::class_<PyKernel>(m, "Kernel")
      .def_prop_ro("workspace_bytes", [](PyKernel& k) { return k.kernel->workspace_bytes; })
      .def_prop_ro("prepared_bytes", [](PyKernel& k) { return k.kernel->prepared_bytes; })
      .def_prop_ro("threads", [](PyKernel& k) { return k.kernel->threads; })
      .def_prop_ro("cheap", [](PyKernel& k) { return k.kernel->cheap; })
      .def_prop_ro("random", [](PyKernel& k) { return k.kernel->random; })
      .def_prop_ro("inplace",
                   [](PyKernel& k) {
                     nb::list pairs;
                     for (auto [out, in] : k.kernel->inplace) pairs.append(nb::make_tuple(out, in));
                     return pairs;
                   })
      .def_prop_ro("implementation", [](PyKernel& k) { return k.kernel->implementation; });
  m.def("prepare", prepare, nb::arg("primitive"), nb::arg("attrs"), nb::arg("inputs"),
        nb::arg("outputs"), nb::arg("threads") = 0);
  m.def("run_kernel", run_kernel, nb::arg("kernel"), nb::arg("ins"), nb::arg("outs"),
        nb::arg("seed") = 0, nb::arg("draw") = 0, nb::arg("prepared") = false);
  m.def("limit_instructions", limit_instructions, nb::arg("name"));
  m.def("set_deterministic", kernels::set_deterministic, nb::arg("on"));
  m.def("set_tuning_folder", kernels::set_tuning_folder, nb::arg("folder"));
  m.def("set_tuning_path", kernels::set_tuning_path, nb::arg("path"));
  m.def("tuning_path", [] { return kernels::tuner()->path(); });
  m.def(
      "measure_peak",
      [](int threads) {
        kernels::Peak peak;
        {
          const nb::gil_scoped_release released;
          peak = kernels::measure_peak(threads);
        }
        return nb::make_tuple(peak.flops, peak.bytes);
      },
      nb::arg("threads"));
  m.def("kernel_registry", [] { return nb::capsule(&kernels::registry(), kRegistryName); });
  kernels::register_plain_kernels(kernels::registry());
}

}  // namespace mixflow::bind
