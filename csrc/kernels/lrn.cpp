// Local response normalisation: images are cut into strips of neighbouring places.
#include "kernels/lrn.h"

#include "kernels/dispatch.h"

namespace mixflow::kernels {
namespace {

template <class T>
class LrnKernel final : public Kernel {
 public:
  LrnKernel(const Request& r, bool grad) : grad_(grad), view_(axis_view(r.inputs[0].shape, 1)) {
    constants_.alpha = static_cast<T>(r.attrs.number("alpha"));
    constants_.beta = static_cast<T>(r.attrs.number("beta"));
    constants_.knorm = static_cast<T>(r.attrs.number("knorm"));
    constants_.size = r.attrs.integer("nsize");
    constants_.channels = view_.length;
    constants_.stride = view_.inner;
    strips_ = (view_.inner + kLrnStrip - 1) / kLrnStrip;
    set_cost(*this, r, static_cast<double>(r.inputs[0].shape.size()) * (grad ? 3 : 2));
    slice_ = grad ? 2 * view_.length * kLrnStrip : 0;
    workspace_bytes = static_cast<size_t>(slice_ * threads) * sizeof(T);
  }

  void run(const Buffers& b, const RunContext&) const override {
    const int64_t count = view_.outer * strips_;
    const int64_t per_part = (count + threads - 1) / threads;
    parallel_for(threads, threads, 1, [&](int64_t begin, int64_t end) {
      for (int64_t part = begin; part < end; ++part) {
        const int64_t last = std::min(count, (part + 1) * per_part);
        for (int64_t i = part * per_part; i < last; ++i) strip(b, i, part);
      }
    });
  }

 private:
  void strip(const Buffers& b, int64_t index, int64_t part) const {
    const int64_t place = index % strips_ * kLrnStrip;
    const int64_t at = index / strips_ * view_.length * view_.inner + place;
    const auto in = [&](int i) { return static_cast<const T*>(b.in[i]) + at; };
    LrnTask<T> task = constants_;
    task.places = std::min(kLrnStrip, view_.inner - place);
    task.result = static_cast<T*>(b.out[0]) + at;
    if (!grad_) {
      task.x = in(0);
      return lrn(task);
    }
    task.dy = in(0);
    task.x = in(1);
    task.y = in(2);
    task.workspace = static_cast<T*>(b.workspace) + part * slice_;
    lrn_grad(task);
  }

  bool grad_;
  AxisView view_;
  LrnTask<T> constants_;
  int64_t strips_ = 0;
  int64_t slice_ = 0;  // workspace elements of one thread
};

std::unique_ptr<Kernel> prepare(const Request& r, bool grad) {
  expect_counts(r, grad ? 3 : 1, 1);
  expect_plain(r);
  if (r.inputs[0].shape.ndim() < 2) return nullptr;
  switch (r.outputs[0].dtype) {
    case DType::float32:
      return std::make_unique<LrnKernel<float>>(r, grad);
    case DType::float64:
      return std::make_unique<LrnKernel<double>>(r, grad);
    default:
      return nullptr;
  }
}

}  // namespace

void register_lrn_kernels(Registry& registry) {
  registry.add("lrn", 0, "strips", [](const Request& r) { return prepare(r, false); });
  registry.add("lrn_grad", 0, "strips", [](const Request& r) { return prepare(r, true); });
}

}  // namespace mixflow::kernels
