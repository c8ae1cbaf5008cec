// The NumPy edge: dtypes, bytes, views, and Python callables as plan steps.
#include <nanobind/ndarray.h>

#include <array>

#include "bind/convert.h"

namespace mixflow::bind {
namespace {

nb::object numpy() {
  static PyObject* module = nb::module_::import_("numpy").release().ptr();
  return nb::borrow(module);
}

const char* numpy_name(DType dtype) {
  switch (dtype) {
    case DType::float32:
      return "float32";
    case DType::float64:
      return "float64";
    case DType::float16:
      return "float16";
    case DType::uint8:
      return "uint8";
    case DType::int32:
      return "int32";
    case DType::int8:
      return "int8";
    case DType::int64:
      return "int64";
    case DType::boolean:
      return "bool";
    case DType::bfloat16:
      return "uint16";
  }
  return "";
}

nb::dlpack::dtype view_type(DType dtype) {
  using Code = nb::dlpack::dtype_code;
  auto code = Code::Float;
  if (dtype == DType::uint8 || dtype == DType::bfloat16) code = Code::UInt;
  if (dtype == DType::int8 || dtype == DType::int32 || dtype == DType::int64) code = Code::Int;
  if (dtype == DType::boolean) code = Code::Bool;
  return {static_cast<uint8_t>(code), static_cast<uint8_t>(size_of(dtype) * 8), 1};
}

class PythonHostCall final : public plan::HostCall {
 public:
  explicit PythonHostCall(nb::handle callable) : callable_(hold(callable)) {}

  void call(const std::vector<plan::HostBuffer>& inputs,
            const std::vector<plan::HostBuffer>& outputs,
            const kernels::RunContext& context) const override {
    nb::gil_scoped_acquire locked;
    drain_graveyard();
    try {
      nb::list in;
      nb::list out;
      for (const auto& buffer : inputs) in.append(view_or_none(buffer, false));
      for (const auto& buffer : outputs) out.append(view_or_none(buffer, true));
      nb::handle(callable_.get())(in, out, nb::make_tuple(context.seed, context.draw));
    } catch (const nb::python_error& error) {
      throw_as_error(error);
    } catch (const abi::__forced_unwind&) {
      park();
    }
  }

 private:
  static nb::object view_or_none(const plan::HostBuffer& buffer, bool writable) {
    return buffer.data ? numpy_view(buffer, writable) : nb::none();
  }

  Held callable_;
};

}  // namespace

nb::object numpy_dtype(DType dtype) {
  static std::array<PyObject*, 16> cache{};
  PyObject*& found = cache.at(static_cast<size_t>(dtype));
  if (!found) {
    nb::object made =
        dtype == DType::bfloat16
            ? numpy().attr("dtype")(nb::module_::import_("ml_dtypes").attr("bfloat16"))
            : numpy().attr("dtype")(numpy_name(dtype));
    found = made.release().ptr();
  }
  return nb::borrow(found);
}

DType dtype_of(nb::handle array) {
  nb::object dtype = array.attr("dtype");
  check(nb::cast<bool>(dtype.attr("isnative")), "[numpy] expected native byte order, got ",
        nb::str(dtype).c_str());
  switch (nb::cast<int>(dtype.attr("num"))) {  // NumPy's type numbers
    case 0:
      return DType::boolean;
    case 1:
      return DType::int8;
    case 2:
      return DType::uint8;
    case 5:
      return DType::int32;
    case 7:
    case 9:
      return DType::int64;
    case 11:
      return DType::float32;
    case 12:
      return DType::float64;
    case 23:
      return DType::float16;
    default:
      break;
  }
  const std::string name = nb::str(dtype).c_str();
  check(name == "bfloat16", "[numpy] expected one of mixflow's element types, got ", name);
  return DType::bfloat16;
}

NumpyBytes::NumpyBytes(nb::handle array, bool writable) {
  nb::object plain = nb::borrow(array);
  // ml_dtypes arrays have no buffer protocol; their bits do.
  if (dtype_of(array) == DType::bfloat16) plain = array.attr("view")("uint16");
  const int flags = PyBUF_C_CONTIGUOUS | (writable ? PyBUF_WRITABLE : 0);
  if (PyObject_GetBuffer(plain.ptr(), &buffer_, flags) != 0) {
    PyErr_Clear();
    throw Error(writable ? "[numpy] expected a writable C-contiguous array"
                         : "[numpy] expected a C-contiguous array");
  }
}

nb::object numpy_view(const plan::HostBuffer& buffer, bool writable) {
  const Desc& desc = *buffer.desc;
  std::array<size_t, Shape::kMaxDims> dims{};
  for (int i = 0; i < desc.shape.ndim(); ++i) dims[i] = static_cast<size_t>(desc.shape[i]);
  auto owner = std::make_unique<storage::BlockRef>(buffer.owner);
  nb::capsule keeper(owner.get(), [](void* p) noexcept {
    std::unique_ptr<storage::BlockRef> last(static_cast<storage::BlockRef*>(p));
  });
  owner.release();
  const auto ndim = static_cast<size_t>(desc.shape.ndim());
  nb::object made;
  if (writable) {
    made = nb::cast(nb::ndarray<nb::numpy>(buffer.data, ndim, dims.data(), keeper, nullptr,
                                           view_type(desc.dtype)));
  } else {
    made = nb::cast(nb::ndarray<nb::numpy, nb::ro>(buffer.data, ndim, dims.data(), keeper, nullptr,
                                                   view_type(desc.dtype)));
  }
  if (desc.dtype == DType::bfloat16) made = made.attr("view")(numpy_dtype(desc.dtype));
  return made;
}

std::shared_ptr<const plan::HostCall> make_host_call(nb::handle callable) {
  return std::make_shared<PythonHostCall>(callable);
}

}  // namespace mixflow::bind
