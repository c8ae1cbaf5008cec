// Convolution of images of few channels, forward and weight gradient, on plain tensors: the first
// layer of nets for small images. oneDNN pads channels and filters to whole vectors there.
#include "kernels/conv_few.h"

#include "kernels/dispatch.h"
#include "kernels/tuner.h"

namespace mixflow::kernels {
namespace {

constexpr int kRank = 15;
// Part of the tuner's key: raise it when the speed of these kernels changes.
constexpr const char* kVersion = "few-1";

struct Problem {
  int64_t images, channels, filters;
  int64_t height, width, out_height, out_width;
  int64_t kernel_rows, kernel_cols;
  int64_t pad_y = 0, pad_x = 0;
  bool weight_grad = false;
  double flops = 0;

  int64_t taps() const { return channels * kernel_rows * kernel_cols; }
};

Problem problem_of(const Request& r, bool weight_grad) {
  const Shape& x = r.inputs[weight_grad ? 1 : 0].shape;
  const Shape& w = (weight_grad ? r.outputs[0] : r.inputs[1]).shape;
  const Shape& y = (weight_grad ? r.inputs[0] : r.outputs[0]).shape;
  Problem p{x[0], x[1], w[0], x[2], x[3], y[2], y[3], w[2], w[3]};
  p.pad_y = r.attrs.integers("pad")[0];
  p.pad_x = r.attrs.integers("pad")[1];
  p.weight_grad = weight_grad;
  p.flops = 2.0 * static_cast<double>(y.size()) * static_cast<double>(p.taps());
  return p;
}

int64_t round_up(int64_t size, int64_t unit) { return (size + unit - 1) / unit * unit; }

// Common to both directions: the padded copy of an image and the strip of a group of filters.
class FewKernel : public Kernel {
 public:
  FewKernel(const Request& r, const Problem& p) : p_(p) {
    set_cost(*this, r, p.flops / 60);
    implementation = "few";
    image_.channels = p.channels;
    image_.pitch = p.width + 2 * p.pad_x;
    image_.plane = image_.pitch * (p.height + 2 * p.pad_y);
    image_.kernel_rows = p.kernel_rows;
    image_.kernel_cols = p.kernel_cols;
    image_.places = round_up(p.out_height * image_.pitch, kFewSlack);
    copy_size_ = round_up(p.channels * image_.plane + 2 * kFewSlack, 16);
    strip_size_ = kFewFilters * image_.places;
    sums_size_ = p.weight_grad ? p.filters * p.taps() * kFewLanes : 0;
    slice_ = copy_size_ + strip_size_ + sums_size_;
    workspace_bytes = static_cast<size_t>(slice_ * threads) * sizeof(float);
  }

 protected:
  // Calls body(first image, end, part) for every thread; part names its slice of the workspace.
  template <class Body>
  void split(const Body& body) const {
    const int64_t per_part = (p_.images + threads - 1) / threads;
    parallel_for(threads, threads, 1, [&](int64_t begin, int64_t end) {
      for (int64_t part = begin; part < end; ++part) {
        const int64_t last = std::min(p_.images, (part + 1) * per_part);
        body(part * per_part, last, part);
      }
    });
  }

  float* slice(const Buffers& b, int64_t part) const {
    return static_cast<float*>(b.workspace) + part * slice_;
  }

  // The padding of the copy, which every image leaves as it is.
  void clear(float* copy) const { std::fill(copy, copy + copy_size_, 0.0f); }

  void copy_image(const float* x, float* copy) const {
    for (int64_t c = 0; c < p_.channels; ++c) {
      float* to = copy + c * image_.plane + p_.pad_y * image_.pitch + p_.pad_x;
      MIXFLOW_PICK(few_rows)({p_.height, p_.width, x, to, p_.width, image_.pitch});
      x += p_.height * p_.width;
    }
  }

  Problem p_;
  FewImage image_;
  int64_t copy_size_, strip_size_, sums_size_, slice_;
};

class ForwardKernel final : public FewKernel {
 public:
  ForwardKernel(const Request& r, const Problem& p) : FewKernel(r, p) {
    bias_ = r.inputs.size() > 2;
  }

  void run(const Buffers& b, const RunContext&) const override {
    split([&](int64_t begin, int64_t end, int64_t part) {
      float* copy = slice(b, part);
      clear(copy);
      for (int64_t n = begin; n < end; ++n) {
        copy_image(static_cast<const float*>(b.in[0]) + n * p_.channels * p_.height * p_.width,
                   copy);
        image(b, n, copy, copy + copy_size_);
      }
    });
  }

 private:
  void image(const Buffers& b, int64_t n, const float* copy, float* strip) const {
    FewForward task;
    task.image = image_;
    task.image.image = copy;
    task.weight_step = p_.taps();
    task.strip = strip;
    for (int64_t first = 0; first < p_.filters; first += kFewFilters) {
      task.filters = std::min(kFewFilters, p_.filters - first);
      task.weights = static_cast<const float*>(b.in[1]) + first * p_.taps();
      task.bias = bias_ ? static_cast<const float*>(b.in[2]) + first : nullptr;
      MIXFLOW_PICK(few_forward)(task);
      float* y = static_cast<float*>(b.out[0]) +
                 (n * p_.filters + first) * p_.out_height * p_.out_width;
      for (int64_t f = 0; f < task.filters; ++f, y += p_.out_height * p_.out_width) {
        MIXFLOW_PICK(few_rows)({p_.out_height, p_.out_width, strip + f * image_.places, y,
                                image_.pitch, p_.out_width});
      }
    }
  }

  bool bias_;
};

// Each thread sums the images of its share; the shares are added in the order of the threads.
class WeightGradKernel final : public FewKernel {
 public:
  using FewKernel::FewKernel;

  void run(const Buffers& b, const RunContext&) const override {
    split([&](int64_t begin, int64_t end, int64_t part) {
      float* copy = slice(b, part);
      float* strip = copy + copy_size_;
      float* sums = strip + strip_size_;
      clear(copy);
      std::fill(strip, strip + strip_size_ + sums_size_, 0.0f);
      for (int64_t n = begin; n < end; ++n) {
        copy_image(static_cast<const float*>(b.in[1]) + n * p_.channels * p_.height * p_.width,
                   copy);
        image(b, n, copy, strip, sums);
      }
    });
    add_up(b);
  }

 private:
  void image(const Buffers& b, int64_t n, const float* copy, float* strip, float* sums) const {
    FewWeightGrad task;
    task.image = image_;
    task.image.image = copy;
    task.strip = strip;
    const float* dy =
        static_cast<const float*>(b.in[0]) + n * p_.filters * p_.out_height * p_.out_width;
    for (int64_t first = 0; first < p_.filters; first += kFewFilters) {
      task.filters = std::min(kFewFilters, p_.filters - first);
      for (int64_t f = 0; f < task.filters; ++f, dy += p_.out_height * p_.out_width) {
        MIXFLOW_PICK(few_rows)({p_.out_height, p_.out_width, dy, strip + f * image_.places,
                                p_.out_width, image_.pitch});
      }
      task.sums = sums + first * p_.taps() * kFewLanes;
      MIXFLOW_PICK(few_weight_grad)(task);
    }
  }

  void add_up(const Buffers& b) const {
    float* dw = static_cast<float*>(b.out[0]);
    for (int64_t i = 0; i < p_.filters * p_.taps(); ++i) {
      float total = 0;
      for (int64_t part = 0; part < threads; ++part) {
        const float* sums = slice(b, part) + copy_size_ + strip_size_ + i * kFewLanes;
        for (int64_t lane = 0; lane < kFewLanes; ++lane) total += sums[lane];
      }
      dw[i] = total;
    }
  }
};

bool all_ones(const std::vector<int64_t>& values) {
  return std::all_of(values.begin(), values.end(), [](int64_t v) { return v == 1; });
}

bool eligible(const Request& r, bool weight_grad) {
  const auto plain = [](const Desc& d) {
    return d.dtype == DType::float32 && d.layout.plain() && d.shape.size() > 0;
  };
  if (!std::all_of(r.inputs.begin(), r.inputs.end(), plain) || !plain(r.outputs[0])) return false;
  const Shape& x = r.inputs[weight_grad ? 1 : 0].shape;
  if (r.outputs.size() != 1 || x.ndim() != 4 || x[1] > 4) return false;
  const Shape& w = (weight_grad ? r.outputs[0] : r.inputs[1]).shape;
  return w[3] <= kFewSlack && r.attrs.integer("groups") == 1 &&
         all_ones(r.attrs.integers("stride")) && all_ones(r.attrs.integers("dilate"));
}

std::unique_ptr<Kernel> make(const Request& r, const Problem& p) {
  if (p.weight_grad) return std::make_unique<WeightGradKernel>(r, p);
  return std::make_unique<ForwardKernel>(r, p);
}

bool faster(const Request& r, const Problem& p) {
  const std::vector<Candidate> candidates = {
      {"other", [&] { return registry().prepare_below(r, kRank); }},
      {"few", [&] { return KernelRef(make(r, p)); }}};
  const std::string key =
      concat(kVersion, " ", r.primitive, " threads=", r.threads, " x=", r.inputs[0].shape.str(),
             " w=", r.inputs[1].shape.str(), " y=", r.outputs[0].shape.str(), " pad=", p.pad_y, ",",
             p.pad_x, " inputs=", r.inputs.size());
  return tuner()->choose(key, r, candidates) == "few";
}

// The attribute `few` overrides every choice.
std::unique_ptr<Kernel> prepare(const Request& r, bool weight_grad) {
  if (!eligible(r, weight_grad)) return nullptr;
  const Problem p = problem_of(r, weight_grad);
  if (r.attrs.has("few")) return r.attrs.flag("few") ? make(r, p) : nullptr;
  if (p.flops < 1e6) return nullptr;  // too small for a difference
  if (deterministic()) return p.filters % 16 != 0 ? make(r, p) : nullptr;
  return faster(r, p) ? make(r, p) : nullptr;
}

}  // namespace

void register_few_kernels(Registry& registry) {
  for (const bool weight_grad : {false, true}) {
    registry.add(weight_grad ? "conv_weight_grad" : "conv", kRank, "few",
                 [weight_grad](const Request& r) { return prepare(r, weight_grad); });
  }
}

}  // namespace mixflow::kernels
