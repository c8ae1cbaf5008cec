// Lanes, priorities, the core budget, inline runs and waits inside lane tasks.
#include <atomic>
#include <set>
#include <thread>
#include <vector>

#include "tests/check.h"

using namespace mixflow;
using namespace mixflow::engine;
using namespace mixflow::testing;

namespace {

// Keeps the one worker of a lane busy until it is opened.
class Gate {
 public:
  Gate(Engine& engine, LaneKind lane) {
    engine.push(make_task(
        "gate", {}, {},
        [this](TaskContext&) {
          closed_ = true;
          while (!open_) std::this_thread::yield();
        },
        lane));
    while (!closed_) std::this_thread::yield();
  }
  void open() { open_ = true; }

 private:
  std::atomic<bool> closed_{false}, open_{false};
};

void test_priorities() {
  auto engine = make_threaded_engine();
  Gate gate(*engine, LaneKind::compute);
  std::vector<int> order;
  for (int priority : {0, 2, -1, 2, 1}) {
    auto task =
        make_task("t", {}, {}, [&order, priority](TaskContext&) { order.push_back(priority); });
    task->priority = priority;
    engine->push(std::move(task));
  }
  gate.open();
  engine->wait_all();
  EXPECT((order == std::vector<int>{2, 2, 1, 0, -1}));
}

void test_lanes_are_independent() {
  auto engine = make_threaded_engine();
  engine->set_core_budget(2);
  Gate gate(*engine, LaneKind::compute);
  std::atomic<int> ran{0};
  const TagRef tag = engine->new_tag();
  for (LaneKind lane :
       {LaneKind::small, LaneKind::copy_in, LaneKind::copy_out, LaneKind::io, LaneKind::python}) {
    engine->push(make_task("t", {}, {tag}, [&](TaskContext&) { ++ran; }, lane));
  }
  auto other = make_task("other device", {}, {tag}, [&](TaskContext&) { ++ran; });
  other->lane.device = 1;
  engine->push(std::move(other));
  engine->wait_for_read(tag);
  EXPECT(ran == 6);
  gate.open();
}

void test_one_python_worker() {
  auto engine = make_threaded_engine();
  std::set<std::thread::id> threads;
  std::atomic<int> inside{0};
  for (int i = 0; i < 50; ++i) {
    auto task = make_task(
        "t", {}, {},
        [&](TaskContext&) {
          EXPECT(++inside == 1);
          threads.insert(std::this_thread::get_id());
          --inside;
        },
        LaneKind::python);
    task->lane.device = i % 2;
    engine->push(std::move(task));
  }
  engine->wait_all();
  EXPECT(threads.size() == 1);
}

// The leases of all running tasks never pass the budget, and a wide task is not starved.
void test_core_budget(long count) {
  auto engine = make_threaded_engine();
  engine->set_core_budget(3);
  EXPECT(engine->core_budget() == 3);
  std::atomic<int> used{0}, most{0}, wide{0};
  for (long i = 0; i < count; ++i) {
    const bool small = i % 3 != 0;
    auto task = make_task(
        "t", {}, {},
        [&](TaskContext& context) {
          const int now = used += context.threads();
          int seen = most;
          while (now > seen && !most.compare_exchange_weak(seen, now)) {
          }
          if (context.threads() == 3) ++wide;
          used -= context.threads();
        },
        small ? LaneKind::small : LaneKind::compute);
    task->threads = small ? 1 : 1 + static_cast<int>(i % 7);
    task->lane.device = static_cast<int>(i % 2);
    engine->push(std::move(task));
  }
  engine->wait_all();
  EXPECT(most <= 3 && most >= 1 && wide > 0);
  EXPECT(used == 0);
}

// Tasks of each kind of lane wait for tasks of the same lane, nested.
void nest(Engine& engine, LaneKind lane, int depth, std::atomic<int>& ran) {
  const TagRef tag = engine.new_tag();
  auto task = make_task(
      "nest", {}, {tag},
      [&engine, lane, depth, &ran](TaskContext&) {
        if (depth > 0) nest(engine, lane, depth - 1, ran);
        ++ran;
      },
      lane);
  task->threads = 2;
  engine.push(std::move(task));
  engine.wait_for_read(tag);
}

void test_nested_waits() {
  for (LaneKind lane :
       {LaneKind::compute, LaneKind::small, LaneKind::copy_in, LaneKind::io, LaneKind::python}) {
    auto engine = make_threaded_engine();
    engine->set_core_budget(2);
    std::atomic<int> ran{0};
    nest(*engine, lane, 20, ran);
    EXPECT(ran == 21);
    std::vector<std::thread> threads;
    for (int t = 0; t < 3; ++t) threads.emplace_back([&] { nest(*engine, lane, 5, ran); });
    for (auto& thread : threads) thread.join();
    EXPECT(ran == 21 + 3 * 6);
  }
}

// A full queue of callbacks that push and wait does not deadlock: lane workers are exempt.
void test_full_queue_with_callbacks() {
  auto engine = make_threaded_engine();
  Limits limits;
  limits.max_tasks = 4;
  engine->set_limits(limits);
  std::atomic<int> ran{0};
  for (int i = 0; i < 200; ++i) {
    auto task = make_task(
        "callback", {}, {},
        [&](TaskContext&) {
          const TagRef tag = engine->new_tag();
          for (int k = 0; k < 10; ++k) {
            engine->push(make_task("inner", {}, {tag}, [&](TaskContext&) { ++ran; }));
          }
          engine->wait_for_read(tag);
        },
        LaneKind::python);
    task->ends_with_children = i % 2 == 0;
    engine->push(std::move(task));
  }
  engine->wait_all();
  EXPECT(ran == 2000);
}

std::unique_ptr<Task> inline_task(Tags reads, Tags writes, FunctionTask::Function function) {
  auto task = make_task("inline", std::move(reads), std::move(writes), std::move(function));
  task->inline_ok = true;
  return task;
}

void test_inline() {
  auto engine = make_threaded_engine();
  const TagRef tag = engine->new_tag();
  const auto self = std::this_thread::get_id();
  std::thread::id ran_on;
  engine->push(inline_task({}, {tag}, [&](TaskContext& context) {
    ran_on = std::this_thread::get_id();
    EXPECT(context.threads() == 1);
  }));
  EXPECT(ran_on == self && engine->idle(tag));
  // Not on the pushing thread while an earlier access is pending: order comes first.
  Gate gate(*engine, LaneKind::compute);
  std::vector<int> order;
  engine->push(make_task("queued", {}, {tag}, [&](TaskContext&) { order.push_back(1); }));
  engine->push(inline_task({tag}, {}, [&](TaskContext&) {
    order.push_back(2);
    ran_on = std::this_thread::get_id();
  }));
  EXPECT(order.empty());
  gate.open();
  engine->wait_all();
  EXPECT((order == std::vector<int>{1, 2}) && ran_on != self);
}

void test_inline_nesting() {
  auto engine = make_threaded_engine();
  std::atomic<int> ran{0};
  // Each pushes the next: deep recursion must not use up the stack.
  std::function<void(int)> push = [&](int left) {
    engine->push(inline_task({}, {}, [&, left](TaskContext&) {
      ++ran;
      if (left > 0) push(left - 1);
    }));
  };
  push(20000);
  while (engine->pending() > 0) engine->wait_all();  // one wait covers what was pushed before it
  EXPECT(ran == 20001);
  // A nested push to a tag that the outer inline task holds runs after it.
  const TagRef tag = engine->new_tag();
  std::vector<int> order;
  engine->push(inline_task({}, {tag}, [&](TaskContext&) {
    engine->push(inline_task({}, {tag}, [&](TaskContext&) { order.push_back(2); }));
    order.push_back(1);
  }));
  engine->wait_all();
  EXPECT((order == std::vector<int>{1, 2}));
}

void test_reads_run_together() {
  auto engine = make_threaded_engine();
  const TagRef tag = engine->new_tag();
  std::atomic<int> inside{0};
  for (LaneKind lane : {LaneKind::io, LaneKind::copy_in, LaneKind::python}) {
    engine->push(make_task(
        "reader", {tag}, {},
        [&](TaskContext&) {
          ++inside;
          while (inside < 3) std::this_thread::yield();  // returns only if all three run together
        },
        lane));
  }
  engine->push(make_task("writer", {}, {tag}, [&](TaskContext&) { EXPECT(inside == 3); }));
  engine->wait_all();
}

}  // namespace

int main(int argc, char** argv) {
  test_priorities();
  test_lanes_are_independent();
  test_one_python_worker();
  test_core_budget(count_argument(argc, argv, 10000));
  test_nested_waits();
  test_full_queue_with_callbacks();
  test_inline();
  test_inline_nesting();
  test_reads_run_together();
  return result("engine_lanes");
}
