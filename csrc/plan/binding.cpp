// Binding, Arena and Scope: what a run needs besides its plan.
#include <algorithm>

#include "plan/runner.h"
#include "plan/runtime.h"

namespace mixflow::plan {
namespace {

thread_local ScopeRef tls_scope;

}  // namespace

void Arena::reserve(size_t bytes) {
  size_t seen = bytes_.load();
  while (seen < bytes && !bytes_.compare_exchange_weak(seen, bytes)) {
  }
}

const storage::BlockRef& Arena::memory(size_t bytes, bool keep) {
  std::lock_guard<std::mutex> lock(mutex_);
  if (!block_ || block_->bytes() < bytes) {
    check(!keep, "[plan] expected an arena that phase 0 has filled, got an empty one; run forward");
    block_.reset();  // first give back, so that the old and the new need not both fit
    block_ = storage::allocate(std::max(bytes, bytes_.load()));
  }
  return block_;
}

void Arena::begin(const void* user, const std::string& label, RngState draws) {
  std::lock_guard<std::mutex> lock(mutex_);
  user_ = user;
  label_ = label;
  draws_ = draws;
}

RngState Arena::resume(const void* user, const std::string& label) {
  std::lock_guard<std::mutex> lock(mutex_);
  check(user_ == user, "[executor] expected the arena to hold the forward pass of ", label,
        ", got ", user_ ? "that of " + label_ : std::string("an empty one"),
        "; run forward again first");
  return draws_;
}

std::string Arena::owner() {
  std::lock_guard<std::mutex> lock(mutex_);
  return label_;
}

Scope::~Scope() {
  if (!on_end_) return;
  try {
    on_end_(error_);
  } catch (...) {  // a destructor has nobody to tell; the completion reports itself as abandoned
  }
}

void Scope::fail(std::exception_ptr error, const std::string& where) {
  if (!error) return;
  if (!where.empty()) {
    try {
      std::rethrow_exception(error);
    } catch (const std::exception& e) {
      error = std::make_exception_ptr(Error(concat(e.what(), "; in ", where)));
    }
  }
  std::lock_guard<std::mutex> lock(mutex_);
  if (!error_) error_ = std::move(error);
}

ScopeRef current_scope() { return tls_scope; }

void with_scope(const ScopeRef& scope, const std::function<void()>& body) {
  struct Restore {
    ScopeRef old;
    ~Restore() { tls_scope = std::move(old); }
  } restore{tls_scope};
  tls_scope = scope;
  body();
}

void declare_write(engine::Task* task, const Array& array) {
  const engine::TagRef& tag = array.chunk->tag();
  task->writes.push_back(tag);
  // A partial write leaves the rest as it was, so it must not clear an error of the storage.
  if (!array.covers_chunk()) task->reads.push_back(tag);
  array.chunk->bump_version(task->site);
}

Binding::Binding(PlanRef plan, std::vector<Array> args, ArenaRef arena, bool checked)
    : plan_(std::move(plan)), args_(std::move(args)), arena_(std::move(arena)) {
  check(args_.size() == plan_->arg_descs().size(), "[", plan_->label(), "] expected ",
        plan_->arg_descs().size(), " arguments, got ", args_.size());
  check(arena_ || plan_->phases() == 1, "[", plan_->label(),
        "] expected an arena for a plan of several phases, got none");
  if (checked) {
    for (size_t i = 0; i < args_.size(); ++i) check_argument(i);
  }
  if (arena_) arena_->reserve(plan_->arena_bytes());
  claims_.reserve(plan_->whole() + 1);
  for (int phase = 0; phase <= plan_->whole(); ++phase) claims_.push_back(make_claims(phase));
}

void Binding::check_argument(size_t index) const {
  const Desc& want = plan_->arg_descs()[index];
  const Desc& got = args_[index].desc;
  check(want.dtype == got.dtype && want.shape == got.shape, "[", plan_->label(), "] expected ",
        want.str(), " for argument ", index, ", got ", got.str());
  check(want.device == got.device, "[", plan_->label(), "] expected device (",
        static_cast<int>(want.device.type), ", ", want.device.id, ") for argument ", index,
        ", got (", static_cast<int>(got.device.type), ", ", got.device.id, "); copy it first");
}

void Binding::check_layouts() const {
  const auto& descs = plan_->arg_descs();
  for (size_t i = 0; i < args_.size(); ++i) {
    const Layout got = args_[i].chunk->layout();
    check(got == descs[i].layout, "[", plan_->label(), "] expected layout ", descs[i].layout.id,
          " for argument ", i, " ", descs[i].str(), ", got ", got.id, "; bind again");
  }
}

Stamps Binding::stamps() const {
  Stamps stamps;
  stamps.reserve(plan_->kept_args().size());
  for (const int32_t arg : plan_->kept_args()) stamps.push_back(stamp_of(*args_[arg].chunk));
  return stamps;
}

std::vector<Binding::Claim> Binding::make_claims(int phase) const {
  const auto& uses = plan_->uses(phase);
  std::vector<Claim> claims;
  claims.reserve(args_.size());
  for (size_t i = 0; i < args_.size(); ++i) {
    const ArgUse& use = uses[i];
    if (!use.touched) continue;
    Claim claim{static_cast<int32_t>(i), use.reads || (use.writes && !args_[i].covers_chunk()),
                use.writes, use.last_step};
    claims.push_back(claim);
  }
  if (claims.size() < 2) return claims;
  auto chunk_of = [&](const Claim& claim) { return args_[claim.arg].chunk.get(); };
  std::sort(claims.begin(), claims.end(), [&](const Claim& a, const Claim& b) {
    return std::make_pair(chunk_of(a), a.arg) < std::make_pair(chunk_of(b), b.arg);
  });
  size_t kept = 0;  // merge neighbours of one chunk
  for (size_t i = 1; i < claims.size(); ++i) {
    if (chunk_of(claims[i]) != chunk_of(claims[kept])) {
      claims[++kept] = claims[i];
      continue;
    }
    Claim& into = claims[kept];
    into.reads |= claims[i].reads;
    into.writes |= claims[i].writes;
    into.last_step = std::max(into.last_step, claims[i].last_step);
  }
  claims.resize(kept + 1);
  std::sort(claims.begin(), claims.end(), [](const Claim& a, const Claim& b) {
    return std::make_pair(a.last_step, a.arg) < std::make_pair(b.last_step, b.arg);
  });
  return claims;
}

}  // namespace mixflow::plan
