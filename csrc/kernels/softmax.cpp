// softmax and log_softmax along any axis.
#include "kernels/softmax.h"

#include "kernels/dispatch.h"

namespace mixflow::kernels {
namespace {

constexpr int64_t kColumns = 64;

template <class T>
class SoftmaxKernel final : public Kernel {
 public:
  SoftmaxKernel(const Request& r, const AxisView& view, bool log) : view_(view), log_(log) {
    blocks_ = (view.inner + kColumns - 1) / kColumns;
    set_cost(*this, r, static_cast<double>(view.outer * view.length * view.inner));
    inplace = {{0, 0}};
  }

  void run(const Buffers& b, const RunContext&) const override {
    const auto* x = static_cast<const T*>(b.in[0]);
    auto* y = static_cast<T*>(b.out[0]);
    if (view_.length == 0) return;
    parallel_for(threads, view_.outer * blocks_, 1, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        const int64_t column = i % blocks_ * kColumns;
        const int64_t offset = i / blocks_ * view_.length * view_.inner + column;
        const int64_t count = std::min(kColumns, view_.inner - column);
        softmax(SoftmaxTask<T>{x + offset, y + offset, view_.length, count, view_.inner, log_});
      }
    });
  }

 private:
  AxisView view_;
  bool log_;
  int64_t blocks_;
};

std::unique_ptr<Kernel> prepare(const Request& r, bool log) {
  expect_counts(r, 1, 1);
  expect_plain(r);
  const Shape& shape = r.inputs[0].shape;
  if (shape.ndim() == 0) return nullptr;
  const AxisView view = axis_view(shape, checked_axis(r, r.attrs.integer("axis"), shape.ndim()));
  switch (r.outputs[0].dtype) {
    case DType::float32:
      return std::make_unique<SoftmaxKernel<float>>(r, view, log);
    case DType::float64:
      return std::make_unique<SoftmaxKernel<double>>(r, view, log);
    default:
      return nullptr;
  }
}

}  // namespace

void register_softmax_kernels(Registry& registry) {
  registry.add("softmax", 0, "lines", [](const Request& r) { return prepare(r, false); });
  registry.add("log_softmax", 0, "lines", [](const Request& r) { return prepare(r, true); });
}

}  // namespace mixflow::kernels
