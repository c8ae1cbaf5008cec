#include "plan/plan.h"

#include <algorithm>
#include <limits>
#include <utility>

namespace mixflow::plan {
namespace {

size_t align(size_t bytes) {
  return (bytes + storage::kAlignment - 1) / storage::kAlignment * storage::kAlignment;
}

}  // namespace

Plan::Plan(PlanSpec spec) : spec_(std::move(spec)) {
  const auto count = static_cast<int64_t>(spec_.steps.size());
  if (spec_.phase_ends.empty()) spec_.phase_ends.push_back(count);
  check(std::is_sorted(spec_.phase_ends.begin(), spec_.phase_ends.end()) &&
            spec_.phase_ends.back() == count,
        "[plan] expected ascending phase ends that end at ", count, " steps");
  check(spec_.access.size() == spec_.arg_descs.size(), "[plan] expected one access for each of ",
        spec_.arg_descs.size(), " arguments, got ", spec_.access.size());
  flatten();
  analyse();
  fastest_ = std::vector<std::atomic<int64_t>>(static_cast<size_t>(whole()) + 1);
  for (auto& fastest : fastest_) fastest.store(std::numeric_limits<int64_t>::max());
}

void Plan::report_duration(int phase, int64_t nanoseconds) const {
  auto& fastest = fastest_[phase];
  int64_t seen = fastest.load(std::memory_order_relaxed);
  while (nanoseconds < seen && !fastest.compare_exchange_weak(seen, nanoseconds)) {
  }
}

void Plan::flatten() {
  const bool any = std::any_of(spec_.steps.begin(), spec_.steps.end(),
                               [](const Step& step) { return step.nested != nullptr; });
  if (!any) return;
  std::vector<Step> flat;
  std::vector<int64_t> ends;
  int64_t number = 0;
  for (int64_t end : spec_.phase_ends) {
    for (; number < end; ++number) {
      const Step& step = spec_.steps[number];
      if (step.nested) {
        append_nested(step, &flat);
      } else {
        flat.push_back(step);
      }
    }
    ends.push_back(static_cast<int64_t>(flat.size()));
  }
  spec_.steps = std::move(flat);
  spec_.phase_ends = std::move(ends);
}

void Plan::append_nested(const Step& outer, std::vector<Step>* flat) {
  const Plan& nested = *outer.nested;
  check(nested.phases() == 1 && nested.kept_bytes() == 0,
        "[plan] expected a nested plan of one phase that keeps nothing in ", outer.label);
  check(nested.arg_descs().size() == outer.inputs.size() + outer.outputs.size(), "[plan] expected ",
        nested.arg_descs().size(), " inputs and outputs for the nested plan ", outer.label,
        ", got ", outer.inputs.size() + outer.outputs.size());
  size_t base = outer.workspace.offset;
  if (outer.workspace.bytes < nested.arena_bytes()) {  // no room given: take it at the end
    base = align(spec_.arena_bytes);
    spec_.arena_bytes = base + nested.arena_bytes();
  }
  const auto first_constant = static_cast<int32_t>(spec_.constants.size());
  spec_.constants.insert(spec_.constants.end(), nested.constants().begin(),
                         nested.constants().end());
  for (Step step : nested.steps()) {
    for (Slot& slot : step.inputs) slot = outer_slot(slot, outer, base, first_constant, nested);
    for (Slot& slot : step.outputs) slot = outer_slot(slot, outer, base, first_constant, nested);
    step.workspace = outer_slot(step.workspace, outer, base, first_constant, nested);
    if (step.draw_slot >= 0 && outer.draw_slot >= 0) step.draw_slot += outer.draw_slot;
    step.label = outer.label + "/" + step.label;
    flat->push_back(std::move(step));
  }
}

Slot Plan::outer_slot(const Slot& slot, const Step& outer, size_t arena_base,
                      int32_t first_constant, const Plan& nested) {
  Slot made = slot;
  const auto inputs = static_cast<int32_t>(outer.inputs.size());
  switch (slot.kind) {
    case Slot::Kind::arg:
      return slot.index < inputs ? outer.inputs[slot.index] : outer.outputs[slot.index - inputs];
    case Slot::Kind::arena:
      made.offset += arena_base;
      return made;
    case Slot::Kind::constant:
      made.index += first_constant;
      return made;
    case Slot::Kind::scalar: {
      const ScalarBuffer& buffer = nested.scalars()[slot.index];
      made.index = scalar_buffer(buffer.index, buffer.dtype);
      return made;
    }
    case Slot::Kind::kept:
    case Slot::Kind::null:
      break;
  }
  return made;
}

int32_t Plan::scalar_buffer(int32_t index, DType dtype) {
  for (size_t i = 0; i < spec_.scalars.size(); ++i) {
    if (spec_.scalars[i].index == index && spec_.scalars[i].dtype == dtype) {
      return static_cast<int32_t>(i);
    }
  }
  spec_.scalars.push_back({index, dtype});
  return static_cast<int32_t>(spec_.scalars.size()) - 1;
}

void Plan::analyse() {
  uses_.assign(phases(), std::vector<ArgUse>(spec_.arg_descs.size()));
  threads_.assign(phases(), 1);
  teamwork_.assign(phases(), false);
  phase_hosts_.assign(phases(), false);
  for (int phase = 0; phase < phases(); ++phase) {
    for (int64_t i = phase_begin(phase); i < phase_end(phase); ++i) analyse_step(i, phase);
  }
  if (spec_.kept_bytes) analyse_kept();
  if (phases() > 1) analyse_whole();
  for (const ScalarBuffer& buffer : spec_.scalars) {
    check(buffer.index >= 0 && buffer.index < spec_.num_scalars, "[plan] expected scalars below ",
          spec_.num_scalars, ", got slot ", buffer.index);
  }
  if (!spec_.arg_descs.empty()) {
    device_ = spec_.arg_descs.front().device;
  } else if (!spec_.steps.empty() && !spec_.steps.front().output_descs.empty()) {
    device_ = spec_.steps.front().output_descs.front().device;
  }
  inline_ok_ = spec_.steps.size() == 1 && spec_.steps[0].kernel && spec_.steps[0].kernel->cheap;
}

// The uses of all phases together: a value that an earlier phase has fully written is not one of
// before the run.
void Plan::analyse_whole() {
  std::vector<ArgUse> whole = uses_[0];
  for (int phase = 1; phase < phases(); ++phase) {
    for (size_t i = 0; i < whole.size(); ++i) {
      const ArgUse& use = uses_[phase][i];
      const bool fresh = whole[i].writes && spec_.access[i] == Access::write;
      whole[i].touched |= use.touched;
      whole[i].reads |= use.reads && !fresh;
      whole[i].writes |= use.writes;
      whole[i].last_step = std::max(whole[i].last_step, use.last_step);
    }
  }
  uses_.push_back(std::move(whole));
  threads_.push_back(*std::max_element(threads_.begin(), threads_.end()));
  teamwork_.push_back(std::find(teamwork_.begin(), teamwork_.end(), true) != teamwork_.end());
  phase_hosts_.push_back(host_calls_ > 0);
}

void Plan::check_slot(const Step& step, const Slot& slot, bool output) const {
  if (slot.kind == Slot::Kind::arg) {
    check(slot.index >= 0 && slot.index < static_cast<int64_t>(spec_.arg_descs.size()),
          "[plan] expected arguments below ", spec_.arg_descs.size(), ", got slot ", slot.index,
          " in ", step.label);
    check(!output || spec_.access[slot.index] != Access::read,
          "[plan] expected access 'w' or 'rw' for argument ", slot.index, ", which ", step.label,
          " writes, got 'r'");
  }
  if (slot.kind == Slot::Kind::kept) {
    check(slot.offset + slot.bytes <= spec_.kept_bytes && slot.offset % storage::kAlignment == 0,
          "[plan] expected an aligned range inside the ", spec_.kept_bytes,
          " bytes that are kept, got offset ", slot.offset, " and ", slot.bytes, " bytes in ",
          step.label);
  }
  if (slot.kind == Slot::Kind::arena) {
    check(slot.offset + slot.bytes <= spec_.arena_bytes && slot.offset % storage::kAlignment == 0,
          "[plan] expected an aligned range inside the arena of ", spec_.arena_bytes,
          " bytes, got offset ", slot.offset, " and ", slot.bytes, " bytes in ", step.label);
  }
}

// One phase whose last step writes an argument: then no two runs of a binding overlap, because the
// tag of that argument is held to the end.
void Plan::analyse_kept() {
  const auto is_arg = [](const Slot& slot) { return slot.kind == Slot::Kind::arg; };
  const auto& last = spec_.steps.back().outputs;
  check(phases() == 1 && std::any_of(last.begin(), last.end(), is_arg),
        "[plan] expected one phase that ends by writing an argument of a plan that keeps values");
  for (const Step& step : spec_.steps) {
    check(!step.steady || step.kernel, "[plan] expected a native step to be steady, got ",
          step.label);
    for (size_t i = 0; i < step.inputs.size(); ++i) {
      const bool used = step.steady || (step.prepared.kind == Slot::Kind::kept && i == 1);
      if (used && is_arg(step.inputs[i])) kept_args_.push_back(step.inputs[i].index);
    }
  }
  std::sort(kept_args_.begin(), kept_args_.end());
  kept_args_.erase(std::unique(kept_args_.begin(), kept_args_.end()), kept_args_.end());
  for (const int32_t arg : kept_args_) {
    check(spec_.access[arg] == Access::read, "[plan] expected argument ", arg,
          " not to be written, as values made of it are kept");
  }
}

void Plan::analyse_step(int64_t number, int phase) {
  Step& step = spec_.steps[number];
  step.first_pointer = pointer_count_;
  pointer_count_ += step.inputs.size() + step.outputs.size();
  check_slot(step, step.workspace, false);
  check_slot(step, step.prepared, false);
  auto& uses = uses_[phase];
  for (const Slot& slot : step.inputs) {
    check_slot(step, slot, false);
    if (slot.kind != Slot::Kind::arg) continue;
    ArgUse& use = uses[slot.index];
    // Reading what this phase has just written fully does not read the value of before.
    if (!use.writes || spec_.access[slot.index] != Access::write) use.reads = true;
    use.touched = true;
    use.last_step = number;
  }
  for (const Slot& slot : step.outputs) {
    check_slot(step, slot, true);
    if (slot.kind != Slot::Kind::arg) continue;
    ArgUse& use = uses[slot.index];
    if (spec_.access[slot.index] == Access::read_write) use.reads = true;
    use.touched = use.writes = true;
    use.last_step = number;
  }
  num_draws_ = std::max(num_draws_, step.draw_slot + 1);
  if (step.host) {
    ++host_calls_;
    phase_hosts_[phase] = true;
  }
  if (!step.kernel) return;
  threads_[phase] = std::max(threads_[phase], step.kernel->threads);
  if (step.kernel->teamwork) teamwork_[phase] = true;
  check(step.kernel->workspace_bytes == 0 || step.workspace.bytes >= step.kernel->workspace_bytes,
        "[plan] expected a workspace of ", step.kernel->workspace_bytes, " bytes for ", step.label,
        ", got ", step.workspace.bytes);
}

}  // namespace mixflow::plan
