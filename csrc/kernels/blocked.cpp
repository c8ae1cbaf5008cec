// Kernels on blocked tensors (N, C / b, *S, b): order, batch normalisation, pooling, LRN.
#include "kernels/blocked.h"

#include "kernels/dispatch.h"
#include "kernels/strided.h"

namespace mixflow::kernels {

namespace {

// A blocked tensor as (outer, blocks, inner, size).
struct BlockView {
  int64_t outer = 1, blocks = 1, inner = 1, size = 1;
  explicit BlockView(const Shape& s)
      : outer(s[0]), blocks(s[1]), size(s[s.ndim() - 1]) {
    for (int i = 2; i < s.ndim() - 1; ++i) inner *= s[i];
  }
  int64_t total() const { return outer * blocks * inner * size; }
  Shape channels() const { return Shape{blocks * size}; }
};

bool good_blocks(const Request& r, const Shape& x) {
  expect_plain(r);
  const int64_t size = x.ndim() >= 4 ? x[x.ndim() - 1] : 0;
  return (size == 8 || size == 16) && x.size() > 0;
}

bool is_narrow(const Desc& desc) { return desc.dtype == DType::bfloat16; }

// Tensors that are all float32 or all bfloat16, and vectors in float32.
bool tensors_and_vectors(const Request& r) {
  const DType dtype = r.outputs[0].dtype;
  const auto good = [dtype](const Desc& d) {
    return d.dtype == (d.shape.ndim() == 1 ? DType::float32 : dtype);
  };
  return (dtype == DType::float32 || dtype == DType::bfloat16) &&
         std::all_of(r.inputs.begin(), r.inputs.end(), good) &&
         std::all_of(r.outputs.begin(), r.outputs.end(), good);
}

// -- order

class ReorderKernel final : public Kernel {
 public:
  ReorderKernel(const Request& r, const BlockView& v, bool block) {
    const int64_t row = v.size * v.inner;
    const std::vector<int64_t> plain{v.blocks * row, row, 1, v.inner};
    const std::vector<int64_t> blocked{v.blocks * row, row, v.size, 1};
    copy_ = StridedCopy({v.outer, v.blocks, v.inner, v.size}, block ? plain : blocked,
                        block ? blocked : plain, size_of(r.outputs[0].dtype));
    set_cost(*this, r, copy_.cost());
  }
  void run(const Buffers& b, const RunContext&) const override {
    copy_.run(b.in[0], b.out[0], threads);
  }

 private:
  StridedCopy copy_;
};

std::unique_ptr<Kernel> make_reorder(const Request& r, bool block) {
  expect_plain(r);
  expect_counts(r, 1, 1);
  const Shape& blocked = block ? r.outputs[0].shape : r.inputs[0].shape;
  return std::make_unique<ReorderKernel>(r, BlockView(blocked), block);
}

// -- batch normalisation

enum class Norm { train, apply, grad };

class BlockedNormKernel final : public Kernel {
 public:
  BlockedNormKernel(const Request& r, Norm action, const BlockView& view)
      : action_(action), view_(view), relu_(r.attrs.flag("relu")),
        narrow_(is_narrow(r.outputs[0])) {
    const size_t plain_inputs = action == Norm::train ? 3 : action == Norm::apply ? 5 : 6;
    if (r.inputs.size() > plain_inputs) addend_ = static_cast<int>(plain_inputs);
    if (action == Norm::train) eps_ = static_cast<float>(r.attrs.number("eps"));
    inplace = {{0, 0}};
    if (action == Norm::grad) inplace.emplace_back(0, 1);
    if (addend_ >= 0) inplace.emplace_back(0, addend_);
    set_cost(*this, r, static_cast<double>(view.total()) * (action == Norm::apply ? 0.15 : 0.3));
  }

  void run(const Buffers& b, const RunContext&) const override {
    parallel_for(threads, view_.blocks, 1, [&](int64_t begin, int64_t end) {
      for (int64_t block = begin; block < end; ++block) one(b, block);
    });
  }

 private:
  void one(const Buffers& b, int64_t block) const {
    const int64_t at = block * view_.inner * view_.size, channel = block * view_.size;
    const auto in = [&](int i, int64_t o) { return static_cast<const float*>(b.in[i]) + o; };
    const auto out = [&](int i, int64_t o) { return static_cast<float*>(b.out[i]) + o; };
    const int64_t offset = at * (narrow_ ? 2 : 4);  // bytes
    const auto tensor = [&](int i) { return static_cast<const char*>(b.in[i]) + offset; };
    BlockedNormTask t;
    t.narrow = narrow_;
    t.size = view_.size;
    t.outer = view_.outer;
    t.inner = view_.inner;
    t.stride = view_.blocks * view_.inner * view_.size;
    t.relu = relu_;
    t.eps = eps_;
    t.result = static_cast<char*>(b.out[0]) + offset;
    const int shift = action_ == Norm::grad ? 1 : 0;
    if (shift) t.dy = tensor(0);
    t.x = tensor(shift);
    t.gamma = in(shift + 1, channel);
    t.beta = in(shift + 2, channel);
    if (addend_ >= 0) t.addend = tensor(addend_);
    if (action_ != Norm::train) {
      t.mean = in(shift + 3, channel);
      t.inv_std = in(shift + 4, channel);
    }
    if (action_ == Norm::apply) return MIXFLOW_PICK(blocked_norm_apply)(t);
    t.first = out(1, channel);
    t.second = out(2, channel);
    action_ == Norm::train ? MIXFLOW_PICK(blocked_norm_train)(t)
                           : MIXFLOW_PICK(blocked_norm_grad)(t);
  }

  Norm action_;
  BlockView view_;
  bool relu_, narrow_;
  int addend_ = -1;
  float eps_ = 0;
};

std::unique_ptr<Kernel> make_norm(const Request& r, Norm action) {
  const Shape& x = r.inputs[0].shape;
  if (!good_blocks(r, x) || !tensors_and_vectors(r)) return nullptr;
  return std::make_unique<BlockedNormKernel>(r, action, BlockView(x));
}

// -- pooling

Shape without_block(const Shape& s) { return Shape(s.begin(), s.end() - 1); }

class BlockedPoolKernel final : public Kernel {
 public:
  BlockedPoolKernel(const Request& r, bool grad, const BlockView& view, const PoolGeometry& g)
      : grad_(grad), narrow_(is_narrow(r.outputs[0])), view_(view), geometry_(g) {
    const double taps = static_cast<double>(g.kernel[0] * g.kernel[1] * g.kernel[2]);
    const double planes = static_cast<double>(view.outer * view.blocks * view.size);
    set_cost(*this, r, planes * (static_cast<double>(g.out_size()) * taps + g.in_size()) / 10);
    plane_ = (g.in_size() * view.size + 15) / 16 * 16;
    if (grad && narrow_) workspace_bytes = size_t(threads) * plane_ * sizeof(float);
  }

  // Each thread's part has a slice of the workspace of its own.
  void run(const Buffers& b, const RunContext&) const override {
    const int64_t planes = view_.outer * view_.blocks;
    parallel_for(threads, threads, 1, [&](int64_t first, int64_t last) {
      for (int64_t part = first; part < last; ++part) {
        float* plane = static_cast<float*>(b.workspace) + part * plane_;
        some(b, planes * part / threads, planes * (part + 1) / threads, plane);
      }
    });
  }

 private:
  void some(const Buffers& b, int64_t begin, int64_t end, float* plane) const {
    const int64_t bytes = view_.size * (narrow_ ? 2 : 4);
    const int64_t in = geometry_.in_size() * bytes, out = geometry_.out_size() * bytes;
    BlockedPoolTask t;
    t.geometry = &geometry_;
    t.size = view_.size;
    t.planes = end - begin;
    t.narrow = narrow_;
    t.plane = plane;
    const auto input = [&](int i, int64_t step) {
      return static_cast<const char*>(b.in[i]) + begin * step;
    };
    t.result = static_cast<char*>(b.out[0]) + begin * (grad_ ? in : out);
    t.x = input(grad_ ? 1 : 0, in);
    if (!grad_) return MIXFLOW_PICK(blocked_pool)(t);
    t.dy = input(0, out);
    t.y = input(2, out);
    MIXFLOW_PICK(blocked_pool_grad)(t);
  }

  bool grad_, narrow_;
  int64_t plane_ = 0;  // floats of the workspace of a thread
  BlockView view_;
  PoolGeometry geometry_;
};

std::unique_ptr<Kernel> make_pool(const Request& r, bool grad) {
  const Shape& x = r.inputs[grad ? 1 : 0].shape;
  const Shape& y = grad ? r.inputs[0].shape : r.outputs[0].shape;
  if (!good_blocks(r, x) || !tensors_and_vectors(r) || x.ndim() > 6) return nullptr;
  const PoolGeometry g = pool_geometry(r, without_block(x), without_block(y));
  return std::make_unique<BlockedPoolKernel>(r, grad, BlockView(x), g);
}

// -- local response normalisation

class BlockedLrnKernel final : public Kernel {
 public:
  BlockedLrnKernel(const Request& r, bool grad, const BlockView& view) : grad_(grad), view_(view) {
    task_.size = view.size;
    task_.blocks = view.blocks;
    task_.inner = view.inner;
    task_.alpha = static_cast<float>(r.attrs.number("alpha"));
    task_.beta = static_cast<float>(r.attrs.number("beta"));
    task_.knorm = static_cast<float>(r.attrs.number("knorm"));
    task_.width = r.attrs.integer("nsize");
    set_cost(*this, r, static_cast<double>(view.total()) * (grad ? 1.5 : 1.0));
    row_ = (view.blocks * view.size + task_.width + 15) / 16 * 16;
    workspace_bytes = static_cast<size_t>(kLrnRows * row_ * threads) * sizeof(float);
  }

  void run(const Buffers& b, const RunContext&) const override {
    const int64_t count = view_.outer * view_.inner;
    parallel_for(threads, threads, 1, [&](int64_t first, int64_t last) {
      for (int64_t part = first; part < last; ++part) {
        float* space = static_cast<float*>(b.workspace) + part * kLrnRows * row_;
        const int64_t end = count * (part + 1) / threads;
        for (int64_t at = count * part / threads; at < end;) at = image(b, at, end, space);
      }
    });
  }

 private:
  // Places [at, end) as far as they lie in one image; returns where it stopped.
  int64_t image(const Buffers& b, int64_t at, int64_t end, float* space) const {
    const int64_t number = at / view_.inner, place = at % view_.inner;
    const int64_t offset = (number * view_.blocks * view_.inner + place) * view_.size;
    const auto in = [&](int i) { return static_cast<const float*>(b.in[i]) + offset; };
    BlockedLrnTask t = task_;
    t.places = std::min(end - at, view_.inner - place);
    t.workspace = space;
    t.result = static_cast<float*>(b.out[0]) + offset;
    t.x = in(grad_ ? 1 : 0);
    if (grad_) {
      t.dy = in(0);
      t.y = in(2);
      MIXFLOW_PICK(blocked_lrn_grad)(t);
    } else {
      MIXFLOW_PICK(blocked_lrn)(t);
    }
    return at + t.places;
  }

  bool grad_;
  BlockView view_;
  BlockedLrnTask task_;
  int64_t row_ = 0;  // floats of one row of the workspace
};

std::unique_ptr<Kernel> make_lrn(const Request& r, bool grad) {
  if (!good_blocks(r, r.inputs[0].shape) || !all_of_dtype(r, DType::float32)) return nullptr;
  return std::make_unique<BlockedLrnKernel>(r, grad, BlockView(r.inputs[0].shape));
}

}  // namespace

void register_blocked_kernels(Registry& registry) {
  for (const bool block : {true, false}) {
    registry.add(block ? "block" : "unblock", 0, "plain",
                 [block](const Request& r) { return make_reorder(r, block); });
  }
  const std::pair<const char*, Norm> norms[] = {{"blocked_norm_train", Norm::train},
                                                {"blocked_norm", Norm::apply},
                                                {"blocked_norm_grad", Norm::grad}};
  for (const auto& [name, action] : norms) {
    registry.add(name, 0, "blocks",
                 [action = action](const Request& r) { return make_norm(r, action); });
  }
  for (const bool grad : {false, true}) {
    registry.add(grad ? "blocked_pool_grad" : "blocked_pool", 0, "blocks",
                 [grad](const Request& r) { return make_pool(r, grad); });
    registry.add(grad ? "blocked_lrn_grad" : "blocked_lrn", 0, "places",
                 [grad](const Request& r) { return make_lrn(r, grad); });
  }
}

}  // namespace mixflow::kernels
