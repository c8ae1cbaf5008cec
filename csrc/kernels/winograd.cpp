// Winograd's convolution behind the primitives: served where it was measured to beat the kernels of
// lower rank, or where a fixed rule says so.
#include <algorithm>

#include "base/error.h"
#include "kernels/tuner.h"
#include "kernels/winograd_kernels.h"

namespace mixflow::kernels {
namespace {

constexpr int kRank = 20;
// Part of the tuner's key: raise it when the speed of these kernels changes.
constexpr const char* kVersion = "winograd-2";

bool all(const std::vector<int64_t>& values, int64_t low, int64_t high) {
  return std::all_of(values.begin(), values.end(),
                     [=](int64_t v) { return v >= low && v <= high; });
}

bool plain_float(const Desc& d) { return d.dtype == DType::float32 && d.layout.plain(); }

bool activation(const Desc& d) {
  if (d.dtype != DType::float32 || d.shape.size() == 0) return false;
  if (d.shape.ndim() == 5) return d.layout.plain() && (d.shape[4] == 8 || d.shape[4] == 16);
  return d.shape.ndim() == 4 && winograd_block(d.layout) != 0;
}

bool flag_of(const Request& r, const char* name) {
  return r.attrs.has(name) && r.attrs.flag(name);
}

// Whether Winograd can compute the request at all.
bool eligible(const Request& r, WinogradDirection direction) {
  if (r.inputs.size() < 2 || flag_of(r, "add")) return false;
  const bool weights_out = direction == WinogradDirection::weight_grad;
  const Desc& w = weights_out ? r.outputs[0] : r.inputs[1];
  if (!activation(r.inputs[0]) || !activation(weights_out ? r.inputs[1] : r.outputs[0])) {
    return false;
  }
  if (!plain_float(w) || w.shape.ndim() != 4 || w.shape[2] != w.shape[3]) return false;
  const int64_t taps = w.shape[2];
  if (taps != 3 && taps != 5) return false;
  if (r.inputs.size() > 2 && !plain_float(r.inputs[2])) return false;
  return r.attrs.integer("groups") == 1 && all(r.attrs.integers("stride"), 1, 1) &&
         all(r.attrs.integers("dilate"), 1, 1) && all(r.attrs.integers("pad"), 0, taps - 1);
}

// The error grows with the square root of the channels summed; up to these counts it is within the
// bound that tests/unit/test_winograd.py states.
bool accurate(const WinogradProblem& p, WinogradRule rule) {
  const int64_t summed = p.direction == WinogradDirection::data_grad ? p.filters : p.channels;
  return rule.side == 2 || summed <= (rule.taps == 5 ? 512 : 2048);
}

// The rule with the fewest multiplications among the accurate ones.
WinogradRule best_rule(const WinogradProblem& p) {
  const WinogradRule four{4, p.taps};
  return accurate(p, four) ? four : WinogradRule{2, p.taps};
}

// Direct convolution wins for few channels, where transforms dominate, and for few tiles, where
// transforming the weights does.
bool worth_a_trial(const WinogradProblem& p) {
  return p.flops >= 1e8 && p.channels >= 16 && p.filters >= 16;
}

// The rule for deterministic runs: measured on VGG, ResNet and AlexNet (AVX-512, two threads).
bool fixed_choice(const WinogradProblem& p) {
  const int64_t tiles = p.images * ((p.out_height + 3) / 4) * ((p.out_width + 3) / 4);
  return std::min(p.channels, p.filters) >= 32 && tiles >= 128;
}

// The batch is cut so that a run takes some 50 ms: the ratio of the kernels does not depend on it.
Request trial_request(const Request& r, const WinogradProblem& p) {
  constexpr double kMostFlops = 1e10;
  const double per_image = p.flops / static_cast<double>(p.images);
  const int64_t images = std::max<int64_t>(1, static_cast<int64_t>(kMostFlops / per_image));
  if (images >= p.images) return r;
  Request trial = r;
  trial.inputs[0].shape[0] = images;
  const bool weights_out = p.direction == WinogradDirection::weight_grad;
  (weights_out ? trial.inputs[1] : trial.outputs[0]).shape[0] = images;
  return trial;
}

std::string key_of(const Request& r, const WinogradProblem& p) {
  return concat(kVersion, " ", r.primitive, " over ", registry().implementations(r.primitive),
                " threads=", r.threads, " n=", p.images, " c=", p.channels, " h=", p.height,
                " w=", p.width, " k=", p.filters, " taps=", p.taps, " pad=", p.pad_y, ",",
                p.pad_x,
                " blocks=", p.x_block, ",", p.y_block, " inputs=", r.inputs.size(),
                " outputs=", r.outputs.size());
}

bool faster(const Request& r, const WinogradProblem& p, WinogradRule rule) {
  const Request trial = trial_request(r, p);
  const WinogradProblem small = winograd_problem(trial, p.direction);
  const std::string name = winograd_name(rule);
  const std::vector<Candidate> candidates = {
      {"direct", [&] { return registry().prepare_below(trial, kRank); }},
      {name, [&] { return KernelRef(make_winograd(trial, small, rule)); }}};
  return tuner()->choose(key_of(r, p), trial, candidates) == name;
}

// What the attribute `winograd` asks for: a side, or 0 for never.
std::unique_ptr<Kernel> asked(const Request& r, const WinogradProblem& p) {
  const WinogradRule rule{r.attrs.integer("winograd"), p.taps};
  check(rule.side == 0 || rule.side == 2 || rule.side == 4, "[", r.primitive,
        "] expected winograd to be 0, 2 or 4, got ", rule.side);
  return rule.side == 0 ? nullptr : make_winograd(r, p, rule);
}

std::unique_ptr<Kernel> prepare(const Request& r, WinogradDirection direction) {
  if (!eligible(r, direction)) return nullptr;
  const WinogradProblem p = winograd_problem(r, direction);
  if (r.attrs.has("winograd")) return asked(r, p);
  if (!worth_a_trial(p)) return nullptr;
  const bool fixed = r.attrs.has("deterministic") ? r.attrs.flag("deterministic") : deterministic();
  const WinogradRule rule = best_rule(p);
  const bool use = fixed ? fixed_choice(p) : faster(r, p, rule);
  return use ? make_winograd(r, p, rule) : nullptr;
}

}  // namespace

void register_winograd_kernels(Registry& registry) {
  const std::pair<const char*, WinogradDirection> entries[] = {
      {"conv", WinogradDirection::forward},
      {"conv_data_grad", WinogradDirection::data_grad},
      {"conv_weight_grad", WinogradDirection::weight_grad}};
  for (const auto& [name, direction] : entries) {
    for (const std::string prefix : {"", "blocked_"}) {
      registry.add(prefix + name, kRank, "winograd",
                   [direction = direction](const Request& r) { return prepare(r, direction); });
    }
  }
}

}  // namespace mixflow::kernels
