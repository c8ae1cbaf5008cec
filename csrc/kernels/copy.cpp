// Kernels that move elements without changing them, and those that make constants.
#include <cstring>

#include "kernels/dispatch.h"
#include "kernels/strided.h"

namespace mixflow::kernels {
namespace {

using Dims = std::vector<int64_t>;

Dims dims_of(const Shape& shape) { return Dims(shape.begin(), shape.end()); }

// Some inputs copied into places of the output; with `whole`, input 0 is copied first, unless it is
// the output's memory (then the places are changed in it).
class PlacesKernel final : public Kernel {
 public:
  struct Place {
    int input;
    StridedCopy copy;
    int64_t source_offset;  // bytes
    int64_t target_offset;  // bytes
  };

  PlacesKernel(const Request& r, std::vector<Place> places, bool whole = false)
      : places_(std::move(places)), whole_bytes_(whole ? size_t(r.inputs[0].bytes()) : 0) {
    double cost = 0.03 * static_cast<double>(whole_bytes_);
    for (const Place& place : places_) cost += place.copy.cost();
    set_cost(*this, r, cost);
  }

  void run(const Buffers& buffers, const RunContext&) const override {
    char* out = static_cast<char*>(buffers.out[0]);
    if (whole_bytes_ != 0 && buffers.in[0] != out) std::memcpy(out, buffers.in[0], whole_bytes_);
    for (const Place& place : places_) {
      const char* in = static_cast<const char*>(buffers.in[place.input]);
      place.copy.run(in + place.source_offset, out + place.target_offset, threads);
    }
  }

 private:
  std::vector<Place> places_;
  size_t whole_bytes_;
};

int64_t element(const Desc& desc) { return static_cast<int64_t>(size_of(desc.dtype)); }

std::unique_ptr<Kernel> one_copy(const Request& r, const Dims& source, int64_t offset = 0) {
  expect_dtype(r, "an output", r.outputs[0].dtype, r.inputs[0].dtype);
  const Dims dims = dims_of(r.outputs[0].shape);
  const int64_t size = element(r.outputs[0]);
  StridedCopy copy(dims, source, plain_strides(dims), size_t(size));
  std::vector<PlacesKernel::Place> places{{0, std::move(copy), offset * size, 0}};
  return std::make_unique<PlacesKernel>(r, std::move(places));
}

std::unique_ptr<Kernel> make_flat(const Request& r) {
  expect_plain(r);
  expect_counts(r, 1, 1);
  check(r.inputs[0].bytes() == r.outputs[0].bytes(), "[", r.primitive, "] expected ",
        r.inputs[0].shape.size(), " elements, got ", r.outputs[0].shape.str());
  auto kernel = one_copy(r, plain_strides(dims_of(r.outputs[0].shape)));
  if (r.primitive == "reshape") kernel->inplace.emplace_back(0, 0);
  return kernel;
}

std::unique_ptr<Kernel> make_permute(const Request& r) {
  expect_plain(r);
  expect_counts(r, 1, 1);
  const Dims from = dims_of(r.inputs[0].shape);
  const Dims strides = plain_strides(from);
  const auto& axes = r.attrs.integers("axes");
  check(axes.size() == from.size(), "[permute] expected ", from.size(), " axes, got ", axes.size());
  Dims dims;
  Dims source;
  std::vector<bool> seen(from.size(), false);
  for (int64_t item : axes) {
    const int64_t axis = checked_axis(r, item, static_cast<int>(from.size()));
    check(!seen[axis], "[permute] expected each axis once, got axis ", axis, " twice");
    seen[axis] = true;
    dims.push_back(from[axis]);
    source.push_back(strides[axis]);
  }
  expect_shape(r, "an output", r.outputs[0].shape, Shape(dims.begin(), dims.end()));
  return one_copy(r, source);
}

// Strides that read `from` as if it had the shape `to`.
Dims broadcast_strides(const Request& r, const Shape& from, const Shape& to) {
  check(from.ndim() <= to.ndim(), "[", r.primitive, "] expected at most ", to.ndim(),
        " dimensions, got ", from.str());
  const Dims plain = plain_strides(dims_of(from));
  Dims strides(to.ndim(), 0);
  const int shift = to.ndim() - from.ndim();
  for (int i = 0; i < from.ndim(); ++i) {
    check(from[i] == 1 || from[i] == to[i + shift], "[", r.primitive,
          "] expected a shape that broadcasts to ", to.str(), ", got ", from.str());
    strides[i + shift] = from[i] == 1 ? 0 : plain[i];
  }
  return strides;
}

std::unique_ptr<Kernel> make_broadcast(const Request& r) {
  expect_plain(r);
  expect_counts(r, 1, 1);
  return one_copy(r, broadcast_strides(r, r.inputs[0].shape, r.outputs[0].shape));
}

struct SliceView {
  Dims dims;
  Dims strides;
  int64_t offset = 0;
};

SliceView slice_view(const Request& r, const Shape& shape) {
  const auto& begin = r.attrs.integers("begin");
  const auto& end = r.attrs.integers("end");
  const auto& step = r.attrs.integers("step");
  const auto ndim = static_cast<size_t>(shape.ndim());
  check(begin.size() == ndim && end.size() == ndim && step.size() == ndim, "[", r.primitive,
        "] expected begin, end and step of ", ndim, " entries, got ", begin.size(), ", ",
        end.size(), ", ", step.size());
  SliceView view;
  view.strides = plain_strides(dims_of(shape));
  for (size_t i = 0; i < ndim; ++i) {
    check(step[i] != 0, "[", r.primitive, "] expected a step other than 0 on axis ", i);
    const int64_t away = step[i] > 0 ? step[i] - 1 : step[i] + 1;
    const int64_t length = std::max<int64_t>(0, (end[i] - begin[i] + away) / step[i]);
    const int64_t last = begin[i] + (length - 1) * step[i];
    const int64_t dim = shape[static_cast<int>(i)];
    check(length == 0 || (begin[i] >= 0 && begin[i] < dim && last >= 0 && last < dim), "[",
          r.primitive, "] expected a range inside [0, ", dim, ") on axis ", i, ", got ", begin[i],
          " to ", last);
    view.dims.push_back(length);
    if (length > 0) view.offset += begin[i] * view.strides[i];
    view.strides[i] *= step[i];
  }
  return view;
}

std::unique_ptr<Kernel> make_strided_slice(const Request& r) {
  expect_plain(r);
  expect_counts(r, 1, 1);
  const SliceView view = slice_view(r, r.inputs[0].shape);
  expect_shape(r, "an output", r.outputs[0].shape, Shape(view.dims.begin(), view.dims.end()));
  return one_copy(r, view.strides, r.outputs[0].shape.size() == 0 ? 0 : view.offset);
}

std::unique_ptr<Kernel> make_reverse(const Request& r) {
  expect_plain(r);
  expect_counts(r, 1, 1);
  const Shape& shape = r.inputs[0].shape;
  expect_shape(r, "an output", r.outputs[0].shape, shape);
  Dims strides = plain_strides(dims_of(shape));
  int64_t offset = 0;
  for (int64_t item : r.attrs.integers("axes")) {
    const auto axis = static_cast<int>(checked_axis(r, item, shape.ndim()));
    offset += (shape[axis] - 1) * strides[axis];
    strides[axis] = -strides[axis];
  }
  return one_copy(r, strides, shape.size() == 0 ? 0 : offset);
}

std::unique_ptr<Kernel> make_concatenate(const Request& r) {
  expect_plain(r);
  check(!r.inputs.empty(), "[concatenate] expected inputs, got none");
  expect_counts(r, r.inputs.size(), 1);
  const Shape& whole = r.outputs[0].shape;
  const auto axis = static_cast<int>(checked_axis(r, r.attrs.integer("axis"), whole.ndim()));
  const Dims target = plain_strides(dims_of(whole));
  const int64_t size = element(r.outputs[0]);
  std::vector<PlacesKernel::Place> places;
  int64_t start = 0;
  for (size_t i = 0; i < r.inputs.size(); ++i) {
    const Shape& shape = r.inputs[i].shape;
    expect_dtype(r, "inputs", r.inputs[i].dtype, r.outputs[0].dtype);
    check(shape.ndim() == whole.ndim(), "[concatenate] expected inputs of ", whole.ndim(),
          " dimensions, got ", shape.str());
    for (int d = 0; d < whole.ndim(); ++d) {
      check(d == axis || shape[d] == whole[d], "[concatenate] expected inputs that fit ",
            whole.str(), " off axis ", axis, ", got ", shape.str());
    }
    const Dims dims = dims_of(shape);
    StridedCopy copy(dims, plain_strides(dims), target, size_t(size));
    places.push_back({static_cast<int>(i), std::move(copy), 0, start * target[axis] * size});
    start += shape[axis];
  }
  check(start == whole[axis], "[concatenate] expected inputs of total length ", whole[axis],
        " along axis ", axis, ", got ", start);
  return std::make_unique<PlacesKernel>(r, std::move(places));
}

std::unique_ptr<Kernel> make_assign(const Request& r) {
  expect_plain(r);
  expect_counts(r, 2, 1);
  for (const Desc& desc : r.inputs) {
    expect_shape(r, "inputs", desc.shape, r.outputs[0].shape);
    expect_dtype(r, "inputs", desc.dtype, r.outputs[0].dtype);
  }
  const Dims dims = dims_of(r.outputs[0].shape);
  const Dims strides = plain_strides(dims);
  std::vector<PlacesKernel::Place> places{
      {1, StridedCopy(dims, strides, strides, size_t(element(r.outputs[0]))), 0, 0}};
  auto kernel = std::make_unique<PlacesKernel>(r, std::move(places));
  kernel->inplace = {{0, 0}, {0, 1}};
  return kernel;
}

std::unique_ptr<Kernel> make_slice_assign(const Request& r) {
  expect_plain(r);
  expect_counts(r, 2, 1);
  const Shape& shape = r.outputs[0].shape;
  expect_shape(r, "a variable", r.inputs[0].shape, shape);
  for (const Desc& desc : r.inputs) expect_dtype(r, "inputs", desc.dtype, r.outputs[0].dtype);
  const SliceView view = slice_view(r, shape);
  const Shape slice(view.dims.begin(), view.dims.end());
  const int64_t size = element(r.outputs[0]);
  StridedCopy copy(view.dims, broadcast_strides(r, r.inputs[1].shape, slice), view.strides,
                   size_t(size));
  std::vector<PlacesKernel::Place> places{{1, std::move(copy), 0, view.offset * size}};
  auto kernel = std::make_unique<PlacesKernel>(r, std::move(places), true);
  // The usual caller passes the variable's own memory, so the whole copy does not count.
  set_cost(*kernel, r, 0.1 * static_cast<double>(slice.size() * size));
  kernel->inplace = {{0, 0}};
  return kernel;
}

// Zeros with the value in the region: the gradient of strided_slice.
class UnsliceKernel final : public Kernel {
 public:
  UnsliceKernel(const Request& r, StridedCopy copy, int64_t offset)
      : copy_(std::move(copy)), offset_(offset), bytes_(size_t(r.outputs[0].bytes())) {
    set_cost(*this, r, 0.03 * static_cast<double>(bytes_) + copy_.cost());
  }

  void run(const Buffers& buffers, const RunContext&) const override {
    if (bytes_ == 0) return;
    std::memset(buffers.out[0], 0, bytes_);
    copy_.run(buffers.in[0], static_cast<char*>(buffers.out[0]) + offset_, threads);
  }

 private:
  StridedCopy copy_;
  int64_t offset_;
  size_t bytes_;
};

std::unique_ptr<Kernel> make_unslice(const Request& r) {
  expect_plain(r);
  expect_counts(r, 1, 1);
  expect_dtype(r, "an output", r.outputs[0].dtype, r.inputs[0].dtype);
  const SliceView view = slice_view(r, r.outputs[0].shape);
  expect_shape(r, "a value", r.inputs[0].shape, Shape(view.dims.begin(), view.dims.end()));
  const int64_t size = element(r.outputs[0]);
  StridedCopy copy(view.dims, plain_strides(view.dims), view.strides, size_t(size));
  return std::make_unique<UnsliceKernel>(r, std::move(copy), view.offset * size);
}

// full and iota: element i = start + step * (i / repeat), in double, or in int64 for integers.
class IotaKernel final : public Kernel {
 public:
  IotaKernel(const Request& r, double start, double step, int64_t repeat)
      : dtype_(r.outputs[0].dtype),
        count_(r.outputs[0].shape.size()),
        start_(start),
        step_(step),
        repeat_(repeat) {
    set_cost(*this, r, (step == 0.0 ? 0.1 : 1.5) * static_cast<double>(count_));
  }

  void run(const Buffers& buffers, const RunContext&) const override {
    with_dtype(dtype_, [&](auto tag) {
      using T = typename decltype(tag)::type;
      T* out = static_cast<T*>(buffers.out[0]);
      parallel_for(threads, count_, 4096, [&](int64_t begin, int64_t end) {
        if (step_ == 0.0) {
          std::fill(out + begin, out + end, store<T>(start_));
          return;
        }
        for (int64_t i = begin; i < end; ++i) {
          const auto position = static_cast<double>(repeat_ == 1 ? i : i / repeat_);
          out[i] = store<T>(start_ + step_ * position);
        }
      });
    });
  }

 private:
  DType dtype_;
  int64_t count_;
  double start_;
  double step_;
  int64_t repeat_;
};

std::unique_ptr<Kernel> make_full(const Request& r) {
  expect_plain(r);
  expect_counts(r, 0, 1);
  return std::make_unique<IotaKernel>(r, r.attrs.number("value"), 0.0, 1);
}

std::unique_ptr<Kernel> make_iota(const Request& r) {
  expect_plain(r);
  expect_counts(r, 0, 1);
  const int64_t repeat = r.attrs.has("repeat") ? r.attrs.integer("repeat") : 1;
  check(repeat > 0, "[iota] expected repeat above 0, got ", repeat);
  return std::make_unique<IotaKernel>(r, r.attrs.number("start"), r.attrs.number("step"), repeat);
}

}  // namespace

void register_copy_kernels(Registry& registry) {
  registry.add("copy", 0, "plain", make_flat);
  registry.add("reshape", 0, "plain", make_flat);
  registry.add("permute", 0, "plain", make_permute);
  registry.add("broadcast", 0, "plain", make_broadcast);
  registry.add("strided_slice", 0, "plain", make_strided_slice);
  registry.add("unslice", 0, "plain", make_unslice);
  registry.add("reverse", 0, "plain", make_reverse);
  registry.add("concatenate", 0, "plain", make_concatenate);
  registry.add("assign", 0, "plain", make_assign);
  registry.add("slice_assign", 0, "plain", make_slice_assign);
  registry.add("full", 0, "plain", make_full);
  registry.add("iota", 0, "plain", make_iota);
}

}  // namespace mixflow::kernels
