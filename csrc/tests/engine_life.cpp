// The queue bound, flat memory, close and fork with work pending.
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <thread>
#include <vector>

#include "storage/storage.h"
#include "tests/check.h"

using namespace mixflow;
using namespace mixflow::engine;
using namespace mixflow::testing;

namespace {

using Make = std::unique_ptr<Engine> (*)();

// A loop that never synchronises: every task holds 1 MiB that is made when it is pushed.
void test_flat_memory(long count) {
  auto engine = make_threaded_engine();
  Limits limits;
  limits.max_bytes = size_t{16} << 20;
  engine->set_limits(limits);
  storage::reset_peak();
  const size_t before = storage::statistics().live_bytes;
  const TagRef tag = engine->new_tag();
  std::atomic<long> ran{0};
  for (long i = 0; i < count; ++i) {
    const auto block = storage::allocate(size_t{1} << 20);
    auto task = make_task("update", {}, {tag}, [block, &ran](TaskContext&) { ++ran; });
    task->held_bytes = block->bytes();
    engine->push(std::move(task));
  }
  engine->wait_all();
  EXPECT(ran == count);
  // The bound, one block that waits in push, and one that was just made.
  EXPECT(storage::statistics().peak_bytes - before <= size_t{18} << 20);
  EXPECT(storage::statistics().live_bytes == before);  // a wait finds the memory free
}

void test_bound_in_tasks() {
  auto engine = make_threaded_engine();
  Limits limits;
  limits.max_tasks = 8;
  engine->set_limits(limits);
  std::atomic<bool> open{false};
  std::atomic<int> pushed{0};
  const TagRef tag = engine->new_tag();
  std::thread producer([&] {
    for (int i = 0; i < 40; ++i) {
      engine->push(make_task("t", {}, {tag}, [&](TaskContext&) {
        while (!open) std::this_thread::yield();
      }));
      ++pushed;
    }
  });
  while (pushed < 8) std::this_thread::yield();
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  EXPECT(pushed == 8 && engine->pending() == 8);
  open = true;
  producer.join();
  engine->wait_all();
}

// A hook that throws ends a push that waits for room; nothing was pushed, and the rest goes on.
void test_wait_hook_ends_a_push() {
  auto engine = make_threaded_engine();
  Limits limits;
  limits.max_tasks = 1;
  engine->set_limits(limits);
  const TagRef tag = engine->new_tag();
  std::atomic<bool> open{false};
  std::atomic<int> ran{0};
  std::atomic<int> calls{0};
  set_wait_hook([&] {
    if (++calls == 2) throw Error("interrupted");
  });
  engine->push(make_task("first", {}, {tag}, [&](TaskContext&) {
    while (!open) std::this_thread::yield();
    ++ran;
  }));
  const auto push_one = [&] {
    engine->push(make_task("t", {}, {tag}, [&](TaskContext&) { ++ran; }));
  };
  EXPECT(contains(error_of(push_one), "interrupted"));
  EXPECT(engine->pending() == 1);
  open = true;
  push_one();
  engine->wait_all();
  EXPECT(ran == 2 && engine->pending() == 0);
  set_wait_hook([] {});
}

// One task that is larger than the bound is admitted, alone.
void test_larger_task_alone() {
  auto engine = make_threaded_engine();
  Limits limits;
  limits.max_bytes = 100;
  engine->set_limits(limits);
  const TagRef tag = engine->new_tag();
  for (int i = 0; i < 50; ++i) {
    auto task = make_task("t", {}, {tag}, [&](TaskContext&) {});
    task->held_bytes = i % 3 == 0 ? 1000 : 40;
    engine->push(std::move(task));
    if (i % 3 == 0) EXPECT(engine->pending() <= 1);
  }
  engine->wait_all();
}

void test_close_refuses_blocked_producers() {
  auto engine = make_threaded_engine();
  Limits limits;
  limits.max_tasks = 1;
  engine->set_limits(limits);
  std::shared_ptr<Completion> completion;
  std::atomic<bool> deferred{false}, pushing{false};
  engine->push(make_task("t", {}, {}, [&](TaskContext& context) {
    completion = context.defer();
    deferred = true;
  }));
  while (!deferred) std::this_thread::yield();
  const auto late_push = [&] { engine->push(make_task("late", {}, {}, [](TaskContext&) {})); };
  std::string error;
  std::thread producer([&] {
    pushing = true;
    error = error_of(late_push);
  });
  while (!pushing) std::this_thread::yield();
  std::this_thread::sleep_for(std::chrono::milliseconds(10));
  std::thread closer([&] { engine->close(); });
  // Returns once the engine is closed: until done() there is no room for this task either.
  EXPECT(contains(error_of(late_push), "closed"));
  completion->done();
  closer.join();
  producer.join();
  EXPECT(contains(error, "closed"));
}

void push_some(Engine& engine, const Tags& tags, std::atomic<long>& ran, int count) {
  for (int i = 0; i < count; ++i) {
    const LaneKind lanes[] = {LaneKind::compute, LaneKind::small, LaneKind::io, LaneKind::python};
    auto task =
        make_task("t", {tags[i % 3]}, {tags[i % 5]}, [&](TaskContext&) { ++ran; }, lanes[i % 4]);
    task->threads = 1 + i % 2;
    engine.push(std::move(task));
  }
}

void test_close_with_work_pending(Make make, long rounds) {
  for (long round = 0; round < rounds; ++round) {
    std::atomic<long> ran{0};
    auto engine = make();
    Tags tags;
    for (int i = 0; i < 5; ++i) tags.push_back(engine->new_tag());
    push_some(*engine, tags, ran, static_cast<int>(round % 50));
    if (round % 2) engine->close();
    engine.reset();
    EXPECT(ran == round % 50);
  }
}

int exit_code_of_child(pid_t child) {
  int status = 1;
  waitpid(child, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : 100;
}

// Parent and child go on with the same engine, with other threads pushing and polling all along.
void test_fork(Make make, long rounds) {
  auto engine = make();
  Tags tags;
  for (int i = 0; i < 5; ++i) tags.push_back(engine->new_tag());
  std::atomic<bool> stop{false};
  std::atomic<long> noise{0}, ran{0};
  std::thread pusher([&] {
    while (!stop) push_some(*engine, tags, noise, 3);
  });
  std::thread poller([&] {
    while (!stop) engine->wait_for_write(tags[0], 1);
  });
  for (long round = 0; round < rounds; ++round) {
    push_some(*engine, tags, ran, 20);
    engine->before_fork();
    const pid_t child = fork();
    engine->after_fork();
    if (child == 0) {
      const long before = ran;
      push_some(*engine, tags, ran, 20);
      engine->wait_all();
      const bool good = before == 20 * (round + 1) && ran == before + 20;
      if (round % 2) engine->close();
      _exit(good ? 0 : 1);
    }
    EXPECT(exit_code_of_child(child) == 0);
  }
  stop = true;
  pusher.join();
  poller.join();
  engine->wait_all();
  EXPECT(ran == 20 * rounds);
}

void test_fork_after_close(Make make) {
  auto engine = make();
  engine->close();
  engine->before_fork();
  engine->after_fork();
  engine->after_fork();
  EXPECT(contains(error_of([&] { engine->push(make_task("t", {}, {}, [](TaskContext&) {})); }),
                  "closed"));
}

}  // namespace

// MIXFLOW_TEST_NO_FORK: the thread sanitizer does not support threads in a forked child.
int main(int argc, char** argv) {
  const long count = count_argument(argc, argv, 10000);
  test_flat_memory(count);
  test_bound_in_tasks();
  test_wait_hook_ends_a_push();
  test_larger_task_alone();
  test_close_refuses_blocked_producers();
  for (Make make : {make_threaded_engine, make_serial_engine}) {
    test_close_with_work_pending(make, std::min(count / 50, 2000L));
    if (!std::getenv("MIXFLOW_TEST_NO_FORK")) test_fork(make, std::min(count / 500, 500L));
    test_fork_after_close(make);
  }
  return result("engine_life");
}
