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
class WidenedKernel final : public Kernel {
 public:
  WidenedKernel(const Request& r, KernelRef inner) : inner_(std::move(inner)) {
    check(r.inputs.size() <= kMost && r.outputs.size() <= kMost, "[", r.primitive,
          "] expected at most ", kMost, " inputs and outputs");
    for (const Desc& d : r.inputs) in_.push_back(place(d));
    for (const Desc& d : r.outputs) out_.push_back(place(d));
    inner_at_ = workspace_bytes;
    workspace_bytes += inner_->workspace_bytes;
    double converted = 0;
    for (const auto* list : {&in_, &out_}) {
      for (const Place& p : *list) converted += p.copied ? static_cast<double>(p.count) : 0;
    }
    set_cost(*this, r, 0.2 * converted);
    threads = std::max(threads, inner_->threads);
    cheap = cheap && inner_->cheap;
    implementation = kPrefix + inner_->implementation;
  }

  void run(const Buffers& b, const RunContext& context) const override {
    char* space = static_cast<char*>(b.workspace);
    const void* in[kMost];
    void* out[kMost];
    for (size_t i = 0; i < in_.size(); ++i) {
      const Place& p = in_[i];
      if (p.copied) convert(loop_table().load(p.dtype), b.in[i], 2, space + p.offset, 4, p.count);
      in[i] = p.copied ? space + p.offset : b.in[i];
    }
    for (size_t i = 0; i < out_.size(); ++i) {
      out[i] = out_[i].copied ? space + out_[i].offset : b.out[i];
    }
    inner_->run({in, out, space + inner_at_}, context);
    for (size_t i = 0; i < out_.size(); ++i) {
      const Place& p = out_[i];
      if (!p.copied) continue;
      convert(loop_table().store(Domain::f32, p.dtype), space + p.offset, 4, b.out[i], 2, p.count);
    }
  }

 private:
  struct Place {
    bool copied;
    DType dtype;
    int64_t count;
    size_t offset;
  };

  Place place(const Desc& d) {
    const Place made{narrow(d), d.dtype, d.shape.size(), workspace_bytes};
    if (made.copied) workspace_bytes += (static_cast<size_t>(made.count) * 4 + 63) / 64 * 64;
    return made;
  }

  void convert(const LoopSet& loops, const void* from, int64_t from_size, void* to, int64_t to_size,
               int64_t count) const {
    parallel_for(threads, count, kGrain, [&](int64_t begin, int64_t end) {
      loops.by_scalars[0](static_cast<const char*>(from) + begin * from_size, nullptr, nullptr,
                          static_cast<char*>(to) + begin * to_size, end - begin);
    });
  }

  KernelRef inner_;
  std::vector<Place> in_, out_;
  size_t inner_at_ = 0;
};

std::unique_ptr<Kernel> prepare_widened(const Request& r) {
  if (!any_narrow(r)) return nullptr;
  expect_plain(r);
  KernelRef inner = registry().prepare(widened(r));
  return inner ? std::make_unique<WidenedKernel>(r, std::move(inner)) : nullptr;
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

// The batch is cut so that a run takes some 50 ms: the ratio of the kernels hardly depends on it.
Request trial_request(const Request& r, Direction direction) {
  constexpr double kMostFlops = 1e10;
  const Desc& y = direction == Direction::forward ? r.outputs[0] : r.inputs[0];
  const int64_t images = y.shape[0];
  const auto most = static_cast<int64_t>(kMostFlops * static_cast<double>(images) /
                                         flops_of(r, direction));
  if (most >= images) return r;
  Request trial = r;
  const Desc* weights = &weights_of(trial, direction);
  for (auto* list : {&trial.inputs, &trial.outputs}) {
    for (Desc& d : *list) {
      if (&d != weights && d.shape.ndim() > 2) d.shape[0] = std::max<int64_t>(1, most);
    }
  }
  return trial;
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

// Makes the float32 kernel's own choice repeat for the cut batch, without another timing.
void pin(Request& trial, const KernelRef& kernel) {
  const std::string& name = kernel->implementation;
  const bool winograd = name.rfind("winograd:f", 0) == 0;
  trial.attrs.set("winograd", winograd ? int64_t{name[10] - '0'} : int64_t{0});
}

// Measured (Zen 4, two threads): narrow kernels take half the time of direct float32 ones, except
// for weight gradients of windows on small planes, which take three times as long.
bool fixed_choice(const Request& r, Direction direction) {
  const Desc& w = weights_of(r, direction);
  int64_t window = 1;
  for (int i = 2; i < w.shape.ndim(); ++i) window *= w.shape[i];
  return direction == Direction::weight_grad && window > 1;
}

bool wide_is_faster(const Request& r, Direction direction, const KernelRef& own,
                    const KernelRef& wide) {
  if (r.attrs.has("winograd")) return false;
  if (deterministic()) return fixed_choice(r, direction);
  if (own->implementation.rfind("onednn:", 0) != 0) return false;
  Request trial = trial_request(r, direction);
  pin(trial, wide);
  const std::vector<Candidate> candidates = {
      {"narrow", [&] { return registry().prepare_below(trial, kChoice); }},
      {"float32", [&] {
         return KernelRef(
             std::make_shared<WidenedKernel>(trial, registry().prepare(widened(trial))));
       }}};
  return tuner()->choose(key_of(r), trial, candidates) == "float32";
}

std::unique_ptr<Kernel> prepare_choice(const Request& r, Direction direction) {
  constexpr double kSmall = 2e7;
  if (!any_narrow(r) || flops_of(r, direction) < kSmall) return nullptr;
  const KernelRef own = registry().prepare_below(r, kChoice);
  if (!own || own->implementation.rfind(kPrefix, 0) == 0) return nullptr;
  KernelRef wide = registry().prepare(widened(r));
  if (!wide || !wide_is_faster(r, direction, own, wide)) return nullptr;
  return std::make_unique<WidenedKernel>(r, std::move(wide));
}

}  // namespace

void register_narrow_kernels(Registry& registry) {
  const char* const names[] = {"matmul", "pool", "pool_grad", "pool_take", "softmax",
                               "log_softmax", "batch_norm_stats", "batch_norm",
                               "batch_norm_train", "batch_norm_grad", "lrn", "lrn_grad",
                               "blocked_pool", "blocked_pool_grad", "blocked_norm",
                               "blocked_norm_train", "blocked_norm_grad", "blocked_lrn",
                               "blocked_lrn_grad"};
  for (const char* name : names) registry.add(name, kLast, "float32", prepare_widened);
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
