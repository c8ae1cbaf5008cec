// What an engine promises, sentence by sentence, for both engines.
#include <atomic>
#include <thread>
#include <vector>

#include "tests/check.h"

using namespace mixflow;
using namespace mixflow::engine;
using namespace mixflow::testing;

namespace {

using Make = std::unique_ptr<Engine> (*)();

void nothing(TaskContext&) {}
FunctionTask::Function failing(const std::string& text) {
  return [text](TaskContext&) { throw Error(text); };
}

void test_versions(Make make) {
  auto engine = make();
  const TagRef tag = engine->new_tag();
  EXPECT(tag->version() == 0 && engine->idle(tag));
  engine->push(make_task("write", {}, {tag}, nothing));
  engine->push(make_task("read", {tag}, {}, nothing));
  engine->push(make_task("both, twice", {tag, tag}, {tag, tag}, nothing));
  engine->wait_for_write(tag);
  EXPECT(tag->version() == 2 && engine->idle(tag));
  EXPECT(tag->number() != engine->new_tag()->number());
}

void test_error_text(Make make) {
  auto engine = make();
  const TagRef tag = engine->new_tag();
  set_site_resolver([](uint32_t site) { return "train.py:" + std::to_string(site); });
  auto task = make_task("dot(2,3)", {}, {tag}, failing("shapes differ"));
  task->site = 12;
  engine->push(std::move(task));
  const std::string wanted = "shapes differ; in dot(2,3), created at train.py:12";
  EXPECT(error_of([&] { engine->wait_for_read(tag); }) == wanted);
  EXPECT(error_of([&] { engine->wait_for_write(tag); }) == wanted);  // each wait raises it
  EXPECT(!engine->idle(tag));
  set_site_resolver(nullptr);
  const TagRef other = engine->new_tag();
  engine->push(make_task("op", {}, {other}, [](TaskContext&) { throw 7; }));
  EXPECT(contains(error_of([&] { engine->wait_for_read(other); }), "unknown type; in op"));
  EXPECT(error_of([&] { engine->wait_all(); }).empty());  // both were raised
}

void test_error_is_inherited_and_replaced(Make make) {
  auto engine = make();
  const TagRef a = engine->new_tag(), b = engine->new_tag(), c = engine->new_tag();
  bool ran = false, handler_ran = false;
  engine->push(make_task("first", {}, {a}, failing("bad")));
  engine->push(make_task("skipped", {a}, {b}, [&](TaskContext&) { ran = true; }));
  engine->push(make_task("skipped too", {b}, {b, c}, [&](TaskContext&) { ran = true; }));
  auto handler = make_task("handler", {b}, {}, [&](TaskContext&) { handler_ran = true; });
  handler->run_on_error = true;
  engine->push(std::move(handler));
  EXPECT(error_of([&] { engine->wait_for_write(b); }) == "bad; in first");
  EXPECT(error_of([&] { engine->wait_for_read(c); }) == "bad; in first");
  EXPECT(!ran && handler_ran);
  auto keeps = make_task("reads it", {b}, {b}, nothing);  // a write that reads keeps the error
  keeps->run_on_error = true;
  engine->push(std::move(keeps));
  EXPECT(error_of([&] { engine->wait_for_read(b); }) == "bad; in first");
  engine->push(make_task("replaces", {}, {b}, nothing));
  engine->wait_for_read(b);
  EXPECT(error_of([&] { engine->wait_for_read(a); }) == "bad; in first");
  EXPECT(engine->idle(b) && !engine->idle(c));
}

void test_wait_all_raises_oldest(Make make) {
  auto engine = make();
  Tags tags;
  for (int i = 0; i < 3; ++i) {
    tags.push_back(engine->new_tag());
    engine->push(make_task("t" + std::to_string(i), {}, {tags[i]}, failing("bad")));
  }
  engine->push(make_task("no tags", {}, {}, failing("lost")));
  EXPECT(error_of([&] { engine->wait_for_read(tags[1]); }) == "bad; in t1");
  EXPECT(error_of([&] { engine->wait_all(); }) == "bad; in t0");
  EXPECT(error_of([&] { engine->wait_all(); }) == "bad; in t2");
  EXPECT(error_of([&] { engine->wait_all(); }) == "lost; in no tags");
  engine->wait_all();
}

void test_early_release(Make make) {
  auto engine = make();
  const TagRef a = engine->new_tag(), b = engine->new_tag(), c = engine->new_tag();
  std::string twice, foreign;
  engine->push(make_task("early", {}, {a, b, c}, [&](TaskContext& context) {
    context.release(a);
    context.release(b, std::make_exception_ptr(Error("partial")));
    twice = error_of([&] { context.release(a); });
    foreign = error_of([&] { context.release(engine->new_tag()); });
    throw Error("late");
  }));
  engine->wait_for_write(a);
  EXPECT(error_of([&] { engine->wait_for_write(b); }) == "partial; in early");
  EXPECT(error_of([&] { engine->wait_for_write(c); }) == "late; in early");
  EXPECT(contains(twice, "released before") && contains(foreign, "declared"));
  EXPECT(a->version() == 1 && b->version() == 0 && c->version() == 0);
}

void test_early_release_starts_dependants(Make make) {
  auto engine = make();
  const TagRef a = engine->new_tag(), b = engine->new_tag();
  std::shared_ptr<Completion> completion;
  std::atomic<bool> read{false};
  engine->push(make_task("early", {}, {a, b}, [&](TaskContext& context) {
    completion = context.defer();
    context.release(a);
  }));
  engine->push(make_task("reader", {a}, {}, [&](TaskContext&) { read = true; }));
  engine->wait_for_write(a);  // while the first task has not ended
  EXPECT(read && !engine->idle(b));
  EXPECT(!engine->wait_for_read(b, 1));
  completion->done();
  engine->wait_for_read(b);
}

void test_deferred(Make make) {
  auto engine = make();
  const TagRef tag = engine->new_tag();
  std::shared_ptr<Completion> completion;
  std::string second_defer;
  std::atomic<bool> ran{false}, after{false};
  engine->push(make_task("deferred", {}, {tag}, [&](TaskContext& context) {
    completion = context.defer();
    second_defer = error_of([&] { context.defer(); });
    ran = true;
  }));
  engine->push(make_task("after", {tag}, {}, [&](TaskContext&) { after = true; }));
  while (!ran) std::this_thread::yield();
  EXPECT(!engine->wait_all(5) && !after && engine->pending() == 2);
  std::thread([&] { completion->done(); }).join();
  engine->wait_all();
  EXPECT(after);
  EXPECT(contains(error_of([&] { completion->done(); }), "second"));
  EXPECT(contains(second_defer, "second"));
}

void test_deferred_failures(Make make) {
  auto engine = make();
  const TagRef a = engine->new_tag(), b = engine->new_tag(), c = engine->new_tag();
  engine->push(make_task("lost", {}, {a}, [](TaskContext& context) { context.defer(); }));
  EXPECT(error_of([&] { engine->wait_for_read(a); }) == "the task was abandoned; in lost");
  engine->push(make_task("told", {}, {b}, [](TaskContext& context) {
    context.defer()->done(std::make_exception_ptr(Error("network")));
  }));
  EXPECT(error_of([&] { engine->wait_for_read(b); }) == "network; in told");
  engine->push(make_task("throws", {}, {c}, [](TaskContext& context) {
    const auto completion = context.defer();
    completion->done();
    throw Error("after all");
  }));
  EXPECT(error_of([&] { engine->wait_for_read(c); }) == "after all; in throws");
}

void test_nested_push_and_waits(Make make) {
  auto engine = make();
  const TagRef outer = engine->new_tag(), inner = engine->new_tag();
  std::vector<int> order;
  std::string own_wait;
  engine->push(make_task("outer", {}, {outer}, [&](TaskContext&) {
    // On the same tag: it may run only after the outer task.
    engine->push(make_task("behind", {}, {outer}, [&](TaskContext&) { order.push_back(3); }));
    engine->push(make_task("inner", {}, {inner}, [&](TaskContext&) { order.push_back(1); }));
    engine->wait_for_read(inner);
    engine->wait_for_read(outer);  // it holds the tag: nothing to wait for
    order.push_back(2);
  }));
  engine->wait_for_read(outer);  // covers the outer task, which pushed another one to its tag:
  engine->wait_for_read(outer);
  EXPECT((order == std::vector<int>{1, 2, 3}));
  engine->push(make_task("reader", {outer}, {}, [&](TaskContext&) {
    own_wait = error_of([&] { engine->wait_for_write(outer); });
  }));
  engine->wait_all();
  EXPECT(contains(own_wait, "it reads; in reader"));
}

void test_wait_all_inside_a_task(Make make) {
  auto engine = make();
  const TagRef outer = engine->new_tag(), inner = engine->new_tag();
  std::atomic<int> ran{0};
  std::string error;
  engine->push(make_task("outer", {}, {outer}, [&](TaskContext&) {
    engine->wait_all();  // no children yet
    for (int i = 0; i < 3; ++i) {
      engine->push(make_task("inner", {}, {inner}, [&](TaskContext&) { ++ran; }));
    }
    engine->wait_all();
    EXPECT(ran == 3);
    engine->push(make_task("inner", {}, {inner}, failing("bad")));
    error = error_of([&] { engine->wait_all(); });
  }));
  engine->push(make_task("depends on outer", {outer}, {}, nothing));
  engine->wait_all();
  EXPECT(error == "bad; in inner");
}

void test_ends_with_children(Make make) {
  auto engine = make();
  const TagRef outer = engine->new_tag(), inner = engine->new_tag(), deep = engine->new_tag();
  std::shared_ptr<Completion> completion;
  std::atomic<bool> deferred{false};
  auto task = make_task("outer", {}, {outer}, [&](TaskContext&) {
    engine->push(make_task("inner", {}, {inner}, [&](TaskContext&) {
      engine->push(make_task("deep", {}, {deep}, [&](TaskContext& context) {
        completion = context.defer();
        deferred = true;
      }));
    }));
  });
  task->ends_with_children = true;
  engine->push(std::move(task));
  while (!deferred) std::this_thread::yield();
  engine->wait_for_read(inner);
  EXPECT(!engine->wait_for_read(outer, 5));
  completion->done(std::make_exception_ptr(Error("deep error")));
  EXPECT(error_of([&] { engine->wait_for_read(outer); }) == "deep error; in deep");
  engine->wait_all();  // one failure, raised once
}

void test_foreign_tags_and_close(Make make) {
  auto engine = make();
  const TagRef foreign = make()->new_tag(), own = engine->new_tag();
  EXPECT(contains(error_of([&] { engine->wait_for_read(foreign); }), "of another"));
  EXPECT(error_of([&] { engine->push(make_task("t", {foreign}, {}, nothing)); }) != "");
  EXPECT(error_of([&] { engine->push(make_task("t", {nullptr}, {}, nothing)); }) != "");
  std::string inside;
  std::atomic<bool> nested{false};
  engine->push(make_task("t", {}, {own}, [&](TaskContext&) {
    inside = error_of([&] { engine->close(); });
    engine->push(make_task("nested", {}, {own}, [&](TaskContext&) { nested = true; }));
  }));
  engine->close();
  engine->close();
  EXPECT(contains(inside, "inside a task") && nested);
  EXPECT(contains(error_of([&] { engine->push(make_task("t", {}, {own}, nothing)); }), "closed"));
  engine->wait_for_read(own);
  engine->wait_all();
}

// A timed wait that is polled with one WaitPoint ends although writes never stop coming.
void test_wait_point(Make make) {
  auto engine = make();
  const TagRef tag = engine->new_tag();
  std::atomic<bool> stop{false};
  Limits limits;
  limits.max_tasks = 64;
  engine->set_limits(limits);
  std::thread producer([&] {
    while (!stop) engine->push(make_task("write", {}, {tag}, nothing));
  });
  WaitPoint point;
  while (!engine->wait_for_write(tag, 1, &point)) {
  }
  WaitPoint all;
  while (!engine->wait_all(1, &all)) {
  }
  stop = true;
  producer.join();
  engine->wait_all();
  EXPECT(engine->wait_all(INT64_MAX));
}

void test_inline_errors_stay_inside(Make make) {
  auto engine = make();
  const TagRef tag = engine->new_tag();
  auto task = make_task("inline", {}, {tag}, failing("bad"));
  task->inline_ok = true;
  engine->push(std::move(task));
  EXPECT(error_of([&] { engine->wait_for_read(tag); }) == "bad; in inline");
}

void test_all(Make make) {
  test_versions(make);
  test_error_text(make);
  test_error_is_inherited_and_replaced(make);
  test_wait_all_raises_oldest(make);
  test_early_release(make);
  test_early_release_starts_dependants(make);
  test_deferred(make);
  test_deferred_failures(make);
  test_nested_push_and_waits(make);
  test_wait_all_inside_a_task(make);
  test_ends_with_children(make);
  test_foreign_tags_and_close(make);
  test_wait_point(make);
  test_inline_errors_stay_inside(make);
}

}  // namespace

int main() {
  test_all(make_threaded_engine);
  test_all(make_serial_engine);
  return result("engine_behaviour");
}
