// Runs plans: one engine task per run, split where a host call has to leave the compute lane.
//
// The hazard: a run that is half done must still own its tags while Python works on a step. So the
// first task acquires every tag of the phase and completes asynchronously; what follows (host
// tasks and the resumed native segments) carries no tags and only moves that task along.
#pragma once

#include <atomic>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "engine/engine.h"
#include "plan/array.h"
#include "plan/kept.h"
#include "plan/plan.h"
#include "plan/runtime.h"

namespace mixflow::plan {

// Memory for intermediate values, shared by plans and phases; its tag orders their runs.
// Thread-safe.
class Arena {
 public:
  explicit Arena(Device device) : chunk_(std::make_shared<Chunk>(0, device)) {}
  const engine::TagRef& tag() { return chunk_->tag(); }
  // Largest plan bound so far. The memory itself follows at the next run.
  size_t bytes() const { return bytes_.load(); }
  void reserve(size_t bytes);
  // For the holder of the tag. `keep`: the contents are needed, so it must be large enough.
  const storage::BlockRef& memory(size_t bytes, bool keep);
  // Called at push. Phase 0 makes `user` the owner; a later phase needs to be the owner and gets
  // the key and draw number with which its phase 0 ran.
  void begin(const void* user, const std::string& label, RngState draws);
  RngState resume(const void* user, const std::string& label);
  std::string owner();

 private:
  ChunkRef chunk_;
  std::mutex mutex_;
  storage::BlockRef block_;
  std::atomic<size_t> bytes_{0};
  const void* user_ = nullptr;
  std::string label_;
  RngState draws_;
};
using ArenaRef = std::shared_ptr<Arena>;

// What a host call pushed: the scope ends (and calls `on_end`, once) when the body and every task
// that holds it are over; the first error of one of them is the scope's. (Callbacks, which are
// tasks of their own, have the engine's `ends_with_children` instead.)
class Scope {
 public:
  explicit Scope(std::function<void(std::exception_ptr)> on_end) : on_end_(std::move(on_end)) {}
  Scope(const Scope&) = delete;
  Scope& operator=(const Scope&) = delete;
  ~Scope();
  // Keeps the first error. Thread-safe.
  void fail(std::exception_ptr error, const std::string& where = "");
  bool used() const { return used_.load(); }
  void mark_used() { used_.store(true); }
  // For a scope that nothing was pushed in: the caller goes on by itself.
  void dismiss() { on_end_ = nullptr; }

 private:
  std::function<void(std::exception_ptr)> on_end_;
  std::exception_ptr error_;
  std::mutex mutex_;
  std::atomic<bool> used_{false};
};
using ScopeRef = std::shared_ptr<Scope>;

// The scope of the host call that runs on this thread, or null. Every push takes it along.
ScopeRef current_scope();
// Runs body() with `scope` current, and puts the old one back.
void with_scope(const ScopeRef& scope, const std::function<void()>& body);
// Declares a write of a whole chunk or of a part: its tag and its version.
// The task's site is set already.
void declare_write(engine::Task* task, const Array& array);

// A plan with its arguments.
class Binding {
 public:
  // checked: compare dtype, shape, device of each argument with the plan's (Error names it).
  Binding(PlanRef plan, std::vector<Array> args, ArenaRef arena, bool checked);

  const Plan& plan() const { return *plan_; }
  const PlanRef& plan_ref() const { return plan_; }
  const std::vector<Array>& args() const { return args_; }
  const ArenaRef& arena() const { return arena_; }
  void check_layouts() const;
  // For the run that is going on.
  Kept& kept() const { return kept_; }
  // Versions of the arguments that the plan keeps values of, for a run that is being pushed.
  Stamps stamps() const;
  void count_step() const { executed_.fetch_add(1, std::memory_order_relaxed); }
  uint64_t executed_steps() const { return executed_.load(std::memory_order_relaxed); }

  // One tag that a phase acquires: arguments that share a chunk share a claim.
  struct Claim {
    int32_t arg;  // one argument with that chunk
    bool reads;
    bool writes;
    int64_t last_step;
  };
  // phase: a phase's number, or Plan::whole().
  const std::vector<Claim>& claims(int phase) const { return claims_[phase]; }

 private:
  void check_argument(size_t index) const;
  std::vector<Claim> make_claims(int phase) const;

  PlanRef plan_;
  std::vector<Array> args_;
  ArenaRef arena_;
  std::vector<std::vector<Claim>> claims_;  // by last step
  mutable std::atomic<uint64_t> executed_{0};
  mutable Kept kept_;
};
using BindingRef = std::shared_ptr<const Binding>;

// An array whose content a run copies into one of its arguments before its first step. With `alias`
// it may read the array in place of the argument, which then keeps what it had.
struct Feed {
  int32_t arg = 0;
  Array source;
  bool alias = false;
};

struct RunOptions {
  const double* scalars = nullptr;
  size_t num_scalars = 0;
  int phase = 0;  // or Plan::whole(): all phases as one task
  std::vector<Feed> feeds;
  const std::vector<uint64_t>* draws = nullptr;  // recorded numbers, one per random step
  uint32_t site = 0;
  const void* user = nullptr;  // who owns the arena between phases; null = the plan
  // Gets the seconds of each native step of the phase, for profiles; host calls count 0.
  std::shared_ptr<std::vector<double>> times;
  bool transient = false;  // the binding is for this run only: its arrays may have no other holder
};

// Pushes one run and returns its first draw number. May block at the queue bound.
uint64_t push_run(const BindingRef& binding, const RunOptions& options);
// Pushes a plain copy of `source` into `target` (equal dtype and size).
void push_copy(const Array& source, const Array& target, uint32_t site);

}  // namespace mixflow::plan
