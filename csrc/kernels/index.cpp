// gather, scatter_add, take_along, put_along_add, one_hot.
#include <cstring>

#include "kernels/index_rule.h"

namespace mixflow::kernels {
namespace {

void copy_all(const Buffers& buffers, size_t bytes) {
  if (buffers.in[0] != buffers.out[0]) std::memcpy(buffers.out[0], buffers.in[0], bytes);
}

class GatherKernel final : public Kernel {
 public:
  GatherKernel(const Request& r, int64_t axis)
      : view_(axis_view(r.inputs[0].shape, axis)),
        count_(r.inputs[1].shape.size()),
        element_(size_of(r.inputs[0].dtype)),
        rule_(index_rule(r, view_.length, r.inputs[1], index_mode(r))) {
    const double elements = static_cast<double>(r.outputs[0].shape.size());
    set_cost(*this, r, 0.05 * elements * element_ + 2.0 * view_.outer * count_);
  }

  void run(const Buffers& buffers, const RunContext&) const override {
    rule_.validate(buffers.in[1], 0, count_);
    with_size(element_, [&](auto tag) {
      using T = typename decltype(tag)::type;
      const T* x = static_cast<const T*>(buffers.in[0]);
      T* out = static_cast<T*>(buffers.out[0]);
      const int64_t block = std::min(kIndexBlock, std::max<int64_t>(1, count_ / threads));
      const int64_t blocks = (count_ + block - 1) / block;
      parallel_for(threads, view_.outer * blocks, 1, [&](int64_t begin, int64_t end) {
        int64_t at[kIndexBlock];
        for (int64_t unit = begin; unit < end; ++unit) {
          const int64_t outer = unit / blocks;
          const int64_t first = unit % blocks * block;
          const int64_t n = std::min(block, count_ - first);
          rule_.read(buffers.in[1], first, n, at);
          rows(x + outer * view_.length * view_.inner,
               out + (outer * count_ + first) * view_.inner, at, n);
        }
      });
    });
  }

 private:
  template <class T>
  void rows(const T* x, T* out, const int64_t* at, int64_t n) const {
    const int64_t inner = view_.inner;
    if (inner == 1) {
      for (int64_t k = 0; k < n; ++k) out[k] = x[at[k]];
      return;
    }
    for (int64_t k = 0; k < n; ++k) {
      std::memcpy(out + k * inner, x + at[k] * inner, static_cast<size_t>(inner) * sizeof(T));
    }
  }

  AxisView view_;
  int64_t count_;
  size_t element_;
  IndexRule rule_;
};

std::unique_ptr<Kernel> make_gather(const Request& r) {
  expect_plain(r);
  expect_counts(r, 2, 1);
  const Shape& shape = r.inputs[0].shape;
  const int64_t axis = checked_axis(r, r.attrs.integer("axis"), shape.ndim());
  std::vector<int64_t> dims(shape.begin(), shape.begin() + axis);
  dims.insert(dims.end(), r.inputs[1].shape.begin(), r.inputs[1].shape.end());
  dims.insert(dims.end(), shape.begin() + axis + 1, shape.end());
  expect_shape(r, "an output", r.outputs[0].shape, Shape(dims.begin(), dims.end()));
  expect_dtype(r, "an output", r.outputs[0].dtype, r.inputs[0].dtype);
  return std::make_unique<GatherKernel>(r, axis);
}

// Threads share out the outer or the inner positions, never the indices: duplicates then add up in
// order on one thread. 16-bit floats add up in float32 in the workspace, or long sums would stall.
class ScatterAddKernel final : public Kernel {
 public:
  ScatterAddKernel(const Request& r, int64_t axis)
      : view_(axis_view(r.inputs[0].shape, axis)),
        count_(r.inputs[1].shape.size()),
        total_(r.inputs[0].shape.size()),
        dtype_(r.inputs[0].dtype),
        narrow_(is_floating(dtype_) && size_of(dtype_) == 2),
        rule_(index_rule(r, view_.length, r.inputs[1], index_mode(r))) {
    set_cost(*this, r, 1.0 * r.inputs[2].shape.size() + 2.0 * view_.outer * count_);
    if (narrow_) workspace_bytes = static_cast<size_t>(total_) * sizeof(float);
    inplace = {{0, 0}};
  }

  void run(const Buffers& buffers, const RunContext&) const override {
    rule_.validate(buffers.in[1], 0, count_);
    with_dtype(dtype_, [&](auto tag) {
      using T = typename decltype(tag)::type;
      T* out = static_cast<T*>(buffers.out[0]);
      if (!narrow_) {
        copy_all(buffers, static_cast<size_t>(total_) * sizeof(T));
        return add_all<T>(buffers, out);
      }
      const T* base = static_cast<const T*>(buffers.in[0]);
      auto* sums = static_cast<Computed<T>*>(buffers.workspace);
      for (int64_t i = 0; i < total_; ++i) sums[i] = compute(base[i]);
      add_all<T>(buffers, sums);
      for (int64_t i = 0; i < total_; ++i) out[i] = store<T>(sums[i]);
    });
  }

 private:
  template <class T, class A>
  void add_all(const Buffers& buffers, A* target) const {
    const bool by_outer = view_.outer >= threads;
    const int64_t units = by_outer ? view_.outer : view_.inner;
    parallel_for(threads, units, by_outer ? 1 : 64, [&](int64_t begin, int64_t end) {
      if (by_outer) return part<T>(buffers, target, begin, end, 0, view_.inner);
      part<T>(buffers, target, 0, view_.outer, begin, end);
    });
  }

  template <class T, class A>
  void part(const Buffers& buffers, A* target, int64_t outer_begin, int64_t outer_end,
            int64_t inner_begin, int64_t inner_end) const {
    const T* updates = static_cast<const T*>(buffers.in[2]);
    int64_t at[kIndexBlock];
    for (int64_t first = 0; first < count_; first += kIndexBlock) {
      const int64_t n = std::min(kIndexBlock, count_ - first);
      rule_.read(buffers.in[1], first, n, at);
      for (int64_t o = outer_begin; o < outer_end; ++o) {
        const T* from = updates + (o * count_ + first) * view_.inner + inner_begin;
        A* to = target + o * view_.length * view_.inner + inner_begin;
        for (int64_t k = 0; k < n; ++k) {
          add_line(from + k * view_.inner, to + at[k] * view_.inner, inner_end - inner_begin);
        }
      }
    }
  }

  AxisView view_;
  int64_t count_;
  int64_t total_;
  DType dtype_;
  bool narrow_;
  IndexRule rule_;
};

std::unique_ptr<Kernel> make_scatter_add(const Request& r) {
  expect_plain(r);
  expect_counts(r, 3, 1);
  const Shape& shape = r.inputs[0].shape;
  const int64_t axis = checked_axis(r, r.attrs.integer("axis"), shape.ndim());
  const AxisView view = axis_view(shape, axis);
  expect_shape(r, "an output", r.outputs[0].shape, shape);
  expect_dtype(r, "an output", r.outputs[0].dtype, r.inputs[0].dtype);
  expect_dtype(r, "updates", r.inputs[2].dtype, r.inputs[0].dtype);
  const int64_t expected = view.outer * r.inputs[1].shape.size() * view.inner;
  check(r.inputs[2].shape.size() == expected, "[scatter_add] expected updates of ", expected,
        " elements, got ", r.inputs[2].shape.str());
  return std::make_unique<ScatterAddKernel>(r, axis);
}

// take_along (add = false) and put_along_add: the indices have the layout of the result or of the
// updates, (outer, count, inner).
class AlongKernel final : public Kernel {
 public:
  AlongKernel(const Request& r, int64_t axis, bool add)
      : view_(axis_view(r.inputs[0].shape, axis)),
        count_(r.inputs[1].shape[static_cast<int>(axis)]),
        bytes_(static_cast<size_t>(r.inputs[0].bytes())),
        dtype_(r.inputs[0].dtype),
        add_(add),
        rule_(index_rule(r, view_.length, r.inputs[1], index_mode(r))) {
    set_cost(*this, r, 3.0 * r.inputs[1].shape.size());
    if (add) inplace = {{0, 0}};
  }

  void run(const Buffers& buffers, const RunContext&) const override {
    rule_.validate(buffers.in[1], 0, view_.outer * count_ * view_.inner);
    if (add_) copy_all(buffers, bytes_);
    if (count_ * view_.inner == 0) return;
    parallel_for(threads, view_.outer, 1, [&](int64_t begin, int64_t end) {
      if (add_) {
        with_dtype(dtype_, [&](auto tag) {
          using T = typename decltype(tag)::type;
          const T* from = static_cast<const T*>(buffers.in[2]);
          T* to = static_cast<T*>(buffers.out[0]);
          walk(buffers.in[1], begin, end, [=](int64_t along, int64_t whole) {
            to[whole] = store<T>(compute(to[whole]) + compute(from[along]));
          });
        });
      } else {
        with_size(size_of(dtype_), [&](auto tag) {
          using T = typename decltype(tag)::type;
          const T* from = static_cast<const T*>(buffers.in[0]);
          T* to = static_cast<T*>(buffers.out[0]);
          walk(buffers.in[1], begin, end,
               [=](int64_t along, int64_t whole) { to[along] = from[whole]; });
        });
      }
    });
  }

 private:
  // Calls body(position in the indices, position in the whole tensor).
  template <class Body>
  void walk(const void* indices, int64_t begin, int64_t end, const Body& body) const {
    int64_t at[kIndexBlock];
    const int64_t slab = count_ * view_.inner;
    for (int64_t first = begin * slab; first < end * slab; first += kIndexBlock) {
      const int64_t n = std::min(kIndexBlock, end * slab - first);
      rule_.read(indices, first, n, at);
      int64_t outer = first / slab;
      int64_t row = first % slab / view_.inner;
      int64_t column = first % view_.inner;
      for (int64_t k = 0; k < n; ++k) {
        body(first + k, (outer * view_.length + at[k]) * view_.inner + column);
        if (++column < view_.inner) continue;
        column = 0;
        if (++row < count_) continue;
        row = 0;
        ++outer;
      }
    }
  }

  AxisView view_;
  int64_t count_;
  size_t bytes_;
  DType dtype_;
  bool add_;
  IndexRule rule_;
};

std::unique_ptr<Kernel> make_along(const Request& r, bool add) {
  expect_plain(r);
  expect_counts(r, add ? 3 : 2, 1);
  const Shape& shape = r.inputs[0].shape;
  const int64_t axis = checked_axis(r, r.attrs.integer("axis"), shape.ndim());
  Shape expected = r.inputs[1].shape;
  check(expected.ndim() == shape.ndim(), "[", r.primitive, "] expected indices of ", shape.ndim(),
        " dimensions, got ", expected.str());
  for (int d = 0; d < shape.ndim(); ++d) {
    check(d == axis || expected[d] == shape[d], "[", r.primitive,
          "] expected indices that fit ", shape.str(), " off axis ", axis, ", got ",
          expected.str());
  }
  if (add) expect_shape(r, "updates", r.inputs[2].shape, expected);
  if (add) expect_dtype(r, "updates", r.inputs[2].dtype, r.inputs[0].dtype);
  expect_shape(r, "an output", r.outputs[0].shape, add ? shape : expected);
  expect_dtype(r, "an output", r.outputs[0].dtype, r.inputs[0].dtype);
  return std::make_unique<AlongKernel>(r, axis, add);
}

class OneHotKernel final : public Kernel {
 public:
  explicit OneHotKernel(const Request& r)
      : count_(r.inputs[0].shape.size()),
        depth_(r.attrs.integer("depth")),
        on_(r.attrs.number("on_value")),
        off_(r.attrs.number("off_value")),
        in_dtype_(r.inputs[0].dtype),
        out_dtype_(r.outputs[0].dtype) {
    set_cost(*this, r, 0.2 * static_cast<double>(count_) * static_cast<double>(depth_));
  }

  void run(const Buffers& buffers, const RunContext&) const override {
    with_dtype(out_dtype_, [&](auto tag) {
      using T = typename decltype(tag)::type;
      T* out = static_cast<T*>(buffers.out[0]);
      parallel_for(threads, count_, kIndexBlock, [&](int64_t begin, int64_t end) {
        std::fill(out + begin * depth_, out + end * depth_, store<T>(off_));
        int64_t at[kIndexBlock];
        for (int64_t first = begin; first < end; first += kIndexBlock) {
          const int64_t n = std::min(kIndexBlock, end - first);
          read_integers(in_dtype_, buffers.in[0], first, n, at);
          for (int64_t k = 0; k < n; ++k) {
            if (at[k] >= 0 && at[k] < depth_) out[(first + k) * depth_ + at[k]] = store<T>(on_);
          }
        }
      });
    });
  }

 private:
  int64_t count_;
  int64_t depth_;
  double on_;
  double off_;
  DType in_dtype_;
  DType out_dtype_;
};

std::unique_ptr<Kernel> make_one_hot(const Request& r) {
  expect_plain(r);
  expect_counts(r, 1, 1);
  std::vector<int64_t> dims(r.inputs[0].shape.begin(), r.inputs[0].shape.end());
  dims.push_back(r.attrs.integer("depth"));
  check(dims.back() >= 0, "[one_hot] expected depth of at least 0, got ", dims.back());
  expect_shape(r, "an output", r.outputs[0].shape, Shape(dims.begin(), dims.end()));
  return std::make_unique<OneHotKernel>(r);
}

}  // namespace

void register_index_kernels(Registry& registry) {
  registry.add("gather", 0, "plain", make_gather);
  registry.add("scatter_add", 0, "plain", make_scatter_add);
  registry.add("take_along", 0, "plain", [](const Request& r) { return make_along(r, false); });
  registry.add("put_along_add", 0, "plain", [](const Request& r) { return make_along(r, true); });
  registry.add("one_hot", 0, "plain", make_one_hot);
}

}  // namespace mixflow::kernels
