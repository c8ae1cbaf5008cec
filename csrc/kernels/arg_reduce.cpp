// arg_max and arg_min: the first position of the extreme, or of the first NaN.
#include "kernels/dispatch.h"
#include "kernels/integers.h"
#include "kernels/reduce_loops.h"

namespace mixflow::kernels {
namespace {

// Whether `x` replaces the best so far: later equal elements and anything after a NaN do not.
template <class C>
bool beats(C x, C best, bool max) {
  return (max ? x > best : x < best) || (x != x && best == best);
}

class ArgReduceKernel final : public Kernel {
 public:
  ArgReduceKernel(const Request& r, int64_t axis, bool max)
      : view_(axis_view(r.inputs[0].shape, axis)),
        dtype_(r.inputs[0].dtype),
        out_dtype_(r.outputs[0].dtype),
        max_(max) {
    row_ = reduce_table().row(max ? ReduceOp::max : ReduceOp::min, dtype_);
    set_cost(*this, r, 0.5 * r.inputs[0].shape.size());
  }

  void run(const Buffers& buffers, const RunContext&) const override {
    with_dtype(dtype_, [&](auto tag) {
      using T = typename decltype(tag)::type;
      const T* x = static_cast<const T*>(buffers.in[0]);
      parallel_for(threads, view_.outer, 1, [&](int64_t begin, int64_t end) {
        for (int64_t o = begin; o < end; ++o) {
          const T* slab = x + o * view_.length * view_.inner;
          if (view_.inner == 1) {
            const int64_t position = row_position(slab);
            write_integers(out_dtype_, &position, 1, buffers.out[0], o);
          } else {
            columns(slab, o, buffers.out[0]);
          }
        }
      });
    });
  }

 private:
  // Two passes: the extreme by the vectorised reduction, then a search for it.
  template <class T>
  int64_t row_position(const T* x) const {
    using C = Computed<T>;
    using A = std::conditional_t<std::is_same_v<C, int64_t>, int64_t, double>;
    A best = static_cast<A>(compute(x[0]));
    row_(x, view_.length, &best);
    const C extreme = static_cast<C>(best);
    for (int64_t i = 0; i < view_.length; ++i) {
      const C value = compute(x[i]);
      if (value == extreme || value != value) return i;
    }
    return 0;
  }

  template <class T>
  void columns(const T* slab, int64_t outer, void* out) const {
    using C = Computed<T>;
    C best[kIndexBlock];
    int64_t position[kIndexBlock];
    for (int64_t c = 0; c < view_.inner; c += kIndexBlock) {
      const int64_t n = std::min(kIndexBlock, view_.inner - c);
      for (int64_t j = 0; j < n; ++j) {
        best[j] = compute(slab[c + j]);
        position[j] = 0;
      }
      for (int64_t i = 1; i < view_.length; ++i) {
        const T* line = slab + i * view_.inner + c;
        for (int64_t j = 0; j < n; ++j) {
          const C value = compute(line[j]);
          const bool better = beats(value, best[j], max_);
          best[j] = better ? value : best[j];
          position[j] = better ? i : position[j];
        }
      }
      write_integers(out_dtype_, position, n, out, outer * view_.inner + c);
    }
  }

  AxisView view_;
  DType dtype_;
  DType out_dtype_;
  bool max_;
  ReduceRow row_ = nullptr;
};

std::unique_ptr<Kernel> make_arg_reduce(const Request& r, bool max) {
  expect_plain(r);
  expect_counts(r, 1, 1);
  const Shape& shape = r.inputs[0].shape;
  const int64_t axis = checked_axis(r, r.attrs.integer("axis"), shape.ndim());
  check(shape[axis] > 0 || shape.size() != 0 || r.outputs[0].shape.size() == 0, "[", r.primitive,
        "] expected a non-empty axis, got shape ", shape.str());
  std::vector<int64_t> dims(shape.begin(), shape.end());
  dims[axis] = 1;
  if (!r.attrs.flag("keepdims")) dims.erase(dims.begin() + axis);
  expect_shape(r, "an output", r.outputs[0].shape, Shape(dims.begin(), dims.end()));
  return std::make_unique<ArgReduceKernel>(r, axis, max);
}

}  // namespace

void register_arg_reduce_kernels(Registry& registry) {
  registry.add("arg_max", 0, "plain", [](const Request& r) { return make_arg_reduce(r, true); });
  registry.add("arg_min", 0, "plain", [](const Request& r) { return make_arg_reduce(r, false); });
}

}  // namespace mixflow::kernels
