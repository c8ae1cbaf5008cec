// Teams of helpers: every piece once, errors, sizes, sleeping helpers, ends; short tasks that stay
// with the worker which made them ready.
#include <atomic>
#include <chrono>
#include <thread>
#include <vector>

#include "engine/worker_team.h"
#include "tests/check.h"

using namespace mixflow;
using namespace mixflow::engine;
using namespace mixflow::testing;

namespace {

// Plain numbers: a piece that ran twice or beside the owner's next step is a race that the thread
// sanitizer sees.
void test_every_piece_once(long rounds) {
  WorkerTeam team(2);
  EXPECT(team.size() == 3);
  std::vector<int> counts(64);
  for (long round = 0; round < rounds; ++round) {
    const int pieces = static_cast<int>(round % 65);
    team.run(pieces, [&](int piece) { ++counts[static_cast<size_t>(piece)]; });
    bool good = true;
    for (int i = 0; i < 64; ++i) good = good && counts[static_cast<size_t>(i)] == (i < pieces);
    EXPECT(good);
    counts.assign(64, 0);
    if (round % 500 == 0) std::this_thread::sleep_for(std::chrono::milliseconds(1));  // all asleep
    if (round % 7 == 0) team.summon();
  }
}

void test_errors() {
  WorkerTeam team(1);
  std::atomic<int> ran{0};
  const auto fails = [&] {
    team.run(8, [&](int piece) {
      ++ran;
      check(piece != 5, "piece five");
    });
  };
  for (int i = 0; i < 50; ++i) EXPECT(error_of(fails) == "piece five");
  EXPECT(ran == 400);  // the other pieces ran all the same
  EXPECT(contains(error_of([&] { team.run(1 << 16, [](int) {}); }), "[team] expected at most"));
  team.run(4, [&](int) { ++ran; });
  EXPECT(ran == 404);
}

// A helper that holds a piece for long: the owner runs all others and then waits without spinning.
void test_slow_helper() {
  WorkerTeam team(1);
  const auto owner = std::this_thread::get_id();
  std::atomic<int> by_owner{0}, over{0};
  std::atomic<bool> held{false};
  team.run(8, [&](int) {
    if (std::this_thread::get_id() == owner) {
      while (!held) std::this_thread::yield();
      ++by_owner;
    } else if (!held.exchange(true)) {
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
    }
    ++over;
  });
  EXPECT(over == 8);
  EXPECT(by_owner >= 1);
}

// Rounds of a part of the members: every piece once, whoever sleeps.
void test_sizes(long rounds) {
  WorkerTeam team(3);
  std::vector<int> counts(12);
  for (long round = 0; round < rounds; ++round) {
    team.resize(static_cast<int>(round % 4) + 1);
    team.run(12, [&](int piece) { ++counts[static_cast<size_t>(piece)]; });
    bool good = true;
    for (const int count : counts) good = good && count == round + 1;
    EXPECT(good);
    if (round % 400 == 0) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
}

void test_team_of_a_thread() {
  std::thread([] {
    EXPECT(awake_team(2) == nullptr);
    WorkerTeam& team = summon_team(2);
    EXPECT(team.size() == 2);
    EXPECT(&summon_team(2) == &team);
    EXPECT(summon_team(3).size() == 3);
    WorkerTeam& larger = summon_team(3);
    EXPECT(&summon_team(2) == &larger && larger.size() == 2);  // no thread ends and starts anew
    if (WorkerTeam* awake = awake_team(4)) EXPECT(awake == &larger && awake->size() == 3);
    EXPECT(contains(error_of([&] { larger.resize(4); }), "[team] expected 1 to 3 members"));
    std::atomic<int> ran{0};
    run_pieces(&summon_team(1), 3, [&](int) { ++ran; });
    run_pieces(nullptr, 3, [&](int) { ++ran; });
    EXPECT(ran == 6);
  }).join();
}

std::unique_ptr<Task> short_task(const TagRef& tag, FunctionTask::Function function) {
  auto task = make_task("short", {}, {tag}, std::move(function), LaneKind::small);
  task->inline_ok = true;
  task->threads = 1;
  return task;
}

void test_short_task_stays() {
  auto engine = make_threaded_engine();
  engine->set_core_budget(2);
  const TagRef tag = engine->new_tag();
  std::atomic<bool> open{false};
  std::vector<std::thread::id> threads;
  std::vector<int> leases;
  const auto note = [&](TaskContext& context) {
    threads.push_back(std::this_thread::get_id());
    leases.push_back(context.threads());
  };
  auto wide = make_task("wide", {}, {tag}, [&](TaskContext& context) {
    while (!open) std::this_thread::yield();
    note(context);
  });
  wide->threads = 2;
  engine->push(std::move(wide));
  for (int i = 0; i < 3; ++i) engine->push(short_task(tag, note));
  auto last = make_task("wide", {}, {tag}, note);
  last->threads = 2;
  engine->push(std::move(last));
  open = true;
  engine->wait_all();
  EXPECT(threads.size() == 5);
  for (const auto& thread : threads) EXPECT(thread == threads.front());
  EXPECT(threads.front() != std::this_thread::get_id());
  EXPECT((leases == std::vector<int>{2, 2, 2, 2, 2}));
}

// A chain of short tasks, each made ready by the one before, does not keep its worker from a wide
// task that is ready.
void test_chain_gives_way() {
  auto engine = make_threaded_engine();
  engine->set_core_budget(1);
  const TagRef chain = engine->new_tag(), other = engine->new_tag();
  std::atomic<bool> open{false};
  std::atomic<int> links{0}, before{-1};
  auto first = make_task("first", {}, {chain}, [&](TaskContext&) {
    while (!open) std::this_thread::yield();
  });
  first->threads = 2;
  engine->push(std::move(first));
  for (int i = 0; i < 20; ++i) engine->push(short_task(chain, [&](TaskContext&) { ++links; }));
  auto wide = make_task("wide", {}, {other}, [&](TaskContext&) { before = links.load(); });
  wide->threads = 2;
  engine->push(std::move(wide));
  open = true;
  engine->wait_all();
  EXPECT(links == 20);
  EXPECT(before >= 0 && before <= 1);
}

}  // namespace

int main(int argc, char** argv) {
  test_every_piece_once(count_argument(argc, argv, 5000));
  test_sizes(count_argument(argc, argv, 5000));
  test_errors();
  test_slow_helper();
  test_team_of_a_thread();
  test_short_task_stays();
  test_chain_gives_way();
  return result("engine_team");
}
