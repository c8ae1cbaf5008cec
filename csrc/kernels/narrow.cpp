// float16 and bfloat16 served by float32 kernels, and the choice between them and narrow kernels.
//
// Hazard: a narrow tensor that is widened whole costs a pass over memory each way. So this serves
// where nothing narrow does (lowest rank), and for convolutions where it was timed to be faster:
// Winograd's kernels are float32, and oneDNN's bfloat16 weight gradients are slow for small planes.
#include <cstring>

#include "kernels/dispatch.h"
#include "kernels/loops.h"
#include "kernels/tuner.h"

namespace mixflow::kernels {
namespace {

constexpr int kLast = -10;    // below every kernel that computes in the tensors' own dtype
constexpr int kChoice = 30;   // above Winograd and oneDNN
constexpr const char* kVersion = "narrow-1";
constexpr int64_t kGrain = 16384;
constexpr size_t kMost = 8;  // tensors on a side of a kernel
constexpr const char* kPrefix = "float32:";

bool narrow(const Desc& d) { return d.dtype == DType::float16 || d.dtype == DType::bfloat16; }

bool any_narrow(const Request& r) {
  return std::any_of(r.inputs.begin(), r.inputs.end(), narrow) ||
         std::any_of(r.outputs.begin(), r.outputs.end(), narrow);
}

Request widened(Request r) {
  for (auto* list : {&r.inputs, &r.outputs}) {
    for (Desc& d : *list) {
      if (narrow(d)) d.dtype = DType::float32;
    }
  }
  return r;
}

// A float32 kernel between conversions. The copies lie in the workspace, before the kernel's own.
//
// `parts` > 1: the kernel serves that part of the batch at a time, so that the copies stay small.
// Tensors of more than two axes are batches then, except the one at `weights`; outputs without a
// batch (the weight gradients, float32) are summed over the parts, in order.
class WidenedKernel final : public Kernel {
 public:
  WidenedKernel(const Request& r, KernelRef inner, int64_t parts = 1, const Desc* weights = nullptr)
      : inner_(std::move(inner)), parts_(parts) {
    check(r.inputs.size() <= kMost && r.outputs.size() <= kMost, "[", r.primitive,
          "] expected at most ", kMost, " inputs and outputs");
    for (const Desc& d : r.inputs) in_.push_back(place(d, &d != weights, false));
    for (const Desc& d : r.outputs) out_.push_back(place(d, &d != weights, true));
    inner_at_ = workspace_bytes;
    workspace_bytes += inner_->workspace_bytes;
    double converted = 0;
    for (const auto* list : {&in_, &out_}) {
      for (const Place& p : *list) converted += p.copied ? static_cast<double>(p.count) : 0;
    }
    set_cost(*this, r, 0.2 * converted);
    threads = std::max(threads, inner_->threads);
    cheap = cheap && inner_->cheap;
    teamwork = inner_->teamwork;
    implementation = kPrefix + inner_->implementation;
  }

  void run(const Buffers& b, const RunContext& context) const override {
    for (int64_t part = 0; part < parts_; ++part) run_part(b, context, part);
  }

 private:
  struct Place {
    bool copied;    // converted, or summed: the kernel sees memory in the workspace
    bool batched;   // a part of it belongs to a part of the batch
    DType dtype;
    int64_t count;  // elements that the kernel sees
    size_t offset;  // of the copy

    int64_t at(int64_t part) const {  // bytes
      return batched ? part * count * static_cast<int64_t>(size_of(dtype)) : 0;
    }
  };

  Place place(const Desc& d, bool may_batch, bool out) {
    const bool batched = parts_ > 1 && may_batch && d.shape.ndim() > 2;
    const int64_t count = batched ? d.shape.size() / parts_ : d.shape.size();
    const bool summed = out && parts_ > 1 && !batched;
    check(!(summed && narrow(d)), "[widened] expected float32 for a sum over parts");
    const Place made{narrow(d) || summed, batched, d.dtype, count, workspace_bytes};
    if (made.copied) workspace_bytes += (static_cast<size_t>(made.count) * 4 + 63) / 64 * 64;
    return made;
  }

  void run_part(const Buffers& b, const RunContext& context, int64_t part) const {
    char* space = static_cast<char*>(b.workspace);
    const void* in[kMost];
    void* out[kMost];
    for (size_t i = 0; i < in_.size(); ++i) {
      const Place& p = in_[i];
      const char* source = static_cast<const char*>(b.in[i]) + p.at(part);
      in[i] = p.copied ? space + p.offset : source;
      if (p.copied && (p.batched || part == 0)) {
        convert(loop_table().load(p.dtype), source, 2, space + p.offset, 4, p.count);
      }
    }
    for (size_t i = 0; i < out_.size(); ++i) {
      const Place& p = out_[i];
      const bool first_sum = p.copied && !narrow_output(p) && part == 0;
      out[i] = p.copied && !first_sum ? space + p.offset
                                      : static_cast<char*>(b.out[i]) + p.at(part);
    }
    inner_->run({in, out, space + inner_at_}, context);
    for (size_t i = 0; i < out_.size(); ++i) store_part(b, out_[i], i, part);
  }

  static bool narrow_output(const Place& p) { return p.dtype != DType::float32; }

  void store_part(const Buffers& b, const Place& p, size_t i, int64_t part) const {
    if (!p.copied) return;
    char* copy = static_cast<char*>(b.workspace) + p.offset;
    char* target = static_cast<char*>(b.out[i]) + p.at(part);
    if (narrow_output(p)) {
      convert(loop_table().store(Domain::f32, p.dtype), copy, 4, target, 2, p.count);
    } else if (part > 0) {
      add(reinterpret_cast<const float*>(copy), reinterpret_cast<float*>(target), p.count);
    }
  }

  void add(const float* more, float* sums, int64_t count) const {
    parallel_for(threads, count, kGrain, [&](int64_t begin, int64_t end) {
      loop_table().binary(Op::add, Domain::f32).by_scalars[0](sums + begin, more + begin, nullptr,
                                                              sums + begin, end - begin);
    });
  }

  void convert(const LoopSet& loops, const void* from, int64_t from_size, void* to, int64_t to_size,
               int64_t count) const {
    parallel_for(threads, count, kGrain, [&](int64_t begin, int64_t end) {
      loops.by_scalars[0](static_cast<const char*>(from) + begin * from_size, nullptr, nullptr,
                          static_cast<char*>(to) + begin * to_size, end - begin);
    });
  }

  KernelRef inner_;
  int64_t parts_;
  std::vector<Place> in_, out_;
  size_t inner_at_ = 0;
};

// The smallest number of equal parts of a batch whose float32 copies stay below `limit` bytes.
int64_t parts_of(const Request& r, const Desc* weights, int64_t limit) {
  int64_t bytes = 0;
  for (const auto* list : {&r.inputs, &r.outputs}) {
    for (const Desc& d : *list) {
      if (&d != weights && narrow(d) && d.shape.ndim() > 2) bytes += 4 * d.shape.size();
    }
  }
  const int64_t images = r.inputs[0].shape[0];
  int64_t parts = std::min(images, (bytes + limit - 1) / limit);
  while (parts > 1 && images % parts != 0) ++parts;
  return std::max<int64_t>(1, parts);
}

// The request for fewer images: first axes of tensors of more than two axes, except the weights.
Request with_images(const Request& r, const Desc* weights, int64_t images) {
  Request cut = r;
  const auto shorten = [&](const std::vector<Desc>& given, std::vector<Desc>& made) {
    for (size_t i = 0; i < given.size(); ++i) {
      if (&given[i] != weights && given[i].shape.ndim() > 2) made[i].shape[0] = images;
    }
  };
  shorten(r.inputs, cut.inputs);
  shorten(r.outputs, cut.outputs);
  return cut;
}

std::unique_ptr<Kernel> prepare_widened(const Request& r) {
  if (!any_narrow(r)) return nullptr;
  expect_plain(r);
  KernelRef inner = registry().prepare(widened(r));
  return inner ? std::make_unique<WidenedKernel>(r, std::move(inner)) : nullptr;
}

// For kernels that treat images one by one: parts that fit the caches.
std::unique_ptr<Kernel> prepare_images(const Request& r) {
  constexpr int64_t kLimit = int64_t{8} << 20;
  if (!any_narrow(r) || r.inputs[0].shape.ndim() < 3 || r.inputs[0].shape.size() == 0) {
    return prepare_widened(r);
  }
  expect_plain(r);
  const int64_t parts = parts_of(r, nullptr, kLimit);
  const Request part = with_images(r, nullptr, r.inputs[0].shape[0] / parts);
  KernelRef inner = registry().prepare(widened(part));
  return inner ? std::make_unique<WidenedKernel>(r, std::move(inner), parts) : nullptr;
}

// -- the choice for convolutions

enum class Direction { forward, data_grad, weight_grad };

const Desc& weights_of(const Request& r, Direction direction) {
  return direction == Direction::weight_grad ? r.outputs[0] : r.inputs[1];
}

double flops_of(const Request& r, Direction direction) {
  const Desc& w = weights_of(r, direction);
  const Desc& y = direction == Direction::forward ? r.outputs[0] : r.inputs[0];
  return 2.0 * static_cast<double>(y.shape.size()) *
         static_cast<double>(w.shape.size() / std::max<int64_t>(1, w.shape[0]));
}

// The batch is cut so that a run takes some 20 ms: the ratio of the kernels hardly depends on it.
Request trial_request(const Request& r, Direction direction) {
  constexpr double kMostFlops = 5e9;
  const Desc& y = direction == Direction::forward ? r.outputs[0] : r.inputs[0];
  const int64_t images = y.shape[0];
  const auto most = static_cast<int64_t>(kMostFlops * static_cast<double>(images) /
                                         flops_of(r, direction));
  if (most >= images) return r;
  return with_images(r, &weights_of(r, direction), std::max<int64_t>(1, most));
}

// Float32 copies of a part are memory that mixed precision is meant to save.
int64_t parts_of(const Request& r, Direction direction) {
  const bool sums = direction == Direction::weight_grad;
  const Desc& weights = weights_of(r, direction);
  if (sums && narrow(weights)) return 1;
  return parts_of(r, &weights, int64_t{sums ? 128 : 64} << 20);
}

std::string key_of(const Request& r) {
  std::string key = concat(kVersion, " ", r.primitive, " over ",
                           registry().implementations(r.primitive), " threads=", r.threads);
  for (const char* name : {"stride", "dilate", "pad"}) {
    key += concat(" ", name);
    for (int64_t v : r.attrs.integers(name)) key += concat(",", v);
  }
  key += concat(" groups=", r.attrs.integer("groups"));
  for (const auto* list : {&r.inputs, &r.outputs}) {
    for (const Desc& d : *list) key += " " + d.str();
  }
  return key;
}

// Makes the float32 kernel's own choice repeat for a cut batch, without another timing.
Request pinned(Request r, const KernelRef& kernel) {
  const std::string& name = kernel->implementation;
  const bool winograd = name.rfind("winograd:f", 0) == 0;
  r.attrs.set("winograd", winograd ? int64_t{name[10] - '0'} : int64_t{0});
  return r;
}

// `wide` computes the whole batch; what is made may compute it in parts.
std::unique_ptr<Kernel> in_parts(const Request& r, Direction direction, KernelRef wide) {
  const int64_t parts = parts_of(r, direction);
  if (parts > 1) {
    const int64_t images = r.inputs[0].shape[0] / parts;
    const Request part = with_images(r, &weights_of(r, direction), images);
    wide = registry().prepare(widened(pinned(part, wide)));
  }
  return std::make_unique<WidenedKernel>(r, std::move(wide), parts, &weights_of(r, direction));
}

bool pointwise(const Desc& w) {
  int64_t window = 1;
  for (int i = 2; i < w.shape.ndim(); ++i) window *= w.shape[i];
  return window == 1;
}

// Measured (Zen 4, two threads): narrow kernels take half the time of direct float32 ones. Worth a
// timing are Winograd's kernels, the weight gradients of windows, which take three times as long on
// small planes, and what oneDNN has no kernel of its own for.
bool in_doubt(const Request& r, Direction direction, const KernelRef& own, const KernelRef& wide) {
  if (pointwise(weights_of(r, direction))) return false;
  return direction == Direction::weight_grad || wide->implementation.rfind("winograd", 0) == 0 ||
         own->implementation.find("gemm") != std::string::npos;
}

// The rule for deterministic runs.
bool fixed_choice(Direction direction) { return direction == Direction::weight_grad; }

bool wide_is_faster(const Request& r, Direction direction, const KernelRef& own,
                    const KernelRef& wide) {
  if (r.attrs.has("winograd") || !in_doubt(r, direction, own, wide)) return false;
  const bool fixed = r.attrs.has("deterministic") ? r.attrs.flag("deterministic") : deterministic();
  if (fixed) return fixed_choice(direction);
  const Request trial = pinned(trial_request(r, direction), wide);
  const std::vector<Candidate> candidates = {
      {"narrow", [&] { return registry().prepare_below(trial, kChoice); }},
      {"float32", [&] {
         return KernelRef(
             std::make_shared<WidenedKernel>(trial, registry().prepare(widened(trial))));
       }}};
  return tuner()->choose(key_of(r), trial, candidates) == "float32";
}

std::unique_ptr<Kernel> prepare_choice(const Request& r, Direction direction) {
  constexpr double kSmall = 4e6;
  if (!any_narrow(r) || flops_of(r, direction) < kSmall) return nullptr;
  const KernelRef own = registry().prepare_below(r, kChoice);
  if (!own || own->implementation.rfind(kPrefix, 0) == 0) return nullptr;
  KernelRef wide = registry().prepare(widened(r));
  if (!wide || !wide_is_faster(r, direction, own, wide)) return nullptr;
  return in_parts(r, direction, std::move(wide));
}

}  // namespace

void register_narrow_kernels(Registry& registry) {
  const char* const whole[] = {"matmul", "softmax", "log_softmax", "batch_norm_stats",
                               "batch_norm", "batch_norm_train", "batch_norm_grad",
                               "blocked_norm", "blocked_norm_train", "blocked_norm_grad"};
  const char* const images[] = {"pool", "pool_grad", "pool_take", "lrn", "lrn_grad",
                                "blocked_pool", "blocked_pool_grad", "blocked_lrn",
                                "blocked_lrn_grad"};
  for (const char* name : whole) registry.add(name, kLast, "float32", prepare_widened);
  for (const char* name : images) registry.add(name, kLast, "float32", prepare_images);
  const std::pair<const char*, Direction> convolutions[] = {
      {"conv", Direction::forward},
      {"conv_data_grad", Direction::data_grad},
      {"conv_weight_grad", Direction::weight_grad}};
  for (const auto& [name, direction] : convolutions) {
    for (const std::string prefix : {"", "blocked_"}) {
      registry.add(prefix + name, kLast, "float32", prepare_widened);
      registry.add(prefix + name, kChoice, "choice", [direction = direction](const Request& r) {
        return prepare_choice(r, direction);
      });
    }
  }
}

}  // namespace mixflow::kernels
