// Batch normalisation: statistics, normalisation, both at once, and the gradient.
#include "kernels/norm.h"

#include "kernels/dispatch.h"

namespace mixflow::kernels {

void register_lrn_kernels(Registry&);

namespace {

enum class Action { stats, apply, train, grad };

template <class T>
class NormKernel final : public Kernel {
 public:
  NormKernel(const Request& r, Action action, const AxisView& view) : action_(action), view_(view) {
    if (action == Action::train) eps_ = r.attrs.number("eps");
    if (action == Action::apply || action == Action::train) inplace = {{0, 0}};
    // Blocks that are read in pieces of at least a few kilobytes and fit the L2 cache.
    block_ = std::clamp<int64_t>(1024 / std::max<int64_t>(view.inner, 1), 1, kNormBlock);
    const double size = static_cast<double>(view.outer * view.length * view.inner);
    set_cost(*this, r, size * (action == Action::grad ? 0.6 : 0.3));
    const int64_t share = (view.length + threads - 1) / std::max(threads, 1);
    block_ = std::max<int64_t>(1, std::min(block_, share));
  }

  void run(const Buffers& b, const RunContext&) const override {
    parallel_for(threads, view_.length, block_, [&](int64_t begin, int64_t end) {
      for (int64_t first = begin; first < end; first += block_) {
        block(b, first, std::min(block_, end - first));
      }
    });
  }

 private:
  const T* in(const Buffers& b, int i, int64_t offset) const {
    return static_cast<const T*>(b.in[i]) + offset;
  }
  T* out(const Buffers& b, int i, int64_t offset) const {
    return static_cast<T*>(b.out[i]) + offset;
  }

  void block(const Buffers& b, int64_t first, int64_t count) const {
    NormTask<T> t{view_.outer, count, view_.inner, view_.length * view_.inner};
    const int64_t at = first * view_.inner;
    switch (action_) {
      case Action::stats:
        t.x = in(b, 0, at);
        t.first = out(b, 0, first);
        t.second = out(b, 1, first);
        return norm_stats(t);
      case Action::apply:
        fill_forward(t, b, first);
        t.mean = in(b, 3, first);
        t.inv_std = in(b, 4, first);
        return norm_apply(t);
      case Action::train:
        fill_forward(t, b, first);
        t.first = out(b, 1, first);
        t.second = out(b, 2, first);
        t.eps = eps_;
        return norm_train(t);
      case Action::grad:
        t.dy = in(b, 0, at);
        t.x = in(b, 1, at);
        t.gamma = in(b, 2, first);
        t.mean = in(b, 3, first);
        t.inv_std = in(b, 4, first);
        t.result = out(b, 0, at);
        t.first = out(b, 1, first);
        t.second = out(b, 2, first);
        return norm_grad(t);
    }
  }

  void fill_forward(NormTask<T>& t, const Buffers& b, int64_t first) const {
    t.x = in(b, 0, first * view_.inner);
    t.gamma = in(b, 1, first);
    t.beta = in(b, 2, first);
    t.result = out(b, 0, first * view_.inner);
  }

  Action action_;
  AxisView view_;
  int64_t block_ = 1;
  double eps_ = 0;
};

std::unique_ptr<Kernel> prepare(const Request& r, Action action) {
  expect_plain(r);
  const Shape& shape = r.inputs[action == Action::grad ? 1 : 0].shape;
  const AxisView view = axis_view(shape, checked_axis(r, r.attrs.integer("axis"), shape.ndim()));
  if (all_of_dtype(r, DType::float32)) {
    return std::make_unique<NormKernel<float>>(r, action, view);
  }
  if (all_of_dtype(r, DType::float64)) {
    return std::make_unique<NormKernel<double>>(r, action, view);
  }
  return nullptr;
}

}  // namespace

void register_norm_kernels(Registry& registry) {
  const std::pair<const char*, Action> entries[] = {{"batch_norm_stats", Action::stats},
                                                    {"batch_norm", Action::apply},
                                                    {"batch_norm_train", Action::train},
                                                    {"batch_norm_grad", Action::grad}};
  for (const auto& [name, action] : entries) {
    registry.add(name, 0, "channels",
                 [action = action](const Request& r) { return prepare(r, action); });
  }
  register_lrn_kernels(registry);
}

}  // namespace mixflow::kernels
