#include "engine/worker_team.h"

#include <algorithm>
#include <chrono>
#include <system_error>
#include <utility>

#include "base/error.h"

namespace mixflow::engine {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int kMostPieces = 0xffff;
// Longer than what lies between two wide steps of a small net, its update included.
constexpr std::chrono::microseconds kLookOut{100};
constexpr std::chrono::microseconds kWaking{60};  // what a sleeping thread may take to run
// About a piece: an owner that waits longer waits for a helper that has lost its core.
constexpr std::chrono::microseconds kPatience{60};
constexpr int kLooks = 64;  // between two looks at the clock

uint32_t round_of(uint64_t ticket) { return static_cast<uint32_t>(ticket >> 32); }
int end_of(uint64_t ticket) { return static_cast<int>(ticket >> 16 & kMostPieces); }
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

WorkerTeam::WorkerTeam(int helpers)
    : most_(helpers + 1), size_(most_), tickets_(static_cast<size_t>(most_)) {
  for (int i = 0; i < helpers; ++i) helpers_.push_back(std::make_unique<Helper>());
  for (int i = 0; i < helpers; ++i) {
    try {
      helpers_[i]->thread = std::thread([this, i] { work(i + 1); });
    } catch (const std::system_error&) {
      return;  // no more threads now: the others take the pieces
    }
  }
}

WorkerTeam::~WorkerTeam() {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    stop_ = true;
  }
  for (auto& helper : helpers_) {
    helper->called.notify_one();
    if (helper->thread.joinable()) helper->thread.join();
  }
}

void WorkerTeam::resize(int members) {
  check(members >= 1 && members <= most_, "[team] expected 1 to ", most_, " members, got ",
        members);
  size_ = members;
}

bool WorkerTeam::awake() const {
  return std::any_of(helpers_.begin(), helpers_.begin() + (size_ - 1),
                     [](const auto& helper) { return helper->awake(); });
}

// Opens a new round. Sequentially consistent, like sleep(): either the helper sees the round before
// it sleeps, or the owner sees that it sleeps.
void WorkerTeam::publish(int pieces) {
  owner_cpu_.store(current_cpu(), std::memory_order_relaxed);
  for (int member = 0; member < size_; ++member) {
    std::atomic<uint64_t>& ticket = tickets_[member].value;
    const auto first = static_cast<uint64_t>(pieces) * member / size_;
    const auto end = static_cast<uint64_t>(pieces) * (member + 1) / size_;
    const uint64_t round = round_of(ticket.load(std::memory_order_relaxed)) + uint64_t{1};
    ticket.store(round << 32 | end << 16 | first);
  }
  for (int member = 1; member < size_; ++member) {
    call(*helpers_[member - 1]);
  }
}

// Wakes the helper if it sleeps, once per sleep: until it runs, another call could not hasten it.
void WorkerTeam::call(Helper& helper) {
  const uint32_t sleeps = helper.sleeps.load();
  if (sleeps % 2 == 0 || sleeps == helper.called_at) return;
  helper.called_at = sleeps;
  { const std::lock_guard<std::mutex> lock(mutex_); }  // it is not between its look and its sleep
  helper.woken = Clock::now();
  helper.called.notify_one();
}

void WorkerTeam::summon() { publish(0); }

void WorkerTeam::run_pieces(int pieces, const void* object, Call call) {
  check(pieces >= 0 && pieces <= kMostPieces, "[team] expected at most ", kMostPieces,
        " pieces, got ", pieces);
  job_ = {object, call};
  left_.store(pieces, std::memory_order_relaxed);
  publish(pieces);
  for (int piece; (piece = claim_any(0)) >= 0;) {
    perform(piece);
    keep_apart();
  }
  wait_for_last();
}

// A piece of that ticket, or -1.
int WorkerTeam::claim(Ticket& ticket) {
  uint64_t value = ticket.value.load(std::memory_order_acquire);
  while (next_of(value) < end_of(value)) {
    if (ticket.value.compare_exchange_weak(value, value + 1, std::memory_order_acq_rel)) {
      return next_of(value);
    }
  }
  return -1;
}

// The member's own pieces first, then those of the members after it.
int WorkerTeam::claim_any(int member) {
  for (int i = 0; i < most_; ++i) {
    const int piece = claim(tickets_[(member + i) % most_]);
    if (piece >= 0) return piece;
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

// A helper that was woken a while ago and has not run since waits for a core; if that is the
// owner's, it is moved.
void WorkerTeam::keep_apart() {
  for (int member = 1; member < size_; ++member) {
    Helper& helper = *helpers_[member - 1];
    if (helper.awake()) continue;
    const ThreadNumber number = helper.number.load(std::memory_order_relaxed);
    if (number == 0 || Clock::now() - helper.woken < kWaking) continue;
    helper.place.move_away(number, current_cpu());
  }
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

void WorkerTeam::work(int member) {
  Helper& helper = *helpers_[member - 1];
  helper.number.store(this_thread_number());
  helper.sleeps.fetch_add(1);
  uint32_t seen = 0;
  for (;;) {
    const int cpu = current_cpu();
    if (cpu == owner_cpu_.load(std::memory_order_relaxed)) helper.place.move_away(0, cpu);
    for (int piece; (piece = claim_any(member)) >= 0;) perform(piece);
    if (look_out(tickets_[member], &seen)) continue;
    sleep(member, seen);
    const std::lock_guard<std::mutex> lock(mutex_);
    if (stop_) return;
  }
}

// Waits for another round than the last one seen; false when none came for a while.
bool WorkerTeam::look_out(const Ticket& ticket, uint32_t* seen) const {
  const auto fresh = [&] { return round_of(ticket.value.load()) != *seen; };
  if (!spin(kLookOut, fresh)) return false;
  *seen = round_of(ticket.value.load());
  return true;
}

void WorkerTeam::sleep(int member, uint32_t seen) {
  Helper& helper = *helpers_[member - 1];
  std::unique_lock<std::mutex> lock(mutex_);
  helper.sleeps.fetch_add(1);
  helper.called.wait(lock,
                     [&] { return stop_ || round_of(tickets_[member].value.load()) != seen; });
  helper.sleeps.fetch_add(1);
}

namespace {

std::unique_ptr<WorkerTeam>& team_of_thread() {
  thread_local std::unique_ptr<WorkerTeam> team;
  return team;
}

}  // namespace

WorkerTeam& summon_team(int threads) {
  auto& team = team_of_thread();
  if (!team || team->most() < threads) {
    team.reset();
    team = std::make_unique<WorkerTeam>(threads - 1);
  }
  team->resize(threads);
  team->summon();
  return *team;
}

WorkerTeam* awake_team(int threads) {
  WorkerTeam* team = team_of_thread().get();
  if (!team) return nullptr;
  team->resize(std::min(threads, team->most()));
  return team->awake() ? team : nullptr;
}

}  // namespace mixflow::engine
