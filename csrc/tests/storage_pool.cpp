// The pool: alignment, reuse, statistics, limit; shared mappings; external memory.
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>
#include <thread>
#include <vector>

#include "storage/storage.h"
#include "tests/check.h"

using namespace mixflow;
using namespace mixflow::testing;

namespace {

bool aligned(const storage::BlockRef& block) {
  return block->data() && reinterpret_cast<uintptr_t>(block->data()) % storage::kAlignment == 0;
}

void test_sizes() {
  for (size_t bytes : {size_t{0}, size_t{1}, size_t{63}, size_t{64}, size_t{65}, size_t{1025},
                       size_t{4097}, size_t{1} << 20, (size_t{9} << 20) + 3}) {
    const auto block = storage::allocate(bytes);
    EXPECT(aligned(block));
    EXPECT(block->bytes() == bytes);
    std::memset(block->data(), 0xab, bytes);
  }
}

void test_reuse_and_statistics() {
  storage::empty_pool();
  const auto before = storage::statistics();
  const void* first = nullptr;
  {
    const auto block = storage::allocate(100000);
    first = block->data();
    EXPECT(storage::statistics().live_bytes >= before.live_bytes + 100000);
    EXPECT(storage::statistics().live_bytes <= before.live_bytes + 100000 * 17 / 16);
  }
  EXPECT(storage::statistics().live_bytes == before.live_bytes);
  EXPECT(storage::statistics().pooled_bytes >= 100000);
  const auto again = storage::allocate(99999);
  EXPECT(again->data() == first);
  const auto after = storage::statistics();
  EXPECT(after.allocations == before.allocations + 2);
  EXPECT(after.system_calls == before.system_calls + 1);
  EXPECT(after.peak_bytes >= after.live_bytes);
  storage::reset_peak();
  EXPECT(storage::statistics().peak_bytes == storage::statistics().live_bytes);
}

void test_limit() {
  const auto held = storage::allocate(1 << 20);
  {
    const auto pooled = storage::allocate(1 << 20);
  }  // fills the pool
  const size_t live = storage::statistics().live_bytes;
  storage::set_limit(live + (size_t{3} << 20));
  {
    const auto fits = storage::allocate((5 << 20) / 2);
  }  // only once the pool was emptied
  EXPECT(storage::statistics().limit_bytes == live + (size_t{3} << 20));
  const std::string text = error_of([] { storage::allocate(4 << 20); });
  EXPECT(contains(text, "requested " + std::to_string(4 << 20)));
  EXPECT(contains(text, "live " + std::to_string(live)));
  EXPECT(contains(text, "limit " + std::to_string(live + (size_t{3} << 20))));
  EXPECT(storage::statistics().live_bytes == live);
  storage::set_limit(0);
  EXPECT(contains(error_of([] { storage::allocate(size_t{1} << 60); }), "the system refused"));
  EXPECT(contains(error_of([] { storage::allocate(SIZE_MAX); }), "the system refused"));
  EXPECT(storage::statistics().live_bytes == live);
}

void test_threads(long count) {
  const size_t live = storage::statistics().live_bytes;
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([t, count] {
      std::vector<storage::BlockRef> held(8);
      for (long i = 0; i < count / 4; ++i) {
        auto& block = held[i % 8];
        block = storage::allocate(1 + (i * 7919 + t) % 20000);
        static_cast<char*>(block->data())[0] = 1;
      }
    });
  }
  for (auto& thread : threads) thread.join();
  EXPECT(storage::statistics().live_bytes == live);
}

void test_shared_mapping() {
  const std::string name = "mixflow-test-" + std::to_string(getpid());
  {
    const auto block = storage::shared_mapping(name, 4096, true);
    const auto same = storage::shared_mapping("/" + name, 100, false);
    static_cast<char*>(block->data())[7] = 42;
    EXPECT(static_cast<char*>(same->data())[7] == 42);
    EXPECT(contains(error_of([&] { storage::shared_mapping(name, 64, true); }), "create"));
    EXPECT(contains(error_of([&] { storage::shared_mapping(name, 4097, false); }), "4096"));
    // A child that drops its copy does not remove the name.
    const pid_t child = fork();
    if (child == 0) {
      const bool seen = static_cast<char*>(block->data())[7] == 42;
      const_cast<storage::BlockRef&>(block).reset();
      _exit(seen ? 0 : 1);
    }
    int status = 1;
    waitpid(child, &status, 0);
    EXPECT(status == 0);
    EXPECT(storage::shared_mapping(name, 1, false)->bytes() == 1);
  }
  EXPECT(contains(error_of([&] { storage::shared_mapping(name, 1, false); }), "open"));
  EXPECT(contains(error_of([] { storage::shared_mapping("a/b", 1, true); }), "without '/'"));
  EXPECT(error_of([] { storage::shared_mapping("", 1, true); }) != "");
}

void test_external() {
  int released = 0;
  char bytes[16];
  {
    const auto block = storage::external(bytes, 16, [&] { ++released; });
    EXPECT(block->data() == bytes && block->bytes() == 16);
    const auto second = block;
  }
  EXPECT(released == 1);
  storage::external(bytes, 16, nullptr);
}

}  // namespace

int main(int argc, char** argv) {
  test_sizes();
  test_reuse_and_statistics();
  test_limit();
  test_threads(count_argument(argc, argv, 10000));
  test_shared_mapping();
  test_external();
  return result("storage_pool");
}
