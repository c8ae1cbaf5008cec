// pad: constant, edge or reflect. Works row by row through one index table per axis.
#include <cstring>

#include "kernels/dispatch.h"

namespace mixflow::kernels {
namespace {

enum class PadMode { constant, edge, reflect };

PadMode pad_mode(const std::string& name) {
  if (name == "constant") return PadMode::constant;
  if (name == "edge") return PadMode::edge;
  check(name == "reflect", "[pad] expected mode constant, edge or reflect, got ", name);
  return PadMode::reflect;
}

// Where position i (before padding starts at 0) is read; -1 for the constant.
int64_t source_index(int64_t i, int64_t size, PadMode mode) {
  if (i >= 0 && i < size) return i;
  if (mode == PadMode::constant) return -1;
  if (mode == PadMode::edge) return i < 0 ? 0 : size - 1;
  if (size == 1) return 0;
  const int64_t period = 2 * (size - 1);
  const int64_t folded = ((i % period) + period) % period;
  return folded < size ? folded : period - folded;
}

class PadKernel final : public Kernel {
 public:
  PadKernel(const Request& r, PadMode mode) : element_(size_of(r.inputs[0].dtype)) {
    const Shape& in = r.inputs[0].shape;
    const Shape& out = r.outputs[0].shape;
    const auto& before = r.attrs.integers("before");
    int64_t stride = 1;
    tables_.resize(in.ndim());
    strides_.resize(in.ndim());
    for (int d = in.ndim() - 1; d >= 0; --d) {
      strides_[d] = stride;
      stride *= in[d];
      for (int64_t i = 0; i < out[d]; ++i) {
        tables_[d].push_back(source_index(i - before[d], in[d], mode));
      }
    }
    row_ = in.ndim() == 0 ? 1 : out[in.ndim() - 1];
    rows_ = row_ == 0 ? 0 : out.size() / row_;
    if (in.ndim() > 0) before_ = before.back();
    if (in.ndim() > 0) middle_ = in[in.ndim() - 1];
    const double value = mode == PadMode::constant ? r.attrs.number("value") : 0.0;
    with_dtype(r.inputs[0].dtype, [&](auto tag) {
      using T = typename decltype(tag)::type;
      const T constant = store<T>(value);
      std::memcpy(&constant_, &constant, sizeof(T));
    });
    set_cost(*this, r, 0.5 * static_cast<double>(out.size()) + 10.0 * static_cast<double>(rows_));
  }

  void run(const Buffers& buffers, const RunContext&) const override {
    with_size(element_, [&](auto tag) {
      using T = typename decltype(tag)::type;
      T constant;
      std::memcpy(&constant, &constant_, sizeof(T));
      const T* in = static_cast<const T*>(buffers.in[0]);
      T* out = static_cast<T*>(buffers.out[0]);
      parallel_for(threads, rows_, 1, [&](int64_t begin, int64_t end) {
        for (int64_t row = begin; row < end; ++row) {
          const int64_t offset = row_source(row);
          if (offset < 0) {
            std::fill_n(out + row * row_, row_, constant);
          } else {
            fill_row(in + offset, out + row * row_, constant);
          }
        }
      });
    });
  }

 private:
  int64_t row_source(int64_t row) const {
    int64_t offset = 0;
    for (int d = static_cast<int>(tables_.size()) - 2; d >= 0; --d) {
      const auto size = static_cast<int64_t>(tables_[d].size());
      const int64_t index = tables_[d][row % size];
      if (index < 0) return -1;
      offset += index * strides_[d];
      row /= size;
    }
    return offset;
  }

  template <class T>
  void edge(const T* in, T* out, int64_t begin, int64_t end, T constant) const {
    for (int64_t i = begin; i < end; ++i) {
      const int64_t index = tables_.back()[i];
      out[i] = index < 0 ? constant : in[index];
    }
  }

  template <class T>
  void fill_row(const T* in, T* out, T constant) const {
    if (tables_.empty()) {
      out[0] = in[0];
      return;
    }
    if (before_ < 0 || before_ + middle_ > row_) return edge(in, out, 0, row_, constant);
    edge(in, out, 0, before_, constant);
    std::memcpy(out + before_, in, static_cast<size_t>(middle_) * sizeof(T));
    edge(in, out, before_ + middle_, row_, constant);
  }

  size_t element_;
  std::vector<std::vector<int64_t>> tables_;
  std::vector<int64_t> strides_;
  int64_t row_ = 1;
  int64_t rows_ = 1;
  int64_t before_ = 0;
  int64_t middle_ = 1;
  uint64_t constant_ = 0;
};

std::unique_ptr<Kernel> make_pad(const Request& r) {
  expect_plain(r);
  expect_counts(r, 1, 1);
  const Shape& in = r.inputs[0].shape;
  const auto& before = r.attrs.integers("before");
  const auto& after = r.attrs.integers("after");
  const auto ndim = static_cast<size_t>(in.ndim());
  check(before.size() == ndim && after.size() == ndim, "[pad] expected before and after of ", ndim,
        " entries, got ", before.size(), " and ", after.size());
  const PadMode mode = pad_mode(r.attrs.text("mode"));
  Shape expected = in;
  for (int d = 0; d < in.ndim(); ++d) {
    expected[d] = in[d] + before[d] + after[d];
    check(mode == PadMode::constant || in[d] > 0 || expected[d] == 0,
          "[pad] expected a non-empty axis ", d, " for this mode, got ", in.str());
  }
  expect_shape(r, "an output", r.outputs[0].shape, expected);
  expect_dtype(r, "an output", r.outputs[0].dtype, r.inputs[0].dtype);
  return std::make_unique<PadKernel>(r, mode);
}

}  // namespace

void register_pad_kernels(Registry& registry) { registry.add("pad", 0, "plain", make_pad); }

}  // namespace mixflow::kernels
