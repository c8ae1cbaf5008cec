// Plan: an immutable flat list of steps with the places of their buffers.
//
// Nested plans are flattened when the plan is made, so the runner knows only two kinds of steps:
// native ones and host calls.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/desc.h"
#include "kernels/kernel.h"
#include "plan/array.h"
#include "storage/storage.h"

namespace mixflow::plan {

struct HostBuffer {
  void* data = nullptr;
  const Desc* desc = nullptr;
  storage::BlockRef owner;  // keeps the memory alive for views that outlive the call
};

// A call into Python as a step. Runs on the python lane; the implementation (bind/) takes the GIL
// itself and hands the Python object to a graveyard when it is destroyed.
class HostCall {
 public:
  virtual ~HostCall() = default;
  virtual void call(const std::vector<HostBuffer>& inputs, const std::vector<HostBuffer>& outputs,
                    const kernels::RunContext& context) const = 0;
};

// Where a step finds a buffer.
struct Slot {
  enum class Kind : uint8_t { null, arg, arena, scalar, constant, kept };
  Kind kind = Kind::null;
  int32_t index = 0;             // of the argument, the scalar buffer or the constant
  size_t offset = 0;             // arena, kept
  size_t bytes = 0;              // arena, kept
  DType dtype = DType::float32;  // scalar
};

class Plan;
using PlanRef = std::shared_ptr<const Plan>;

struct Step {
  kernels::KernelRef kernel;  // exactly one of these three
  std::shared_ptr<const HostCall> host;
  PlanRef nested;  // only before flattening
  std::vector<Slot> inputs;
  std::vector<Slot> outputs;
  std::vector<Desc> input_descs;
  std::vector<Desc> output_descs;
  Slot workspace;
  int64_t draw_slot = -1;
  bool steady = false;  // depends on parameters alone: skipped while what it made is kept
  Slot prepared;        // where the kernel's form of its weights (input 1) is kept
  std::string label;
  size_t first_pointer = 0;  // this step's place in the run's pointer table: inputs, then outputs
};

enum class Access : uint8_t { read, write, read_write };

// How one phase touches one argument.
struct ArgUse {
  bool touched = false;
  bool reads = false;  // the value of before the phase may be read
  bool writes = false;
  int64_t last_step = -1;
};

// A number of the run converted to one dtype.
struct ScalarBuffer {
  int32_t index;
  DType dtype;
};

struct PlanSpec {
  std::vector<Step> steps;
  std::vector<Desc> arg_descs;
  std::vector<Access> access;
  std::vector<Array> constants;
  std::vector<ScalarBuffer> scalars;
  int64_t num_scalars = 0;
  size_t arena_bytes = 0;
  size_t kept_bytes = 0;  // see kept.h
  std::vector<int64_t> phase_ends;
  std::string label;
};

// Thread-safe because it is immutable.
class Plan {
 public:
  // Throws Error when a slot, an access or a phase does not fit.
  explicit Plan(PlanSpec spec);

  const std::vector<Step>& steps() const { return spec_.steps; }
  const std::vector<Desc>& arg_descs() const { return spec_.arg_descs; }
  const std::vector<Array>& constants() const { return spec_.constants; }
  const std::vector<ScalarBuffer>& scalars() const { return spec_.scalars; }
  const std::string& label() const { return spec_.label; }
  int64_t num_scalars() const { return spec_.num_scalars; }
  int64_t num_draws() const { return num_draws_; }
  int64_t host_calls() const { return host_calls_; }
  size_t arena_bytes() const { return spec_.arena_bytes; }
  size_t kept_bytes() const { return spec_.kept_bytes; }
  // Arguments that what is kept is made of.
  const std::vector<int32_t>& kept_args() const { return kept_args_; }
  size_t pointer_count() const { return pointer_count_; }
  Device device() const { return device_; }

  int phases() const { return static_cast<int>(spec_.phase_ends.size()); }
  // The number that stands for all phases in one run; one that is the only phase has no other.
  int whole() const { return phases() > 1 ? phases() : 0; }
  int64_t phase_begin(int phase) const {
    return phase == 0 || phase == whole() ? 0 : spec_.phase_ends[phase - 1];
  }
  int64_t phase_end(int phase) const {
    return phase == whole() ? spec_.phase_ends.back() : spec_.phase_ends[phase];
  }
  const std::vector<ArgUse>& uses(int phase) const { return uses_[phase]; }
  int threads(int phase) const { return threads_[phase]; }
  // Whether kernels of the phase share their work with a team.
  bool teamwork(int phase) const { return teamwork_[phase]; }
  bool has_host_calls(int phase) const { return phase_hosts_[phase]; }
  // May run on the pushing thread: one cheap native step, or native steps on one thread whose
  // quickest run so far was shorter than waking a worker and waiting for it.
  bool inline_ok(int phase) const {
    return inline_ok_ || fastest_[phase].load(std::memory_order_relaxed) <= kInlineNanoseconds;
  }
  // Whether runs of the phase are to report how long they took. Thread-safe, like the report.
  bool wants_duration(int phase) const {
    return !inline_ok_ && threads_[phase] == 1 && !phase_hosts_[phase];
  }
  void report_duration(int phase, int64_t nanoseconds) const;

 private:
  static constexpr int64_t kInlineNanoseconds = 100000;

  void flatten();
  void append_nested(const Step& outer, std::vector<Step>* flat);
  Slot outer_slot(const Slot& slot, const Step& outer, size_t arena_base, int32_t first_constant,
                  const Plan& nested);
  void analyse();
  void check_slot(const Step& step, const Slot& slot, bool output) const;
  void analyse_step(int64_t number, int phase);
  void analyse_kept();
  void analyse_whole();
  int32_t scalar_buffer(int32_t index, DType dtype);

  PlanSpec spec_;
  std::vector<std::vector<ArgUse>> uses_;
  std::vector<int> threads_;
  std::vector<bool> teamwork_;
  std::vector<bool> phase_hosts_;
  std::vector<int32_t> kept_args_;
  int64_t num_draws_ = 0;
  int64_t host_calls_ = 0;
  size_t pointer_count_ = 0;
  Device device_;
  bool inline_ok_ = false;
  mutable std::vector<std::atomic<int64_t>> fastest_;  // nanoseconds, per phase and for the whole
};

}  // namespace mixflow::plan
