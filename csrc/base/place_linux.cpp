#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/place.h"

namespace mixflow {
namespace {

void move(ThreadNumber thread, int cpu) {
  cpu_set_t allowed;
  // Fails on machines with more than 1024 cores, where nobody has to share one.
  if (sched_getaffinity(thread, sizeof allowed, &allowed) != 0) return;
  if (CPU_COUNT(&allowed) < 2 || !CPU_ISSET(cpu, &allowed)) return;
  cpu_set_t others = allowed;
  CPU_CLR(cpu, &others);
  if (sched_setaffinity(thread, sizeof others, &others) != 0) return;
  sched_setaffinity(thread, sizeof allowed, &allowed);
}

}  // namespace

ThreadNumber this_thread_number() { return static_cast<ThreadNumber>(syscall(SYS_gettid)); }

int current_cpu() { return sched_getcpu(); }

void PlaceKeeper::move_away(ThreadNumber thread, int cpu) {
  if (cpu < 0 || busy_.test_and_set(std::memory_order_acquire)) return;
  const auto now = std::chrono::steady_clock::now();
  if (now - last_ >= std::chrono::milliseconds(1)) {
    last_ = now;
    move(thread, cpu);
  }
  busy_.clear(std::memory_order_release);
}

}  // namespace mixflow
