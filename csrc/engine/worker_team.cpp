#include "engine/worker_team.h"

#include <chrono>
#include <system_error>
#include <utility>

#include "base/error.h"

namespace mixflow::engine {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int kMostPieces = 0xffff;
// Longer than the steps between two wide ones, shorter than what a sleeping thread costs to wake.
constexpr std::chrono::microseconds kLookOut{40};
// About a piece: an owner that waits longer waits for a helper that has lost its core.
constexpr std::chrono::microseconds kPatience{60};
constexpr int kLooks = 64;  // between two looks at the clock

uint32_t round_of(uint64_t ticket) { return static_cast<uint32_t>(ticket >> 32); }
int count_of(uint64_t ticket) { return static_cast<int>(ticket >> 16 & kMostPieces); }
int next_of(uint64_t ticket) { return static_cast<int>(ticket & kMostPieces); }

// Until found() or for some time; lets other threads run. True when found.
template <class Found>
bool spin(std::chrono::microseconds most, const Found& found) {
  const auto end = Clock::now() + most;
  do {
    for (int i = 0; i < kLooks; ++i) {
      if (found()) return true;
    }
    std::this_thread::yield();
  } while (Clock::now() < end);
  return found();
}

}  // namespace

WorkerTeam::WorkerTeam(int helpers) : size_(helpers) {
  for (int i = 0; i < helpers; ++i) {
    helpers_.push_back(std::make_unique<Helper>());
    Helper& helper = *helpers_.back();
    try {
      helper.thread = std::thread([this, &helper] { work(helper); });
    } catch (const std::system_error&) {  // no more threads now: the team is smaller
      helpers_.pop_back();
      return;
    }
  }
}

WorkerTeam::~WorkerTeam() {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    stop_ = true;
    publish(0);
  }
  work_.notify_all();
  for (auto& helper : helpers_) helper->thread.join();
}

uint32_t WorkerTeam::round() const { return round_of(ticket_.load()); }

// Opens a new round. Sequentially consistent, like sleep(): either the helper sees the round before
// it sleeps, or the owner sees that it sleeps.
void WorkerTeam::publish(uint32_t pieces) {
  const uint64_t next = uint64_t{round_of(ticket_.load(std::memory_order_relaxed)) + 1};
  ticket_.store(next << 32 | uint64_t{pieces} << 16);
}

void WorkerTeam::summon() {
  owner_cpu_.store(current_cpu(), std::memory_order_relaxed);
  publish(0);
  if (sleeping_.load() == 0) return;
  { const std::lock_guard<std::mutex> lock(mutex_); }  // nobody is between his look and his sleep
  work_.notify_all();
}

void WorkerTeam::run_pieces(int pieces, const void* object, Call call) {
  check(pieces >= 0 && pieces <= kMostPieces, "[team] expected at most ", kMostPieces,
        " pieces, got ", pieces);
  job_ = {object, call};
  left_.store(pieces, std::memory_order_relaxed);
  owner_cpu_.store(current_cpu(), std::memory_order_relaxed);
  publish(static_cast<uint32_t>(pieces));
  if (sleeping_.load() > 0) {
    { const std::lock_guard<std::mutex> lock(mutex_); }
    work_.notify_all();
  }
  int piece = claim();
  if (piece >= 0) {
    perform(piece);
    for (auto& helper : helpers_) keep_apart(*helper);
    while ((piece = claim()) >= 0) perform(piece);
  }
  wait_for_last();
}

// A piece of the present round, or -1.
int WorkerTeam::claim() {
  uint64_t ticket = ticket_.load(std::memory_order_acquire);
  while (next_of(ticket) < count_of(ticket)) {
    if (ticket_.compare_exchange_weak(ticket, ticket + 1, std::memory_order_acq_rel)) {
      return next_of(ticket);
    }
  }
  return -1;
}

void WorkerTeam::perform(int piece) {
  try {
    job_.call(job_.object, piece);
  } catch (...) {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (!error_) error_ = std::current_exception();
  }
  // Sequentially consistent with wait_for_last(): one of the two sees the other.
  if (left_.fetch_sub(1) == 1 && owner_sleeps_.load()) {
    const std::lock_guard<std::mutex> lock(mutex_);
    over_.notify_one();
  }
}

// A helper that was woken and has not run for as long as a piece takes waits for a core; if it
// waits for the owner's, it is moved.
void WorkerTeam::keep_apart(Helper& helper) {
  if (helper.awake.load(std::memory_order_relaxed)) return;
  const ThreadNumber number = helper.number.load(std::memory_order_relaxed);
  if (number != 0) places_.move_away(number, current_cpu());
}

void WorkerTeam::wait_for_last() {
  const auto over = [this] { return left_.load() == 0; };
  if (!spin(kPatience, over)) {
    std::unique_lock<std::mutex> lock(mutex_);
    owner_sleeps_.store(true);
    over_.wait(lock, over);
    owner_sleeps_.store(false);
  }
  if (!error_) return;
  std::rethrow_exception(std::exchange(error_, nullptr));
}

void WorkerTeam::work(Helper& helper) {
  PlaceKeeper place;
  helper.number.store(this_thread_number());
  helper.awake.store(true);
  uint32_t seen = 0;
  for (;;) {
    const int cpu = current_cpu();
    if (cpu == owner_cpu_.load(std::memory_order_relaxed)) place.move_away(0, cpu);
    int piece;
    while ((piece = claim()) >= 0) perform(piece);
    if (look_out(&seen)) continue;
    sleep(helper, seen);
    const std::lock_guard<std::mutex> lock(mutex_);
    if (stop_) return;
  }
}

// Waits for another round than the last one seen; false when none came for a while.
bool WorkerTeam::look_out(uint32_t* seen) {
  if (!spin(kLookOut, [&] { return round() != *seen; })) return false;
  *seen = round();
  return true;
}

void WorkerTeam::sleep(Helper& helper, uint32_t seen) {
  std::unique_lock<std::mutex> lock(mutex_);
  helper.awake.store(false, std::memory_order_relaxed);
  sleeping_.fetch_add(1);
  work_.wait(lock, [&] { return stop_ || round() != seen; });
  sleeping_.fetch_sub(1);
  helper.awake.store(true, std::memory_order_relaxed);
}

WorkerTeam& summon_team(int threads) {
  thread_local std::unique_ptr<WorkerTeam> team;
  if (!team || team->size() != threads - 1) {
    team.reset();
    team = std::make_unique<WorkerTeam>(threads - 1);
  }
  team->summon();
  return *team;
}

}  // namespace mixflow::engine
