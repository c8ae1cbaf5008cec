// Prints what one push costs, inline and queued; checks only that everything ran.
#include <algorithm>
#include <chrono>
#include <vector>

#include "tests/check.h"

using namespace mixflow;
using namespace mixflow::engine;
using namespace mixflow::testing;

namespace {

struct CountTask : Task {
  explicit CountTask(long& counter) : counter(counter) {}
  void run(TaskContext&) override { ++counter; }
  long& counter;
};

double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

// Median over rounds of nanoseconds per push (until the last push returned) and per task (until
// everything ended), of tasks that write one tag and read another.
void measure(const char* name, long count, bool inline_ok, LaneKind lane, bool chain) {
  auto engine = make_threaded_engine();
  const TagRef read = engine->new_tag();
  Tags written;
  for (int i = 0; i < 64; ++i) written.push_back(engine->new_tag());
  std::vector<double> pushed, ended;
  for (int round = 0; round < 5; ++round) {
    std::vector<long> counters(64, 0);
    const auto start = std::chrono::steady_clock::now();
    for (long i = 0; i < count; ++i) {
      const size_t at = chain ? 0 : static_cast<size_t>(i) % 64;
      auto task = std::make_unique<CountTask>(counters[at]);
      task->inline_ok = inline_ok;
      task->lane.kind = lane;
      task->reads = {read};
      task->writes = {written[at]};
      engine->push(std::move(task));
    }
    pushed.push_back(seconds_since(start) * 1e9 / count);
    engine->wait_all();
    ended.push_back(seconds_since(start) * 1e9 / count);
    long sum = 0;
    for (long counter : counters) sum += counter;
    EXPECT(sum == count);
  }
  std::sort(pushed.begin(), pushed.end());
  std::sort(ended.begin(), ended.end());
  std::printf("%-28s push %7.0f ns   push+run %7.0f ns\n", name, pushed[2], ended[2]);
}

}  // namespace

int main(int argc, char** argv) {
  const long count = count_argument(argc, argv, 10000);
  measure("inline", count, true, LaneKind::small, false);
  measure("compute lane, independent", count, false, LaneKind::compute, false);
  measure("compute lane, chain", count, false, LaneKind::compute, true);
  measure("small lane, independent", count, false, LaneKind::small, false);
  return result("engine_speed");
}
