// Between Python values and those of the core. All of it needs the GIL.
#pragma once

#include <vector>

#include "base/desc.h"
#include "bind/python.h"
#include "plan/array.h"
#include "plan/plan.h"

namespace mixflow::bind {

// The C++ part of an array object: a handle and the tape's slot (null = None).
struct PyArray {
  plan::Array array;
  PyObject* autograd = nullptr;
  ~PyArray() { Py_XDECREF(autograd); }
};

// A tag that is no array's: a chunk without memory.
struct PyTag {
  plan::ChunkRef chunk;
};

extern PyTypeObject* core_array_type;  // core.Array
extern PyTypeObject* array_class;      // what calls return: core.Array or mixflow.NDArray

inline bool is_array(nb::handle object) {
  return Py_TYPE(object.ptr()) == array_class || PyObject_TypeCheck(object.ptr(), core_array_type);
}
inline PyArray& as_array(nb::handle object) { return *nb::inst_ptr<PyArray>(object); }
// The storage or tag of an array or a tag; throws Error for anything else.
const plan::ChunkRef& chunk_of(nb::handle item);
// Throws Error naming `what` when the object is not an array.
PyArray& to_array(nb::handle object, const char* what);
std::vector<plan::Array> to_arrays(nb::handle sequence, const char* what);
// A new Python object of the class that calls return, or of `cls`.
nb::object wrap(plan::Array array, nb::handle cls = nb::handle());

Shape to_shape(nb::handle sequence);
nb::tuple from_shape(const Shape& shape);
Device to_device(nb::handle pair);  // None = cpu(0)
nb::tuple from_device(Device device);
DType to_dtype(int64_t code);
Desc to_desc(nb::handle tuple);
std::vector<Desc> to_descs(nb::handle sequence);
std::vector<double> to_numbers(nb::handle sequence);

// NumPy: dtype of a code, code of a dtype (Error when unknown), a fresh array, bytes of an array.
nb::object numpy_dtype(DType dtype);
DType dtype_of(nb::handle numpy_array);
// A view of foreign memory as a NumPy array; `owner` lives as long as the view.
nb::object numpy_view(const plan::HostBuffer& buffer, bool writable);

// The bytes of a C-contiguous NumPy array, any dtype.
class NumpyBytes {
 public:
  // Error when it is not C-contiguous, or read-only where it is to be written.
  NumpyBytes(nb::handle array, bool writable);
  ~NumpyBytes() { PyBuffer_Release(&buffer_); }
  NumpyBytes(const NumpyBytes&) = delete;
  NumpyBytes& operator=(const NumpyBytes&) = delete;
  void* data() const { return buffer_.buf; }
  size_t size() const { return static_cast<size_t>(buffer_.len); }

 private:
  Py_buffer buffer_{};
};

// Wraps a callable as a plan step.
std::shared_ptr<const plan::HostCall> make_host_call(nb::handle callable);

}  // namespace mixflow::bind
