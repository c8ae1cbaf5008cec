// core.Array: the type that mixflow.NDArray subclasses.
#include <cstring>

#include "base/stream.h"
#include "bind/convert.h"
#include "bind/modules.h"
#include "bind/waits.h"

namespace mixflow::bind {
namespace {

// Copies larger than this are made without the GIL.
constexpr size_t kLargeCopy = 1 << 20;

void copy_unlocked(void* target, const void* source, size_t bytes) {
  if (bytes < kLargeCopy) {
    std::memcpy(target, source, bytes);
    return;
  }
  Unlocked unlocked;
  copy_bytes(target, source, bytes);
}

int traverse(PyObject* self, visitproc visit, void* arg) {
  Py_VISIT(Py_TYPE(self));
  if (!nb::inst_ready(self)) return 0;
  Py_VISIT(nb::inst_ptr<PyArray>(self)->autograd);
  return 0;
}

int clear(PyObject* self) {
  Py_CLEAR(nb::inst_ptr<PyArray>(self)->autograd);
  return 0;
}

// Not Entered: runs no Python code, and values can be read to the last moment (a queue that another
// exit hook empties may pickle arrays in a daemon thread).
nb::object to_numpy(nb::handle self) {
  const plan::Array array = as_array(self).array;
  wait_to_read(array);
  const Desc& desc = array.desc;
  const bool bits = desc.dtype == DType::bfloat16;
  nb::object made = nb::module_::import_("numpy").attr("empty")(
      from_shape(desc.shape), numpy_dtype(bits ? DType::float16 : desc.dtype));
  {
    NumpyBytes bytes(made, true);
    copy_unlocked(bytes.data(), array.data(), array.bytes());
  }
  return bits ? made.attr("view")(numpy_dtype(desc.dtype)) : made;
}

// Writes from foreign memory as a task, so that it replaces an error of the storage. The task
// holds the source: Ctrl-C may end the wait before the task.
class CopyIn final : public engine::Task {
 public:
  CopyIn(plan::Array target, const void* source, Held owner)
      : target_(std::move(target)),
        source_(source),
        owner_(std::move(owner)),
        scope_(plan::current_scope()) {
    lane = engine::Lane{engine::LaneKind::copy_in, target_.desc.device.id};
    inline_ok = true;  // the caller waits for it anyway
    site = current_site();
    plan::declare_write(this, target_);
    if (scope_) scope_->mark_used();
  }
  void run(engine::TaskContext&) override { copy_bytes(target_.data(), source_, target_.bytes()); }
  std::string describe() const override { return "copy_from_numpy " + target_.desc.str(); }

 private:
  plan::Array target_;
  const void* source_;
  Held owner_;
  plan::ScopeRef scope_;
};

void copy_from_numpy(nb::handle self, nb::handle source) {
  const Entered scope;
  const plan::Array& array = as_array(self).array;
  check(dtype_of(source) == array.desc.dtype, "[copy_from_numpy] expected ",
        name_of(array.desc.dtype), ", got ", name_of(dtype_of(source)));
  NumpyBytes bytes(source, false);
  check(bytes.size() == array.bytes(), "[copy_from_numpy] expected ", array.bytes(), " bytes for ",
        array.desc.str(), ", got ", bytes.size());
  auto task = std::make_unique<CopyIn>(array, bytes.data(), hold(source));
  push_unlocked([&] { plan::engine().push(std::move(task)); });
  wait_to_write(array);
}

// Between any two devices of the host; never waits.
void copy_array(nb::handle source, nb::handle target) {
  const Entered scope;
  const plan::Array& from = to_array(source, "copy").array;
  const plan::Array& to = to_array(target, "copy").array;
  check(from.desc.dtype == to.desc.dtype && from.desc.shape == to.desc.shape, "[copy] expected ",
        to.desc.str(), ", got ", from.desc.str());
  const uint32_t site = current_site();
  push_unlocked([&] { plan::push_copy(from, to, site); });
}

nb::object from_numpy(nb::handle source, nb::handle device) {
  const Entered scope;
  nb::object plain = nb::borrow(source);
  if (!nb::cast<bool>(plain.attr("flags")["C_CONTIGUOUS"])) plain = plain.attr("copy")("C");
  Desc desc;
  desc.dtype = dtype_of(plain);
  desc.shape = to_shape(nb::object(plain.attr("shape")));
  desc.device = to_device(device);
  plan::Array array = plan::empty(desc);
  {
    NumpyBytes bytes(plain, false);
    copy_unlocked(array.data(), bytes.data(), array.bytes());
  }
  return wrap(std::move(array));
}

nb::object view(nb::handle self, int64_t offset, nb::handle shape, nb::object dtype_code) {
  const Entered scope;
  const plan::Array& base = as_array(self).array;
  const DType dtype =
      dtype_code.is_none() ? base.desc.dtype : to_dtype(nb::cast<int64_t>(dtype_code));
  return wrap(plan::view(base, offset, to_shape(shape), dtype), self.type());
}

nb::object shared_empty(const std::string& name, nb::handle shape, int64_t dtype_code,
                        bool create) {
  const Entered scope;
  Desc desc;
  desc.shape = to_shape(shape);
  desc.dtype = to_dtype(dtype_code);
  plan::Array array;
  array.desc = desc;
  const auto bytes = static_cast<size_t>(desc.bytes());
  array.chunk = std::make_shared<plan::Chunk>(storage::shared_mapping(name, bytes, create), bytes,
                                              desc.device);
  array.chunk->share_plain();
  return wrap(std::move(array));
}

nb::object empty(nb::handle shape, int64_t dtype_code, nb::handle device) {
  const Entered scope;
  Desc desc;
  desc.shape = to_shape(shape);
  desc.dtype = to_dtype(dtype_code);
  desc.device = to_device(device);
  return wrap(plan::empty(desc));
}

void initialise(PyArray* self, nb::handle shape, int64_t dtype_code, nb::handle device) {
  const Entered scope;
  Desc desc;
  desc.shape = to_shape(shape);
  desc.dtype = to_dtype(dtype_code);
  desc.device = to_device(device);
  new (self) PyArray{plan::empty(desc)};
}

nb::object get_autograd(nb::handle self) {
  PyObject* slot = as_array(self).autograd;
  return slot ? nb::borrow(slot) : nb::none();
}

void set_autograd(nb::handle self, nb::handle value) {
  const Entered scope;  // what the slot held may have a finaliser
  PyObject* old = as_array(self).autograd;
  as_array(self).autograd = value.is_none() ? nullptr : value.inc_ref().ptr();
  Py_XDECREF(old);
}

nb::object fresh_handle(nb::handle array) {
  plan::Array fresh = to_array(array, "fresh_handle").array;
  fresh.chunk = plan::Chunk::fresh(fresh.chunk);
  return wrap(std::move(fresh), array.type());
}

void set_array_class(nb::handle cls) {
  check(PyType_Check(cls.ptr()) &&
            PyType_IsSubtype(reinterpret_cast<PyTypeObject*>(cls.ptr()), core_array_type),
        "[set_array_class] expected a subclass of core.Array");
  array_class = reinterpret_cast<PyTypeObject*>(cls.inc_ref().ptr());  // for the process's life
}

void define_properties(nb::class_<PyArray>& cls) {
  cls.def_prop_ro("shape", [](PyArray& a) { return from_shape(a.array.desc.shape); })
      .def_prop_ro("dtype_code", [](PyArray& a) { return static_cast<int>(a.array.desc.dtype); })
      .def_prop_ro("device", [](PyArray& a) { return from_device(a.array.desc.device); })
      .def_prop_ro("size", [](PyArray& a) { return a.array.desc.shape.size(); })
      .def_prop_ro("ndim", [](PyArray& a) { return a.array.desc.shape.ndim(); })
      .def_prop_ro("nbytes", [](PyArray& a) { return a.array.bytes(); })
      .def_prop_ro("version", [](PyArray& a) { return a.array.chunk->version(); })
      .def_prop_ro("last_write",
                   [](PyArray& a) {
                     const uint32_t site = a.array.chunk->write_site();
                     return site ? site_text(site) : std::string();
                   })
      .def_prop_ro("layout", [](PyArray& a) { return a.array.chunk->layout().id; })
      .def_prop_ro("offset_bytes", [](PyArray& a) { return a.array.offset; })
      .def_prop_rw("autograd", get_autograd, set_autograd, nb::for_setter(nb::arg().none()));
}

}  // namespace

void bind_array(nb::module_& m) {
  static PyType_Slot gc_slots[] = {{Py_tp_traverse, reinterpret_cast<void*>(traverse)},
                                   {Py_tp_clear, reinterpret_cast<void*>(clear)},
                                   {0, nullptr}};
  std::vector<PyType_Slot> slots(gc_slots, gc_slots + 2);
  append_number_slots(&slots);
  slots.push_back({0, nullptr});
  nb::class_<PyArray> cls(m, "Array", nb::type_slots(slots.data()),
                          "A contiguous view of a storage chunk; see mixflow._rt.Array.");
  core_array_type = reinterpret_cast<PyTypeObject*>(cls.ptr());
  array_class = core_array_type;
  define_properties(cls);
  cls.def("__init__", initialise, nb::arg("shape"), nb::arg("dtype_code") = 0,
          nb::arg("device") = nb::none())
      .def("view", view, nb::arg("offset"), nb::arg("shape"), nb::arg("dtype_code") = nb::none())
      .def("shares_storage", [](PyArray& a, PyArray& b) { return a.array.chunk == b.array.chunk; })
      .def("storage_id",
           [](PyArray& a) { return reinterpret_cast<uintptr_t>(a.array.chunk.get()); })
      .def("wait_to_read", [](PyArray& a) { wait_to_read(a.array); })
      .def("wait_to_write", [](PyArray& a) { wait_to_write(a.array); })
      .def("to_numpy", to_numpy)
      .def("copy_from_numpy", copy_from_numpy, nb::arg("source"));
  bind_exchange(m, cls);
  m.def("set_array_class", set_array_class, nb::arg("cls"));
  m.def("empty", empty, nb::arg("shape"), nb::arg("dtype_code") = 0,
        nb::arg("device") = nb::none());
  m.def("from_numpy", from_numpy, nb::arg("source"), nb::arg("device") = nb::none());
  m.def("shared_empty", shared_empty, nb::arg("name"), nb::arg("shape"), nb::arg("dtype_code"),
        nb::arg("create"));
  m.def("fresh_handle", fresh_handle, nb::arg("array"));
  m.def("copy_array", copy_array, nb::arg("source"), nb::arg("target"));
}

}  // namespace mixflow::bind
