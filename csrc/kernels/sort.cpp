// sort, argsort, cumsum.
#include "kernels/dispatch.h"
#include "kernels/integers.h"

namespace mixflow::kernels {
namespace {

// A line is sorted as pairs of value and position. Equal values are ordered by position, so that
// the plain (not stable) library sort, which does not allocate, gives the stable order.
template <class C>
struct Item {
  C value;
  int64_t position;
};

// NaN counts as the largest.
template <class C>
bool less(C a, C b) {
  return a < b || (b != b && a == a);
}

class SortKernel final : public Kernel {
 public:
  SortKernel(const Request& r, int64_t axis, bool positions)
      : view_(axis_view(r.inputs[0].shape, axis)),
        dtype_(r.inputs[0].dtype),
        out_dtype_(r.outputs[0].dtype),
        ascend_(r.attrs.flag("is_ascend")),
        positions_(positions) {
    set_cost(*this, r, 40.0 * r.inputs[0].shape.size());
    workspace_bytes = size_t(threads) * line_bytes();
  }

  void run(const Buffers& buffers, const RunContext&) const override {
    if (view_.length == 0) return;
    const int64_t lines = view_.outer * view_.inner;
    parallel_for(threads, threads, 1, [&](int64_t first, int64_t last) {
      for (int64_t part = first; part < last; ++part) {
        char* line = static_cast<char*>(buffers.workspace) + part * line_bytes();
        for (int64_t l = lines * part / threads; l < lines * (part + 1) / threads; ++l) {
          sort_line(buffers, l, line);
        }
      }
    });
  }

 private:
  int64_t line_bytes() const { return (view_.length * 16 + 63) / 64 * 64; }

  void sort_line(const Buffers& buffers, int64_t line, char* scratch) const {
    const int64_t start = line / view_.inner * view_.length * view_.inner + line % view_.inner;
    with_dtype(dtype_, [&](auto tag) {
      using T = typename decltype(tag)::type;
      using C = Computed<T>;
      const T* x = static_cast<const T*>(buffers.in[0]) + start;
      auto* items = reinterpret_cast<Item<C>*>(scratch);
      for (int64_t i = 0; i < view_.length; ++i) items[i] = {compute(x[i * view_.inner]), i};
      order(items);
      if (positions_) {
        for (int64_t i = 0; i < view_.length; ++i) {
          write_integers(out_dtype_, &items[i].position, 1, buffers.out[0],
                         start + i * view_.inner);
        }
      } else {
        T* out = static_cast<T*>(buffers.out[0]) + start;
        for (int64_t i = 0; i < view_.length; ++i) out[i * view_.inner] = store<T>(items[i].value);
      }
    });
  }

  template <class C>
  void order(Item<C>* items) const {
    const auto up = [](const Item<C>& a, const Item<C>& b) {
      if (less(a.value, b.value)) return true;
      return !less(b.value, a.value) && a.position < b.position;
    };
    const auto down = [](const Item<C>& a, const Item<C>& b) {
      if (less(b.value, a.value)) return true;
      return !less(a.value, b.value) && a.position < b.position;
    };
    if (ascend_) {
      std::sort(items, items + view_.length, up);
    } else {
      std::sort(items, items + view_.length, down);
    }
  }

  AxisView view_;
  DType dtype_;
  DType out_dtype_;
  bool ascend_;
  bool positions_;
};

std::unique_ptr<Kernel> make_sort(const Request& r, bool positions) {
  expect_plain(r);
  expect_counts(r, 1, 1);
  const Shape& shape = r.inputs[0].shape;
  expect_shape(r, "an output", r.outputs[0].shape, shape);
  if (!positions) expect_dtype(r, "an output", r.outputs[0].dtype, r.inputs[0].dtype);
  const int64_t axis = checked_axis(r, r.attrs.integer("axis"), shape.ndim());
  return std::make_unique<SortKernel>(r, axis, positions);
}

// Columns side by side; the running sums of a block of columns stay on the stack.
class CumsumKernel final : public Kernel {
 public:
  CumsumKernel(const Request& r, int64_t axis)
      : view_(axis_view(r.inputs[0].shape, axis)), dtype_(r.inputs[0].dtype) {
    set_cost(*this, r, 1.5 * r.inputs[0].shape.size());
    inplace = {{0, 0}};
  }

  void run(const Buffers& buffers, const RunContext&) const override {
    const int64_t blocks = (view_.inner + kIndexBlock - 1) / kIndexBlock;
    parallel_for(threads, view_.outer * blocks, 1, [&](int64_t begin, int64_t end) {
      with_dtype(dtype_, [&](auto tag) {
        using T = typename decltype(tag)::type;
        for (int64_t unit = begin; unit < end; ++unit) {
          const int64_t column = unit % blocks * kIndexBlock;
          const int64_t start = unit / blocks * view_.length * view_.inner + column;
          sum_block(static_cast<const T*>(buffers.in[0]) + start,
                    static_cast<T*>(buffers.out[0]) + start,
                    std::min(kIndexBlock, view_.inner - column));
        }
      });
    });
  }

 private:
  template <class T>
  void sum_block(const T* x, T* out, int64_t n) const {
    using C = Computed<T>;
    using A = std::conditional_t<std::is_same_v<C, int64_t>, int64_t, double>;
    A total[kIndexBlock] = {};
    for (int64_t i = 0; i < view_.length; ++i) {
      const T* from = x + i * view_.inner;
      T* to = out + i * view_.inner;
      for (int64_t j = 0; j < n; ++j) {
        total[j] += static_cast<A>(compute(from[j]));
        to[j] = store<T>(total[j]);
      }
    }
  }

  AxisView view_;
  DType dtype_;
};

std::unique_ptr<Kernel> make_cumsum(const Request& r) {
  expect_plain(r);
  expect_counts(r, 1, 1);
  const Shape& shape = r.inputs[0].shape;
  expect_shape(r, "an output", r.outputs[0].shape, shape);
  expect_dtype(r, "an output", r.outputs[0].dtype, r.inputs[0].dtype);
  const int64_t axis = checked_axis(r, r.attrs.integer("axis"), shape.ndim());
  return std::make_unique<CumsumKernel>(r, axis);
}

}  // namespace

void register_sort_kernels(Registry& registry) {
  registry.add("sort", 0, "plain", [](const Request& r) { return make_sort(r, false); });
  registry.add("argsort", 0, "plain", [](const Request& r) { return make_sort(r, true); });
  registry.add("cumsum", 0, "plain", make_cumsum);
}

}  // namespace mixflow::kernels
