#include "kernels/peak.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <ctime>
#include <functional>
#include <numeric>
#include <thread>
#include <vector>

#include "kernels/peak_loops.h"

namespace mixflow::kernels {
namespace {

constexpr int kRounds = 8;
constexpr int64_t kMultiplyAdds = 4'000'000;      // rounds of a thread: about 10 ms
constexpr int64_t kElements = int64_t{24} << 20;  // of each of the three arrays together
constexpr int kMaxThreads = 256;

// Seconds that `body(thread)` takes on all threads at once: they wait for each other, then run.
double seconds_together(int threads, const std::function<void(int)>& body) {
  using Clock = std::chrono::steady_clock;
  std::atomic<int> waiting{threads};
  std::vector<Clock::time_point> begins(threads), ends(threads);
  std::vector<std::thread> team;
  for (int t = 0; t < threads; ++t) {
    team.emplace_back([&, t] {
      --waiting;
      while (waiting.load() > 0) std::this_thread::yield();
      begins[t] = Clock::now();
      body(t);
      ends[t] = Clock::now();
    });
  }
  for (auto& thread : team) thread.join();
  const auto begin = *std::min_element(begins.begin(), begins.end());
  const auto end = *std::max_element(ends.begin(), ends.end());
  return std::chrono::duration<double>(end - begin).count();
}

// Seconds that this thread has run: what others take from it does not count.
double thread_seconds() {
  timespec now{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

double flops_per_second(int threads) {
  std::vector<float> results(threads);  // kept, so that no loop is left out
  const auto run = MIXFLOW_PICK(multiply_adds);
  const double work = static_cast<double>(kMultiplyAdds) * MIXFLOW_PICK(flops_of_round)();
  double best = 0;
  for (int round = 0; round < kRounds; ++round) {
    std::vector<double> rates(threads);
    seconds_together(threads, [&](int t) {
      const double begin = thread_seconds();
      results[t] = run(kMultiplyAdds, 0.999f, 1e-3f);
      rates[t] = work / (thread_seconds() - begin);
    });
    best = std::max(best, std::accumulate(rates.begin(), rates.end(), 0.0));
  }
  return best;
}

double bytes_per_second(int threads) {
  struct Arrays {
    std::vector<float> a, b, c;
  };
  std::vector<Arrays> arrays(threads);
  const int64_t count = kElements / threads;
  const auto run = MIXFLOW_PICK(triad);
  seconds_together(threads, [&](int t) {  // first touched where they are used
    arrays[t] = {std::vector<float>(count, 0.0f), std::vector<float>(count, 1.0f),
                 std::vector<float>(count, 2.0f)};
  });
  const double work = 3.0 * sizeof(float) * static_cast<double>(count) * threads;
  double best = 0;
  for (int round = 0; round < kRounds; ++round) {
    const double seconds = seconds_together(threads, [&](int t) {
      run(arrays[t].a.data(), arrays[t].b.data(), arrays[t].c.data(), 0.5f, count);
    });
    best = std::max(best, work / seconds);
  }
  return best;
}

}  // namespace

Peak measure_peak(int threads) {
  threads = std::clamp(threads, 1, kMaxThreads);
  return {flops_per_second(threads), bytes_per_second(threads)};
}

}  // namespace mixflow::kernels
