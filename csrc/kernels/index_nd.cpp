// gather_nd, scatter_nd_add, scatter_assign_nd: row m of the indices (M, ...) indexes axis m.
#include <cstring>

#include "kernels/index_rule.h"

namespace mixflow::kernels {
namespace {

enum class NdAction { gather, add, assign };

class NdKernel final : public Kernel {
 public:
  NdKernel(const Request& r, NdAction action)
      : action_(action), dtype_(r.inputs[0].dtype), bytes_(size_t(r.inputs[0].bytes())) {
    const Shape& shape = r.inputs[0].shape;
    const Shape& indices = r.inputs[1].shape;
    const auto rows = static_cast<int>(indices[0]);
    points_ = 1;
    for (int d = 1; d < indices.ndim(); ++d) points_ *= indices[d];
    for (int d = rows; d < shape.ndim(); ++d) inner_ *= shape[d];
    int64_t stride = inner_;
    rules_.resize(rows);
    strides_.resize(rows);
    for (int m = rows - 1; m >= 0; --m) {
      rules_[m] = index_rule(r, shape[m], r.inputs[1], IndexMode::raise);
      strides_[m] = stride;
      stride *= shape[m];
    }
    set_cost(*this, r, 3.0 * points_ * rows + 0.5 * points_ * inner_);
    if (action != NdAction::gather) {
      threads = 1;  // equal places keep their order
      inplace = {{0, 0}};
    }
  }

  void run(const Buffers& buffers, const RunContext&) const override {
    for (size_t m = 0; m < rules_.size(); ++m) {
      rules_[m].validate(buffers.in[1], static_cast<int64_t>(m) * points_, points_);
    }
    if (action_ != NdAction::gather && buffers.in[0] != buffers.out[0]) {
      std::memcpy(buffers.out[0], buffers.in[0], bytes_);
    }
    parallel_for(threads, points_, kIndexBlock, [&](int64_t begin, int64_t end) {
      int64_t offsets[kIndexBlock];
      for (int64_t first = begin; first < end; first += kIndexBlock) {
        const int64_t n = std::min(kIndexBlock, end - first);
        find_offsets(buffers.in[1], first, n, offsets);
        with_dtype(dtype_, [&](auto tag) {
          apply<typename decltype(tag)::type>(buffers, first, n, offsets);
        });
      }
    });
  }

 private:
  void find_offsets(const void* indices, int64_t first, int64_t n, int64_t* offsets) const {
    int64_t at[kIndexBlock];
    std::fill_n(offsets, n, int64_t{0});
    for (size_t m = 0; m < rules_.size(); ++m) {
      rules_[m].read(indices, static_cast<int64_t>(m) * points_ + first, n, at);
      for (int64_t k = 0; k < n; ++k) offsets[k] += at[k] * strides_[m];
    }
  }

  template <class T>
  void apply(const Buffers& buffers, int64_t first, int64_t n, const int64_t* offsets) const {
    T* out = static_cast<T*>(buffers.out[0]);
    const size_t line = static_cast<size_t>(inner_) * sizeof(T);
    if (action_ == NdAction::gather) {
      const T* x = static_cast<const T*>(buffers.in[0]);
      for (int64_t k = 0; k < n; ++k) std::memcpy(out + (first + k) * inner_, x + offsets[k], line);
      return;
    }
    const T* from = static_cast<const T*>(buffers.in[2]);
    for (int64_t k = 0; k < n; ++k) {
      const T* row = from + (first + k) * inner_;
      if (action_ == NdAction::add) {
        add_line(row, out + offsets[k], inner_);
      } else {
        std::memcpy(out + offsets[k], row, line);
      }
    }
  }

  NdAction action_;
  DType dtype_;
  size_t bytes_;
  int64_t points_ = 1;
  int64_t inner_ = 1;
  std::vector<IndexRule> rules_;
  std::vector<int64_t> strides_;
};

std::unique_ptr<Kernel> make_nd(const Request& r, NdAction action) {
  expect_plain(r);
  const bool gather = action == NdAction::gather;
  expect_counts(r, gather ? 2 : 3, 1);
  const Shape& shape = r.inputs[0].shape;
  const Shape& indices = r.inputs[1].shape;
  check(indices.ndim() >= 1 && indices[0] <= shape.ndim(), "[", r.primitive,
        "] expected indices with at most ", shape.ndim(), " rows, got ", indices.str());
  std::vector<int64_t> dims(indices.begin() + 1, indices.end());
  dims.insert(dims.end(), shape.begin() + indices[0], shape.end());
  const Shape picked(dims.begin(), dims.end());
  expect_shape(r, "an output", r.outputs[0].shape, gather ? picked : shape);
  expect_dtype(r, "an output", r.outputs[0].dtype, r.inputs[0].dtype);
  if (!gather) expect_shape(r, "values", r.inputs[2].shape, picked);
  if (!gather) expect_dtype(r, "values", r.inputs[2].dtype, r.inputs[0].dtype);
  return std::make_unique<NdKernel>(r, action);
}

Factory factory(NdAction action) {
  return [action](const Request& r) { return make_nd(r, action); };
}

}  // namespace

void register_index_nd_kernels(Registry& registry) {
  registry.add("gather_nd", 0, "plain", factory(NdAction::gather));
  registry.add("scatter_nd_add", 0, "plain", factory(NdAction::add));
  registry.add("scatter_assign_nd", 0, "plain", factory(NdAction::assign));
}

}  // namespace mixflow::kernels
