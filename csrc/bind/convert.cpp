#include "bind/convert.h"

namespace mixflow::bind {

PyTypeObject* core_array_type = nullptr;
PyTypeObject* array_class = nullptr;

const plan::ChunkRef& chunk_of(nb::handle item) {
  if (is_array(item)) return as_array(item).array.chunk;
  check(nb::isinstance<PyTag>(item), "[push] expected arrays or tags, got ",
        Py_TYPE(item.ptr())->tp_name);
  return nb::cast<PyTag&>(item).chunk;
}

PyArray& to_array(nb::handle object, const char* what) {
  check(is_array(object), "[", what, "] expected an array, got ", Py_TYPE(object.ptr())->tp_name);
  return as_array(object);
}

std::vector<plan::Array> to_arrays(nb::handle sequence, const char* what) {
  auto fast = nb::steal<nb::object>(PySequence_Fast(sequence.ptr(), "expected a sequence"));
  if (!fast.is_valid()) throw nb::python_error();
  const Py_ssize_t count = PySequence_Fast_GET_SIZE(fast.ptr());
  PyObject** items = PySequence_Fast_ITEMS(fast.ptr());
  std::vector<plan::Array> arrays;
  arrays.reserve(static_cast<size_t>(count));
  for (Py_ssize_t i = 0; i < count; ++i) arrays.push_back(to_array(items[i], what).array);
  return arrays;
}

nb::object wrap(plan::Array array, nb::handle cls) {
  nb::object made =
      nb::inst_alloc(cls.is_valid() ? cls : nb::handle(reinterpret_cast<PyObject*>(array_class)));
  new (nb::inst_ptr<PyArray>(made)) PyArray{std::move(array)};
  nb::inst_mark_ready(made);
  return made;
}

namespace {

constexpr int64_t kMaxElements = int64_t{1} << 57;

// Sizes in elements and bytes are products of dimensions: none may wrap around.
Shape checked(const Shape& shape) {
  int64_t total = 1;
  for (int64_t dim : shape) {
    check(dim <= 0 || total <= kMaxElements / dim, "[shape] expected at most 2^57 elements, got ",
          shape.str());
    total *= dim > 0 ? dim : 1;
  }
  return shape;
}

}  // namespace

Shape to_shape(nb::handle sequence) {
  if (PyLong_Check(sequence.ptr())) return checked(Shape{nb::cast<int64_t>(sequence)});
  std::vector<int64_t> dims;
  for (nb::handle dim : sequence) {
    auto whole = nb::steal<nb::object>(PyNumber_Index(dim.ptr()));
    if (!whole.is_valid()) throw nb::python_error();
    dims.push_back(nb::cast<int64_t>(whole));
  }
  return checked(Shape(dims.begin(), dims.end()));
}

nb::tuple from_shape(const Shape& shape) {
  PyObject* tuple = PyTuple_New(shape.ndim());
  for (int i = 0; i < shape.ndim(); ++i) PyTuple_SET_ITEM(tuple, i, PyLong_FromLongLong(shape[i]));
  return nb::steal<nb::tuple>(tuple);
}

Device to_device(nb::handle pair) {
  Device device;
  if (!pair.is_valid() || pair.is_none()) return device;
  device.type = static_cast<DeviceType>(nb::cast<int32_t>(nb::object(pair[0])));
  device.id = nb::cast<int32_t>(nb::object(pair[1]));
  check(device.type != DeviceType::gpu, "[context] expected a usable device, got gpu(", device.id,
        "); there is no GPU backend here, mx.num_gpus() is 0; use mx.cpu()");
  return device;
}

nb::tuple from_device(Device device) {
  return nb::make_tuple(static_cast<int>(device.type), device.id);
}

DType to_dtype(int64_t code) {
  const auto dtype = static_cast<DType>(code);
  check(size_of(dtype) != 0, "[dtype] expected a known type code, got ", code);
  return dtype;
}

Desc to_desc(nb::handle tuple) {
  Desc desc;
  desc.dtype = to_dtype(nb::cast<int64_t>(nb::object(tuple[0])));
  desc.shape = to_shape(nb::object(tuple[1]));
  const size_t size = nb::len(tuple);
  if (size > 2) desc.layout.id = nb::cast<uint32_t>(nb::object(tuple[2]));
  if (size > 3) desc.device = to_device(nb::object(tuple[3]));
  return desc;
}

std::vector<Desc> to_descs(nb::handle sequence) {
  std::vector<Desc> descs;
  for (nb::handle item : sequence) descs.push_back(to_desc(item));
  return descs;
}

std::vector<double> to_numbers(nb::handle sequence) {
  std::vector<double> numbers;
  for (nb::handle item : sequence) {
    const double number = PyFloat_AsDouble(item.ptr());
    if (number == -1.0 && PyErr_Occurred()) throw nb::python_error();
    numbers.push_back(number);
  }
  return numbers;
}

}  // namespace mixflow::bind
