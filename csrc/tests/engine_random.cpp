// Random tasks from eight producers equal a serial replay in push order: values, failures, skips,
// versions. Every trace passes the happens-before oracle. Both engines.
#include <algorithm>
#include <condition_variable>
#include <deque>
#include <map>
#include <mutex>
#include <random>
#include <thread>
#include <vector>

#include "engine/trace.h"
#include "tests/check.h"

using namespace mixflow;
using namespace mixflow::engine;
using namespace mixflow::testing;

namespace {

constexpr int kProducers = 8;
constexpr int kTags = 24;

enum class Kind { plain, fails, releases, releases_error, deferred, deferred_fails };

struct Spec {
  int id = 0;
  std::vector<int> reads, writes;  // without repeats
  Kind kind = Kind::plain;
  bool run_on_error = false;
  bool has(const std::vector<int>& list, int tag) const {
    return std::find(list.begin(), list.end(), tag) != list.end();
  }
};

uint64_t mix(uint64_t a, uint64_t b) {
  a ^= b + 0x9e3779b97f4a7c15ULL + (a << 6) + (a >> 2);
  return a * 0xbf58476d1ce4e5b9ULL;
}

// The work of a task on plain memory: only the engine's order makes it free of races.
void apply(const Spec& spec, std::vector<uint64_t>& values) {
  uint64_t x = mix(7, spec.id);
  for (int tag : spec.reads) x = mix(x, values[tag]);
  for (int tag : spec.writes) {
    values[tag] = spec.has(spec.reads, tag) ? mix(x, values[tag]) : mix(x, tag);
  }
}

Spec make_spec(int id, std::mt19937_64& random) {
  Spec spec;
  spec.id = id;
  const auto pick = [&](std::vector<int>& list, int most) {
    const int size = static_cast<int>(random() % (most + 1));
    for (int i = 0; i < size; ++i) {
      const int tag = static_cast<int>(random() % kTags);
      if (!spec.has(list, tag)) list.push_back(tag);
    }
  };
  pick(spec.reads, random() % 50 == 0 ? 12 : 3);
  pick(spec.writes, random() % 50 == 0 ? 12 : 2);
  const int roll = static_cast<int>(random() % 100);
  spec.kind = roll < 3    ? Kind::fails
              : roll < 15 ? Kind::releases
              : roll < 18 ? Kind::releases_error
              : roll < 24 ? Kind::deferred
              : roll < 26 ? Kind::deferred_fails
                          : Kind::plain;
  spec.run_on_error = random() % 20 == 0;
  return spec;
}

// Completes deferred tasks on a thread of its own.
class Completer {
 public:
  Completer() : thread_([this] { work(); }) {}
  ~Completer() {
    {
      std::lock_guard<std::mutex> lock(mutex_);
      stop_ = true;
    }
    changed_.notify_one();
    thread_.join();
  }
  void add(std::function<void()> job) {
    {
      std::lock_guard<std::mutex> lock(mutex_);
      jobs_.push_back(std::move(job));
    }
    changed_.notify_one();
  }

 private:
  void work() {
    std::unique_lock<std::mutex> lock(mutex_);
    for (;;) {
      changed_.wait(lock, [this] { return stop_ || !jobs_.empty(); });
      if (jobs_.empty()) return;
      auto job = std::move(jobs_.front());
      jobs_.pop_front();
      lock.unlock();
      job();
      lock.lock();
    }
  }
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::function<void()>> jobs_;
  bool stop_ = false;
  std::thread thread_;
};

std::string failure_of(int id) { return "bad " + std::to_string(id); }
std::exception_ptr error_for(int id) { return std::make_exception_ptr(Error(failure_of(id))); }

struct World {
  explicit World(std::unique_ptr<Engine> made) : engine(std::move(made)), values(kTags, 0) {
    for (int i = 0; i < kTags; ++i) tags.push_back(engine->new_tag());
  }
  Tags of(const std::vector<int>& list) const {
    Tags out;
    for (int tag : list) out.push_back(tags[tag]);
    return out;
  }
  std::unique_ptr<Engine> engine;
  Tags tags;
  std::vector<uint64_t> values;
  Completer completer;
};

void run_spec(const Spec& spec, World& world, TaskContext& context) {
  switch (spec.kind) {
    case Kind::fails:
      throw Error(failure_of(spec.id));
    case Kind::plain:
      return apply(spec, world.values);
    case Kind::releases:
    case Kind::releases_error:
      apply(spec, world.values);
      if (!spec.writes.empty()) {
        const bool bad = spec.kind == Kind::releases_error;
        context.release(world.tags[spec.writes[0]], bad ? error_for(spec.id) : nullptr);
      }
      for (int tag : spec.reads) {
        if (!spec.has(spec.writes, tag)) return context.release(world.tags[tag], nullptr);
      }
      return;
    case Kind::deferred:
    case Kind::deferred_fails:
      const auto completion = context.defer();
      world.completer.add([&spec, &world, completion] {
        if (spec.kind == Kind::deferred_fails) return completion->done(error_for(spec.id));
        apply(spec, world.values);
        completion->done();
      });
  }
}

std::unique_ptr<Task> make(const Spec& spec, World& world) {
  auto task = make_task(std::to_string(spec.id), world.of(spec.reads), world.of(spec.writes),
                        [&spec, &world](TaskContext& c) { run_spec(spec, world, c); });
  const LaneKind lanes[] = {LaneKind::compute, LaneKind::small, LaneKind::copy_in, LaneKind::io,
                            LaneKind::python};
  task->lane = {lanes[spec.id % 5], spec.id % 3 == 0 ? 1 : 0};
  task->priority = spec.id % 4;
  task->threads = spec.id % 7 == 0 ? 2 : 1;
  task->inline_ok = spec.id % 2 == 0;
  task->run_on_error = spec.run_on_error;
  return task;
}

// What a serial machine makes of the same tasks.
struct Replay {
  std::vector<uint64_t> values = std::vector<uint64_t>(kTags, 0);
  std::vector<uint64_t> versions = std::vector<uint64_t>(kTags, 0);
  std::vector<std::pair<uint64_t, std::string>> failures{kTags};  // (order, text); "" = none

  // Returns whether the task is skipped.
  bool step(const Spec& spec, uint64_t order) {
    std::pair<uint64_t, std::string> inherited;
    for (int tag : spec.reads) {
      const auto& failure = failures[tag];
      if (spec.run_on_error || failure.second.empty()) continue;
      if (inherited.second.empty() || failure.first < inherited.first) inherited = failure;
    }
    const bool skipped = !inherited.second.empty();
    const bool fails = spec.kind == Kind::fails || spec.kind == Kind::deferred_fails;
    if (!skipped && !fails) apply(spec, values);
    for (size_t i = 0; i < spec.writes.size(); ++i) {
      const bool released_bad = spec.kind == Kind::releases_error && i == 0;
      std::pair<uint64_t, std::string> failure = inherited;
      if (!skipped && (fails || released_bad)) failure = {order, failure_of(spec.id)};
      settle(spec, spec.writes[i], failure);
    }
    return skipped;
  }

  void settle(const Spec& spec, int tag, const std::pair<uint64_t, std::string>& failure) {
    const bool reads = spec.has(spec.reads, tag);
    if (!failure.second.empty()) {
      if (!reads || failures[tag].second.empty()) failures[tag] = failure;
      return;
    }
    if (!reads) failures[tag] = {0, ""};
    ++versions[tag];
  }
};

void push_all(World& world, const std::vector<Spec>& specs) {
  std::vector<std::thread> producers;
  for (int p = 0; p < kProducers; ++p) {
    producers.emplace_back([&, p] {
      for (size_t i = p; i < specs.size(); i += kProducers) {
        world.engine->push(make(specs[i], world));
        if (i % 97 == 0) {
          error_of([&] { world.engine->wait_for_read(world.tags[i % kTags]); });
        }
      }
    });
  }
  for (auto& producer : producers) producer.join();
}

void check_order_of_producers(const std::vector<TraceEvent>& events) {
  std::map<int, int> last;
  for (const TraceEvent& event : events) {
    const int id = std::stoi(event.name);
    EXPECT(last.count(id % kProducers) == 0 || last[id % kProducers] < id);
    last[id % kProducers] = id;
  }
}

void check_round(World& world, const std::vector<Spec>& specs, Replay& replay) {
  std::vector<TraceEvent> events = world.engine->stop_trace();
  EXPECT(events.size() == specs.size());
  EXPECT(check_trace(events) == "");
  std::sort(events.begin(), events.end(),
            [](const TraceEvent& a, const TraceEvent& b) { return a.order < b.order; });
  check_order_of_producers(events);
  for (const TraceEvent& event : events) {
    EXPECT(replay.step(specs[std::stoi(event.name)], event.order) == event.skipped);
  }
  EXPECT(world.values == replay.values);
  for (int tag = 0; tag < kTags; ++tag) {
    const std::string text = error_of([&] { world.engine->wait_for_write(world.tags[tag]); });
    const std::string& wanted = replay.failures[tag].second;
    EXPECT(wanted.empty() ? text.empty() : text.rfind(wanted + "; in ", 0) == 0);
    EXPECT(world.tags[tag]->version() == replay.versions[tag]);
  }
}

void test_engine(std::unique_ptr<Engine> engine, long count, uint64_t seed) {
  World world(std::move(engine));
  world.engine->set_core_budget(3);
  std::mt19937_64 random(seed);
  Replay replay;
  while (count > 0) {
    std::vector<Spec> specs;
    for (long i = 0; i < std::min(count, 20000L); ++i) {
      specs.push_back(make_spec(static_cast<int>(i), random));
    }
    count -= static_cast<long>(specs.size());
    world.engine->start_trace();
    push_all(world, specs);
    while (!error_of([&] { world.engine->wait_all(); }).empty()) {
    }
    check_round(world, specs, replay);
    if (failures) return;
  }
  EXPECT(world.engine->pending() == 0);
}

}  // namespace

int main(int argc, char** argv) {
  const long count = count_argument(argc, argv, 10000);
  test_engine(make_threaded_engine(), count, 1);
  test_engine(make_serial_engine(), std::min(count / 5, 20000L), 2);
  return result("engine_random");
}
