// reduce_sum, reduce_prod, reduce_max, reduce_min over any axes.
//
// Neighbouring axes of one kind are merged first. Then either the last axis is reduced (rows), or
// it is kept (columns) and whole lines are combined. Where there are fewer results than threads,
// the outermost reduced axis is split and partial results are combined in a fixed order.
#include <cstring>
#include <limits>

#include "kernels/dispatch.h"
#include "kernels/reduce_loops.h"

namespace mixflow::kernels {
namespace {

struct Dim {
  int64_t size;
  int64_t stride;  // elements
};

constexpr int64_t kAccBytes = 8;
constexpr int64_t kNarrow = 128;  // lines below this are widened by taking rows together

std::vector<bool> reduced_axes(const Request& r) {
  const Shape& shape = r.inputs[0].shape;
  std::vector<bool> reduced(shape.ndim(), false);
  for (int64_t axis : r.attrs.integers("axes")) {
    reduced[checked_axis(r, axis, shape.ndim())] = true;
  }
  return reduced;
}

Shape reduced_shape(const Request& r, const std::vector<bool>& reduced) {
  const Shape& shape = r.inputs[0].shape;
  const bool keep = r.attrs.flag("keepdims");
  std::vector<int64_t> dims;
  for (int i = 0; i < shape.ndim(); ++i) {
    if (!reduced[i]) dims.push_back(shape[i]);
    if (reduced[i] && keep) dims.push_back(1);
  }
  return Shape(dims.begin(), dims.end());
}

template <class A>
A first_value(ReduceOp op) {
  using Limits = std::numeric_limits<A>;
  if (op == ReduceOp::sum) return A(0);
  if (op == ReduceOp::prod) return A(1);
  const A high = Limits::has_infinity ? Limits::infinity() : Limits::max();
  const A low = Limits::has_infinity ? -Limits::infinity() : Limits::lowest();
  return op == ReduceOp::max ? low : high;
}

class ReduceKernel final : public Kernel {
 public:
  ReduceKernel(const Request& r, ReduceOp op, const std::vector<bool>& reduced)
      : op_(op), dtype_(r.inputs[0].dtype), out_dtype_(r.outputs[0].dtype),
        size_(size_of(dtype_)) {
    const Shape& shape = r.inputs[0].shape;
    collapse(shape, reduced);
    row_ = reduce_table().row(op, dtype_);
    lines_ = reduce_table().columns(op, dtype_);
    acc_lines_ = reduce_table().columns(op, acc_dtype());
    empty_ = shape.size() == 0;
    chunk_ = std::max<int64_t>(1, std::min(width_, kReduceColumns));
    chunks_ = (width_ + chunk_ - 1) / chunk_;
    units_ = chunks_;
    for (const Dim& dim : kept_) units_ *= dim.size;
    const double per_element = is_direct(dtype_) ? 0.15 : 0.4;
    set_cost(*this, r, per_element * shape.size() + 5.0 * units_);
    split_ = units_ < 2 * threads && threads > 1 && reduced_[0].size >= 2 * threads;
    if (split_) workspace_bytes = size_t(threads) * units_ * chunk_ * kAccBytes;
  }

  void run(const Buffers& buffers, const RunContext&) const override {
    const char* x = static_cast<const char*>(buffers.in[0]);
    char* out = static_cast<char*>(buffers.out[0]);
    if (split_) return run_split(x, out, static_cast<char*>(buffers.workspace));
    const int64_t grain = std::max<int64_t>(1, units_ / (4 * threads));
    parallel_for(threads, units_, grain, [&](int64_t begin, int64_t end) {
      alignas(64) char acc[kReduceColumns * kAccBytes];
      for (int64_t unit = begin; unit < end; ++unit) {
        initialise(acc, chunk_);
        if (!empty_) accumulate(x, unit, 0, reduced_[0].size, acc);
        finish(acc, unit, out);
      }
    });
  }

 private:
  void collapse(const Shape& shape, const std::vector<bool>& reduced) {
    std::vector<Dim> dims;
    std::vector<bool> kinds;
    int64_t stride = 1;
    for (int i = shape.ndim() - 1; i >= 0; --i) {
      if (shape[i] == 1) continue;
      if (!dims.empty() && kinds.back() == reduced[i]) {
        dims.back().size *= shape[i];
      } else {
        dims.push_back({shape[i], stride});
        kinds.push_back(reduced[i]);
      }
      stride *= shape[i];
    }
    const bool columns = !dims.empty() && !kinds[0];
    if (columns) width_ = dims[0].size;
    for (size_t i = dims.size(); i-- > (columns ? 1u : 0u);) {
      (kinds[i] ? reduced_ : kept_).push_back(dims[i]);
    }
    columns_ = columns;
    if (reduced_.empty()) reduced_.push_back({1, 1});
  }

  DType acc_dtype() const { return is_floating(dtype_) ? DType::float64 : DType::int64; }

  void initialise(char* acc, int64_t n) const {
    if (is_floating(dtype_)) {
      std::fill_n(reinterpret_cast<double*>(acc), n, first_value<double>(op_));
    } else {
      std::fill_n(reinterpret_cast<int64_t*>(acc), n, first_value<int64_t>(op_));
    }
  }

  int64_t chunk_width(int64_t unit) const {
    return std::min(chunk_, width_ - unit % chunks_ * chunk_);
  }

  int64_t unit_offset(int64_t unit) const {
    int64_t offset = unit % chunks_ * chunk_;
    int64_t rest = unit / chunks_;
    for (size_t d = kept_.size(); d-- > 0;) {
      offset += rest % kept_[d].size * kept_[d].stride;
      rest /= kept_[d].size;
    }
    return offset;
  }

  // Combines the elements of one unit whose index along the outermost reduced axis lies in
  // [begin, end).
  void accumulate(const char* x, int64_t unit, int64_t begin, int64_t end, char* acc) const {
    const int64_t start = unit_offset(unit);
    const int64_t n = chunk_width(unit);
    const size_t last = reduced_.size() - 1;
    if (last == 0) {
      inner(x, start + begin * reduced_[0].stride, end - begin, n, acc);
      return;
    }
    int64_t middle = 1;
    for (size_t d = 1; d < last; ++d) middle *= reduced_[d].size;
    for (int64_t i = begin; i < end; ++i) {
      for (int64_t m = 0; m < middle; ++m) {
        int64_t offset = start + i * reduced_[0].stride;
        int64_t rest = m;
        for (size_t d = last - 1; d > 0; --d) {
          offset += rest % reduced_[d].size * reduced_[d].stride;
          rest /= reduced_[d].size;
        }
        inner(x, offset, reduced_[last].size, n, acc);
      }
    }
  }

  void inner(const char* x, int64_t offset, int64_t count, int64_t n, char* acc) const {
    const char* at = x + offset * size_;
    if (!columns_) {
      row_(at, count, acc);
    } else if (width_ > kNarrow || count < 8) {
      lines_(at, count, width_, n, acc);
    } else {
      narrow(at, count, acc);
    }
  }

  // The rows are contiguous: several of them are one wide line, folded at the end.
  void narrow(const char* x, int64_t rows, char* acc) const {
    alignas(64) char wide[kReduceColumns * kAccBytes];
    const int64_t together = std::min(kReduceColumns / width_, rows);
    const int64_t line = together * width_;
    const int64_t lines = rows / together;
    initialise(wide, line);
    lines_(x, lines, line, line, wide);
    acc_lines_(wide, together, width_, width_, acc);
    lines_(x + lines * line * size_, rows - lines * together, width_, width_, acc);
  }

  void finish(const char* acc, int64_t unit, char* out) const {
    with_dtype(out_dtype_, [&](auto tag) {
      using T = typename decltype(tag)::type;
      using A = std::conditional_t<std::is_same_v<Computed<T>, int64_t>, int64_t, double>;
      const A* from = reinterpret_cast<const A*>(acc);
      T* to = reinterpret_cast<T*>(out) + unit / chunks_ * width_ + unit % chunks_ * chunk_;
      const int64_t n = chunk_width(unit);
      for (int64_t j = 0; j < n; ++j) to[j] = store<T>(from[j]);
    });
  }

  void run_split(const char* x, char* out, char* partials) const {
    const int64_t bytes = units_ * chunk_ * kAccBytes;
    const int64_t count = reduced_[0].size;
    parallel_for(threads, threads, 1, [&](int64_t first, int64_t last) {
      for (int64_t part = first; part < last; ++part) {
        char* acc = partials + part * bytes;
        initialise(acc, units_ * chunk_);
        for (int64_t unit = 0; unit < units_ && !empty_; ++unit) {
          accumulate(x, unit, count * part / threads, count * (part + 1) / threads,
                     acc + unit * chunk_ * kAccBytes);
        }
      }
    });
    for (int64_t unit = 0; unit < units_; ++unit) {
      char* acc = partials + unit * chunk_ * kAccBytes;
      for (int part = 1; part < threads; ++part) acc_lines_(acc + part * bytes, 1, 0, chunk_, acc);
      finish(acc, unit, out);
    }
  }

  ReduceOp op_;
  DType dtype_, out_dtype_;
  int64_t size_;
  ReduceRow row_ = nullptr;
  ReduceColumns lines_ = nullptr;
  ReduceColumns acc_lines_ = nullptr;
  std::vector<Dim> kept_;     // outermost first, without the kept last axis
  std::vector<Dim> reduced_;  // outermost first, never empty
  bool columns_ = false;
  bool empty_ = false;
  bool split_ = false;
  int64_t width_ = 1;  // of the kept last axis
  int64_t chunk_ = 1;
  int64_t chunks_ = 1;
  int64_t units_ = 1;
};

std::unique_ptr<Kernel> make_reduce(const Request& r, ReduceOp op) {
  expect_plain(r);
  expect_counts(r, 1, 1);
  const std::vector<bool> reduced = reduced_axes(r);
  expect_shape(r, "an output", r.outputs[0].shape, reduced_shape(r, reduced));
  // Sums of floats are kept in double, of integers in int64; one of a kind may leave as another.
  if (is_floating(r.outputs[0].dtype) != is_floating(r.inputs[0].dtype)) return nullptr;
  return std::make_unique<ReduceKernel>(r, op, reduced);
}

}  // namespace

void register_reduce_kernels(Registry& registry) {
  const std::pair<const char*, ReduceOp> ops[] = {{"reduce_sum", ReduceOp::sum},
                                                  {"reduce_prod", ReduceOp::prod},
                                                  {"reduce_max", ReduceOp::max},
                                                  {"reduce_min", ReduceOp::min}};
  for (const auto& [name, op] : ops) {
    registry.add(name, 0, "plain", [op = op](const Request& r) { return make_reduce(r, op); });
  }
}

}  // namespace mixflow::kernels
