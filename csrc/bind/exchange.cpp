// Memory shared with other libraries: DLPack both ways, and borrowed NumPy memory.
#include <nanobind/ndarray.h>

#include <array>

#include "bind/modules.h"
#include "bind/waits.h"

namespace mixflow::bind {
namespace {

nb::dlpack::dtype dlpack_type(DType dtype) {
  using Code = nb::dlpack::dtype_code;
  Code code = Code::Float;
  switch (dtype) {
    case DType::uint8:
      code = Code::UInt;
      break;
    case DType::int8:
    case DType::int32:
    case DType::int64:
      code = Code::Int;
      break;
    case DType::boolean:
      code = Code::Bool;
      break;
    case DType::bfloat16:
      code = Code::Bfloat;
      break;
    default:
      break;
  }
  return {static_cast<uint8_t>(code), static_cast<uint8_t>(size_of(dtype) * 8), 1};
}

DType dtype_from(nb::dlpack::dtype type) {
  constexpr std::array<DType, 9> kAll{DType::float32, DType::float64, DType::float16,
                                      DType::uint8,   DType::int32,   DType::int8,
                                      DType::int64,   DType::boolean, DType::bfloat16};
  for (DType dtype : kAll) {
    if (dlpack_type(dtype) == type) return dtype;
  }
  throw Error(concat("[from_dlpack] expected one of mixflow's element types, got code ",
                     static_cast<int>(type.code), " with ", static_cast<int>(type.bits), " bits"));
}

plan::Array over_memory(void* data, const Desc& desc, std::function<void()> release) {
  plan::Array array;
  array.desc = desc;
  const auto bytes = static_cast<size_t>(desc.bytes());
  array.chunk = std::make_shared<plan::Chunk>(storage::external(data, bytes, std::move(release)),
                                              bytes, desc.device);
  array.chunk->share_plain();
  return array;
}

nb::object to_dlpack(nb::handle self, const nb::kwargs&) {
  const Entered scope;
  const plan::Array array = as_array(self).array;
  wait_to_write(array);  // the consumer may write as well as read
  array.chunk->share_plain();
  std::array<size_t, Shape::kMaxDims> dims{};
  const Shape& shape = array.desc.shape;
  for (int i = 0; i < shape.ndim(); ++i) dims[i] = static_cast<size_t>(shape[i]);
  auto owner = std::make_unique<plan::Array>(array);
  void* data = array.data();
  nb::capsule keeper(owner.get(), [](void* p) noexcept {
    std::unique_ptr<plan::Array> last(static_cast<plan::Array*>(p));
  });
  owner.release();
  return nb::cast(nb::ndarray<>(data, static_cast<size_t>(shape.ndim()), dims.data(), keeper,
                                nullptr, dlpack_type(array.desc.dtype)));
}

nb::object from_dlpack(nb::handle source) {
  const Entered scope;
  using Import = nb::ndarray<nb::ro, nb::c_contig, nb::device::cpu>;
  Import imported;
  try {
    imported = nb::cast<Import>(source);
  } catch (const nb::cast_error&) {
    throw Error("[from_dlpack] expected a C-contiguous tensor in host memory");
  }
  Desc desc;
  desc.dtype = dtype_from(imported.dtype());
  std::vector<int64_t> dims;
  for (size_t i = 0; i < imported.ndim(); ++i) {
    dims.push_back(static_cast<int64_t>(imported.shape(i)));
  }
  desc.shape = Shape(dims.begin(), dims.end());
  void* data = const_cast<void*>(static_cast<const void*>(imported.data()));
  auto holder = std::make_shared<Import>(imported);
  return wrap(over_memory(data, desc, [holder]() mutable {
    bury([last = std::move(holder)]() mutable { last.reset(); });
  }));
}

// An array over a NumPy array's memory, without a copy. A host call can make arrays of the views
// that it got: its step ends only when its work on them has ended.
nb::object borrow_numpy(nb::handle source, nb::object device) {
  const Entered scope;
  Desc desc;
  desc.dtype = dtype_of(source);
  desc.shape = to_shape(nb::object(source.attr("shape")));
  if (!device.is_none()) desc.device = to_device(device);
  NumpyBytes bytes(source, false);
  plan::Array array = over_memory(bytes.data(), desc, [owner = hold(source)] {});
  return wrap(std::move(array));
}

// A writable view of an array's memory. The memory outlives the array when the view does.
nb::object writable_view(nb::handle object) {
  const Entered scope;
  plan::Array array = to_array(object, "writable_view").array;
  wait_to_write(array);
  array.chunk->pin_plain();
  const plan::HostBuffer buffer{array.data(), &array.desc, array.chunk->block()};
  return numpy_view(buffer, true);
}

}  // namespace

void bind_exchange(nb::module_& m, nb::class_<PyArray>& cls) {
  cls.def("__dlpack__", to_dlpack, nb::arg("kwargs")).def("__dlpack_device__", [](PyArray&) {
    return nb::make_tuple(1, 0);
  });
  m.def("from_dlpack", from_dlpack, nb::arg("capsule"));
  m.def("writable_view", writable_view, nb::arg("array"));
  m.def("borrow_numpy", borrow_numpy, nb::arg("source"), nb::arg("device") = nb::none());
}

}  // namespace mixflow::bind
