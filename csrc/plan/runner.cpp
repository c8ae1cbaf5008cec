#include "plan/runner.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <cstring>
#include <ctime>

#include "base/parallel.h"
#include "engine/worker_team.h"
#include "plan/runtime.h"
#include "plan/scalar.h"

namespace mixflow::plan {
namespace {

// Elements of a parameter's update: helpers that are awake have just made its gradient.
constexpr int64_t kShareFrom = 4096;
constexpr int64_t kCopyGrain = 1 << 17;  // bytes for which a thread pays

engine::Lane compute_lane(Device device) {
  return engine::Lane{engine::LaneKind::compute, device.id};
}

// Seconds: processor time of this thread, which other processes do not disturb, or wall-clock time.
double now(bool alone) {
  timespec time{};
  clock_gettime(alone ? CLOCK_THREAD_CPUTIME_ID : CLOCK_MONOTONIC, &time);
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

// Whether a run can read a feed's source in place of the argument: the phase only reads the
// argument, which has its storage for itself, and the source is not one of the arguments.
bool may_alias(const Binding& binding, int phase, const Feed& feed) {
  const auto& args = binding.args();
  const ArgUse& use = binding.plan().uses(phase)[feed.arg];
  const Chunk* target = args[feed.arg].chunk.get();
  const Chunk* source = feed.source.chunk.get();
  const auto count = [&](const Chunk* chunk) {
    return std::count_if(args.begin(), args.end(),
                         [&](const Array& arg) { return arg.chunk.get() == chunk; });
  };
  const auto& kept = binding.plan().kept_args();  // compared by what lies in the argument
  return !use.writes && count(target) == 1 && count(source) == 0 &&
         !std::binary_search(kept.begin(), kept.end(), static_cast<int32_t>(feed.arg)) &&
         source->layout() == binding.plan().arg_descs()[feed.arg].layout;
}

// The task of one run. `position_` and what follows are touched by one thread at a time: the one
// that runs the task, a host task or a resume task; each pushes the next as its last act.
class Run final : public engine::Task {
 public:
  Run(BindingRef binding, const RunOptions& options, RngState rng);

  void run(engine::TaskContext& context) override;
  std::string describe() const override { return failed_ ? *failed_ : plan().label(); }

  // After the writes of the run itself were declared, right before it is pushed.
  void take_stamps() { stamps_ = binding_->stamps(); }

  // Steps until the lane has to change or the phase ends. `python`: this is the python lane.
  // `this` may be gone when it returns. Never throws.
  void proceed(bool python);

  const std::vector<Feed>& feeds() const { return feeds_; }

 private:
  const Plan& plan() const { return binding_->plan(); }
  void store_scalars(const RunOptions& options);
  void take_feeds();
  bool only_fed(size_t index) const;
  void resolve_pointers();
  const Array& argument(int32_t index) const;
  void* resolve(const Slot& slot);
  storage::BlockRef owner_of(const Slot& slot) const;
  std::vector<HostBuffer> host_buffers(const std::vector<Slot>& slots,
                                       const std::vector<Desc>& descs, size_t first) const;
  kernels::RunContext context_of(const Step& step) const;
  Team* team() const;
  void timed_steps();
  void native_steps();
  void run_native(const Step& step, kernels::Buffers buffers);
  void run_kernel(const Step& step, kernels::Buffers buffers);
  void step_done();
  bool host_step();
  void host_done(std::exception_ptr error);
  void finish(std::exception_ptr error);

  BindingRef binding_;
  int phase_;
  RngState rng_;
  std::vector<uint64_t> draws_;
  std::array<uint64_t, 4> few_scalars_{};
  std::vector<uint64_t> many_scalars_;
  std::vector<Feed> feeds_;
  std::shared_ptr<std::vector<double>> times_;
  ScopeRef scope_;  // only held: the callback that pushed this run ends after it
  int64_t position_;
  int64_t end_;
  size_t next_claim_ = 0;
  std::vector<void*> pointers_;
  storage::BlockRef arena_;
  Stamps stamps_;
  char* kept_ = nullptr;
  bool holds_ = false;  // what is kept need not be made
  engine::TaskContext* context_ = nullptr;
  Team* team_ = nullptr;  // of the thread that runs native steps now
  std::shared_ptr<engine::Completion> completion_;
  const std::string* failed_ = nullptr;
};

// Moves a run along on another lane. Carries no tags: the run holds them.
class Hop final : public engine::Task {
 public:
  Hop(Run* run, engine::Lane where, int lease, uint32_t from) : run_(run) {
    lane = where;
    threads = lease;
    site = from;
  }
  void run(engine::TaskContext&) override { run_->proceed(lane.kind == engine::LaneKind::python); }
  std::string describe() const override { return "resume"; }

 private:
  Run* run_;
};

Run::Run(BindingRef binding, const RunOptions& options, RngState rng)
    : binding_(std::move(binding)), phase_(options.phase), rng_(rng), scope_(current_scope()) {
  if (options.draws) draws_ = *options.draws;
  for (const Feed& feed : options.feeds) {
    feeds_.push_back(feed);
    feeds_.back().alias = feed.alias && may_alias(*binding_, phase_, feed);
  }
  times_ = options.times;
  if (times_) {
    times_->assign(static_cast<size_t>(plan().phase_end(phase_) - plan().phase_begin(phase_)), 0.0);
  }
  position_ = plan().phase_begin(phase_);
  end_ = plan().phase_end(phase_);
  store_scalars(options);
  site = options.site;
  threads = plan().threads(phase_);
  inline_ok = plan().inline_ok(phase_);
  lane = compute_lane(plan().device());
  if (inline_ok && threads == 1) lane.kind = engine::LaneKind::small;
  if (position_ < end_ && plan().steps()[position_].host) {
    lane = engine::Lane{engine::LaneKind::python, 0};
    inline_ok = false;
  }
  if (scope_) scope_->mark_used();
}

void Run::store_scalars(const RunOptions& options) {
  const auto& buffers = plan().scalars();
  if (buffers.size() > few_scalars_.size()) many_scalars_.resize(buffers.size());
  uint64_t* stored = many_scalars_.empty() ? few_scalars_.data() : many_scalars_.data();
  for (size_t i = 0; i < buffers.size(); ++i) {
    store_scalar(options.scalars[buffers[i].index], buffers[i].dtype, stored + i);
  }
}

void Run::run(engine::TaskContext& context) {
  context_ = &context;
  try {
    take_feeds();
    resolve_pointers();
    if (!plan().has_host_calls(phase_)) return timed_steps();
  } catch (...) {
    if (scope_) scope_->fail(std::current_exception(), describe());
    throw;
  }
  completion_ = context.defer();
  proceed(lane.kind == engine::LaneKind::python);
}

// Copies what the run was given into its arguments, and lets go of what it was copied from.
void Run::take_feeds() {
  for (const Feed& feed : feeds_) {
    if (feed.alias) continue;
    const Array& target = binding_->args()[feed.arg];
    char* to = static_cast<char*>(target.data());
    const char* from = static_cast<const char*>(feed.source.data());
    if (to == from) continue;
    parallel_for(feed.source.overlaps(target) ? 1 : context_->threads(),
                 static_cast<int64_t>(target.bytes()), kCopyGrain,
                 [&](int64_t begin, int64_t end) {
                   std::memmove(to + begin, from + begin, static_cast<size_t>(end - begin));
                 });
  }
  for (size_t i = 0; i < feeds_.size(); ++i) {
    if (only_fed(i)) context_->release(feeds_[i].source.chunk->tag());
  }
}

// Whether this is the last feed from its storage and no argument lies there.
bool Run::only_fed(size_t index) const {
  const Chunk* chunk = feeds_[index].source.chunk.get();
  const auto& args = binding_->args();
  for (size_t i = 0; i < feeds_.size(); ++i) {
    const bool same = feeds_[i].source.chunk.get() == chunk;
    if (same && (i > index || feeds_[i].alias)) return false;
    if (args[feeds_[i].arg].chunk.get() == chunk) return false;
  }
  const auto& claims = binding_->claims(phase_);
  return std::none_of(claims.begin(), claims.end(),
                      [&](const auto& claim) { return args[claim.arg].chunk.get() == chunk; });
}

// Memory is taken here, once per run; between steps nothing is allocated.
void Run::resolve_pointers() {
  const size_t bytes = plan().arena_bytes();
  if (binding_->arena()) {
    arena_ = binding_->arena()->memory(bytes, phase_ > 0 && phase_ != plan().whole());
  } else if (bytes) {
    arena_ = storage::allocate(bytes);
  }
  if (plan().kept_bytes()) {
    kept_ = binding_->kept().memory(plan().kept_bytes());
    holds_ = binding_->kept().holds(stamps_);
  }
  pointers_.resize(plan().pointer_count());
  for (int64_t i = position_; i < end_; ++i) {
    const Step& step = plan().steps()[i];
    void** place = pointers_.data() + step.first_pointer;
    for (const Slot& slot : step.inputs) *place++ = resolve(slot);
    for (const Slot& slot : step.outputs) *place++ = resolve(slot);
  }
}

const Array& Run::argument(int32_t index) const {
  for (const Feed& feed : feeds_) {
    if (feed.alias && feed.arg == index) return feed.source;
  }
  return binding_->args()[index];
}

void* Run::resolve(const Slot& slot) {
  switch (slot.kind) {
    case Slot::Kind::arg:
      return argument(slot.index).data();
    case Slot::Kind::arena:
      return static_cast<char*>(arena_->data()) + slot.offset;
    case Slot::Kind::scalar:
      return (many_scalars_.empty() ? few_scalars_.data() : many_scalars_.data()) + slot.index;
    case Slot::Kind::constant:
      return plan().constants()[slot.index].data();
    case Slot::Kind::kept:
      return kept_ + slot.offset;
    case Slot::Kind::null:
      break;
  }
  return nullptr;
}

storage::BlockRef Run::owner_of(const Slot& slot) const {
  switch (slot.kind) {
    case Slot::Kind::arg:
      return argument(slot.index).chunk->block();
    case Slot::Kind::constant:
      return plan().constants()[slot.index].chunk->block();
    case Slot::Kind::arena:
      return arena_;
    default:
      return nullptr;
  }
}

std::vector<HostBuffer> Run::host_buffers(const std::vector<Slot>& slots,
                                          const std::vector<Desc>& descs, size_t first) const {
  std::vector<HostBuffer> buffers;
  buffers.reserve(slots.size());
  for (size_t i = 0; i < slots.size(); ++i) {
    buffers.push_back({pointers_[first + i], &descs[i], owner_of(slots[i])});
  }
  return buffers;
}

kernels::RunContext Run::context_of(const Step& step) const {
  kernels::RunContext context;
  context.seed = rng_.seed;
  context.team = team_;
  if (!plan().teamwork(phase_)) context.share_from = kShareFrom;
  if (step.draw_slot >= 0) {
    context.draw = draws_.empty() ? rng_.next + static_cast<uint64_t>(step.draw_slot)
                                  : draws_[static_cast<size_t>(step.draw_slot)];
  }
  return context;
}

void Run::timed_steps() {
  if (!plan().wants_duration(phase_)) return native_steps();
  const auto start = std::chrono::steady_clock::now();
  native_steps();
  const std::chrono::nanoseconds took = std::chrono::steady_clock::now() - start;
  plan().report_duration(phase_, took.count());
}

// Kernels that want helpers get them; others may use those that are awake on leased cores.
Team* Run::team() const {
  if (plan().teamwork(phase_)) return &engine::summon_team(plan().threads(phase_));
  const int leased = context_->threads();
  return leased > 1 ? engine::awake_team(leased) : nullptr;
}

void Run::native_steps() {
  const auto& steps = plan().steps();
  team_ = team();
  for (; position_ < end_ && !steps[position_].host; ++position_) {
    const Step& step = steps[position_];
    kernels::Buffers buffers;
    void** place = pointers_.data() + step.first_pointer;
    buffers.in = place;
    buffers.out = place + step.inputs.size();
    if (step.workspace.kind == Slot::Kind::arena) buffers.workspace = resolve(step.workspace);
    try {
      if (!holds_ || !step.steady) run_native(step, buffers);
    } catch (...) {
      failed_ = &step.label;
      throw;
    }
    step_done();
  }
}

void Run::run_kernel(const Step& step, kernels::Buffers buffers) {
  if (step.prepared.kind == Slot::Kind::kept) {
    void* prepared = resolve(step.prepared);
    if (!holds_) step.kernel->prepare_weights(buffers.in[1], prepared);
    buffers.prepared = prepared;
  }
  step.kernel->run(buffers, context_of(step));
}

void Run::run_native(const Step& step, kernels::Buffers buffers) {
  if (!times_) return run_kernel(step, buffers);
  const double start = now(step.kernel->threads == 1);
  run_kernel(step, buffers);
  (*times_)[static_cast<size_t>(position_ - plan().phase_begin(phase_))] =
      now(step.kernel->threads == 1) - start;
}

// Lets go of every tag whose last step this was; what the last step touches ends with the task.
void Run::step_done() {
  binding_->count_step();
  if (position_ + 1 == end_) {
    if (kept_ && !holds_) binding_->kept().filled(std::move(stamps_));
    return;
  }
  const auto& claims = binding_->claims(phase_);
  while (next_claim_ < claims.size() && claims[next_claim_].last_step <= position_) {
    const int32_t arg = claims[next_claim_++].arg;
    if (&argument(arg) == &binding_->args()[arg]) {
      context_->release(binding_->args()[arg].chunk->tag());
    }
  }
}

void Run::proceed(bool python) {
  try {
    while (position_ < end_) {
      const bool host = plan().steps()[position_].host != nullptr;
      if (host != python) {
        const auto where =
            host ? engine::Lane{engine::LaneKind::python, 0} : compute_lane(plan().device());
        engine().push(std::make_unique<Hop>(this, where, host ? 1 : threads, site));
        return;
      }
      if (!host) {
        native_steps();
      } else if (!host_step()) {
        return;
      }
    }
  } catch (...) {
    return finish(std::current_exception());
  }
  finish(nullptr);
}

// False when the call left work behind: the end of its scope goes on then.
bool Run::host_step() {
  const Step& step = plan().steps()[position_];
  const size_t first = step.first_pointer;
  auto inputs = host_buffers(step.inputs, step.input_descs, first);
  auto outputs = host_buffers(step.outputs, step.output_descs, first + step.inputs.size());
  auto scope = std::make_shared<Scope>([this](std::exception_ptr error) { host_done(error); });
  std::exception_ptr error;
  try {
    with_scope(scope, [&] { step.host->call(inputs, outputs, context_of(step)); });
  } catch (...) {
    error = std::current_exception();
  }
  if (scope->used()) {
    scope->fail(error);
    return false;
  }
  scope->dismiss();
  if (error) {
    failed_ = &step.label;
    std::rethrow_exception(error);
  }
  step_done();
  ++position_;
  return true;
}

// On whatever thread ended the scope: only pushes on.
void Run::host_done(std::exception_ptr error) {
  if (error) {
    failed_ = &plan().steps()[position_].label;
    return finish(error);
  }
  try {
    step_done();
    ++position_;
  } catch (...) {
    return finish(std::current_exception());
  }
  if (position_ == end_) return finish(nullptr);
  proceed(!plan().steps()[position_].host);  // neither lane: always hops
}

void Run::finish(std::exception_ptr error) {
  if (error && scope_) scope_->fail(error, describe());
  auto completion = std::move(completion_);  // `this` may be gone after done()
  completion->done(error);
}

// Bytes that nobody but this task may hold once the caller dropped its handles; an estimate.
size_t held_bytes(const Binding& binding, int phase, bool transient) {
  size_t total = 0;
  for (const auto& claim : binding.claims(phase)) {
    const ChunkRef& chunk = binding.args()[claim.arg].chunk;
    const bool only_ours = transient && chunk.use_count() <= 2;  // the caller's handle and ours
    if (only_ours || (claim.writes && !chunk->allocated())) total += chunk->bytes();
  }
  return total;
}

// Whether the argument's content of before the run is not read.
bool is_fed(const Binding& binding, const std::vector<Feed>& feeds, const Chunk* chunk) {
  return std::any_of(feeds.begin(), feeds.end(), [&](const Feed& feed) {
    const Array& target = binding.args()[feed.arg];
    return target.chunk.get() == chunk && (feed.alias || target.covers_chunk());
  });
}

void check_feeds(const Binding& binding, const std::vector<Feed>& feeds) {
  for (const Feed& feed : feeds) {
    check(feed.arg >= 0 && feed.arg < static_cast<int64_t>(binding.args().size()), "[",
          binding.plan().label(), "] expected feeds for arguments below ", binding.args().size(),
          ", got ", feed.arg);
    const Desc& want = binding.args()[feed.arg].desc;
    const Desc& got = feed.source.desc;
    check(want.dtype == got.dtype && want.shape == got.shape && want.device == got.device, "[",
          binding.plan().label(), "] expected ", want.str(), " as feed of argument ", feed.arg,
          ", got ", got.str(), want.device == got.device ? "" : " on another device");
  }
}

void declare(Run* task, const Binding& binding, const RunOptions& options) {
  const auto& claims = binding.claims(options.phase);
  const std::vector<Feed>& feeds = task->feeds();
  task->reads.reserve(claims.size() + feeds.size() + 1);
  task->writes.reserve(claims.size() + feeds.size() + 1);
  for (const Feed& feed : feeds) {
    task->reads.push_back(feed.source.chunk->tag());
    if (!feed.alias) declare_write(task, binding.args()[feed.arg]);
  }
  for (const auto& claim : claims) {
    const Array& array = binding.args()[claim.arg];
    if (claim.writes) declare_write(task, array);
    if (!claim.reads || (claim.writes && !array.covers_chunk())) continue;
    if (feeds.empty() || !is_fed(binding, feeds, array.chunk.get())) {
      task->reads.push_back(array.chunk->tag());
    }
  }
  if (const ArenaRef& arena = binding.arena()) {
    const bool later = options.phase > 0 && options.phase != binding.plan().whole();
    task->writes.push_back(arena->tag());
    if (later) task->reads.push_back(arena->tag());
  }
}

RngState draws_for(const Binding& binding, const RunOptions& options) {
  const Plan& plan = binding.plan();
  const void* user = options.user ? options.user : &plan;
  const bool random = plan.num_draws() > 0 || plan.host_calls() > 0;
  if (options.phase > 0 && options.phase != plan.whole()) {
    // The numbers of phase 0, so that recomputed draws are equal.
    return binding.arena()->resume(user, plan.label());
  }
  const uint64_t count = options.draws ? 0 : static_cast<uint64_t>(plan.num_draws());
  const RngState state = random ? take_draws(plan.device(), count) : RngState{};
  if (binding.arena()) binding.arena()->begin(user, plan.label(), state);
  return state;
}

class CopyTask final : public engine::Task {
 public:
  CopyTask(Array source, Array target, uint32_t from)
      : source_(std::move(source)), target_(std::move(target)), scope_(current_scope()) {
    site = from;
    const bool across = !(source_.desc.device == target_.desc.device);
    const auto kind = across ? engine::LaneKind::copy_in : engine::LaneKind::small;
    lane = engine::Lane{kind, target_.desc.device.id};
    inline_ok = target_.bytes() <= (1 << 16);
    reads.push_back(source_.chunk->tag());
    declare_write(this, target_);
    if (scope_) scope_->mark_used();
  }
  void run(engine::TaskContext&) override {
    std::memmove(target_.data(), source_.data(), target_.bytes());
  }
  std::string describe() const override { return "copy " + target_.desc.str(); }

 private:
  Array source_;
  Array target_;
  ScopeRef scope_;
};

}  // namespace

uint64_t push_run(const BindingRef& binding, const RunOptions& options) {
  const Plan& plan = binding->plan();
  check(options.phase >= 0 && options.phase <= plan.whole(), "[", plan.label(),
        "] expected a phase below ", plan.phases(), ", got ", options.phase);
  check(static_cast<int64_t>(options.num_scalars) == plan.num_scalars(), "[", plan.label(),
        "] expected ", plan.num_scalars(), " scalars, got ", options.num_scalars);
  check(!options.draws || static_cast<int64_t>(options.draws->size()) >= plan.num_draws(), "[",
        plan.label(), "] expected ", plan.num_draws(), " recorded draw numbers, got ",
        options.draws ? options.draws->size() : 0);
  binding->check_layouts();
  check_feeds(*binding, options.feeds);
  const RngState rng = draws_for(*binding, options);
  auto run = std::make_unique<Run>(binding, options, rng);
  run->held_bytes = held_bytes(*binding, options.phase, options.transient);
  declare(run.get(), *binding, options);
  run->take_stamps();  // after the feeds have been declared: they write what is stamped
  engine().push(std::move(run));
  return rng.next;
}

void push_copy(const Array& source, const Array& target, uint32_t site) {
  engine().push(std::make_unique<CopyTask>(source, target, site));
}

}  // namespace mixflow::plan
