// The pool behind allocate(): blocks are rounded up to size buckets and kept for reuse.
#include <pthread.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <mutex>
#include <unordered_map>
#include <vector>

#include "base/error.h"
#include "base/pages.h"
#include "storage/storage.h"

namespace mixflow::storage {
namespace {

// Before a block this large is asked for, a few small ones kept for reuse go back: what initial
// values and the like have left would add to the peak of the whole run.
constexpr size_t kLarge = size_t{256} << 20;
constexpr size_t kHugeFrom = 2 * kHugePage;  // smaller blocks gain nothing from huge pages
constexpr size_t kFineUpTo = 1024;           // below, buckets are multiples of kAlignment

// Sixteen buckets per power of two: at most 1/16 of a block is lost to rounding.
size_t bucket_of(size_t bytes) {
  if (bytes <= kFineUpTo) {
    return std::max(kAlignment, (bytes + kAlignment - 1) / kAlignment * kAlignment);
  }
  size_t step = kAlignment;
  while (step * 32 < bytes) step *= 2;
  return (bytes + step - 1) / step * step;
}

// A stream over plain pages waits for translations: products of a matrix and a vector read memory a
// quarter faster from huge pages. Only whole ones are asked for, so that no block takes more memory
// than it has bytes.
void* system_allocate(size_t bytes) {
  void* data = nullptr;
  const bool huge = bytes >= kHugeFrom;
  if (posix_memalign(&data, huge ? kHugePage : kAlignment, bytes) != 0) return nullptr;
  if (huge) ask_for_huge_pages(data, bytes / kHugePage * kHugePage);
  return data;
}

size_t quarter_of_memory() {
  const long pages = sysconf(_SC_PHYS_PAGES);
  const long page = sysconf(_SC_PAGE_SIZE);
  if (pages <= 0 || page <= 0) return size_t{1} << 30;
  return static_cast<size_t>(pages) / 4 * static_cast<size_t>(page);
}

class Pool {
 public:
  // Returns memory of bucket_of(bytes); throws Error.
  void* take(size_t bytes) {
    const size_t size = checked_bucket(bytes);
    {
      std::lock_guard<std::mutex> lock(mutex_);
      ++statistics_.allocations;
      check_limit(bytes, size);
      if (void* data = reuse(size)) return data;
      if (size >= kLarge && statistics_.pooled_bytes < size / 4) empty_locked();
      ++statistics_.system_calls;
      add_live(size);  // before the system call, so that racing threads respect the limit
    }
    void* data = system_allocate(size);
    if (!data) data = retry(bytes, size);
    return data;
  }

  void give(void* data, size_t bytes) {
    const size_t size = bucket_of(bytes);
    {
      std::lock_guard<std::mutex> lock(mutex_);
      statistics_.live_bytes -= size;
      if (statistics_.pooled_bytes + size <= most_pooled_) {
        free_[size].push_back(data);
        statistics_.pooled_bytes += size;
        return;
      }
    }
    std::free(data);
  }

  Statistics statistics() {
    std::lock_guard<std::mutex> lock(mutex_);
    return statistics_;
  }
  void reset_peak() {
    std::lock_guard<std::mutex> lock(mutex_);
    statistics_.peak_bytes = statistics_.live_bytes;
  }
  void set_limit(size_t bytes) {
    std::lock_guard<std::mutex> lock(mutex_);
    statistics_.limit_bytes = bytes;
  }
  void empty() {
    std::lock_guard<std::mutex> lock(mutex_);
    empty_locked();
  }
  // Around a fork, so that the child never inherits a mutex that another thread held.
  void lock() { mutex_.lock(); }
  void unlock() { mutex_.unlock(); }

 private:
  size_t checked_bucket(size_t bytes) {
    if (bytes > (size_t{1} << 62)) refuse(bytes, "the system refused");
    return bucket_of(bytes);
  }

  void check_limit(size_t bytes, size_t size) {
    const size_t limit = statistics_.limit_bytes;
    if (limit == 0) return;
    if (statistics_.live_bytes + size > limit) {
      empty_locked();
      refuse(bytes, "the limit would be passed");
    }
    const auto found = free_.find(size);
    const bool pooled = found != free_.end() && !found->second.empty();
    const size_t fresh = pooled ? 0 : size;
    if (statistics_.live_bytes + statistics_.pooled_bytes + fresh > limit) empty_locked();
  }

  void* reuse(size_t size) {
    const auto found = free_.find(size);
    if (found == free_.end() || found->second.empty()) return nullptr;
    void* data = found->second.back();
    found->second.pop_back();
    statistics_.pooled_bytes -= size;
    add_live(size);
    return data;
  }

  void* retry(size_t bytes, size_t size) {
    empty();
    if (void* data = system_allocate(size)) return data;
    std::lock_guard<std::mutex> lock(mutex_);
    statistics_.live_bytes -= size;
    refuse(bytes, "the system refused");
  }

  void add_live(size_t size) {
    statistics_.live_bytes += size;
    statistics_.peak_bytes = std::max(statistics_.peak_bytes, statistics_.live_bytes);
  }

  void empty_locked() {
    for (auto& [size, blocks] : free_) {
      for (void* data : blocks) std::free(data);
    }
    free_.clear();
    statistics_.pooled_bytes = 0;
  }

  [[noreturn]] void refuse(size_t bytes, const char* why) {
    const std::string limit =
        statistics_.limit_bytes ? std::to_string(statistics_.limit_bytes) + " bytes" : "none";
    throw Error(concat("[storage] out of memory: ", why, "; requested ", bytes, " bytes, live ",
                       statistics_.live_bytes, " bytes, limit ", limit,
                       "; hint: a smaller batch, or drop arrays that are no longer needed"));
  }

  std::mutex mutex_;
  // Every list holds blocks of exactly its key's size; their sum is pooled_bytes.
  std::unordered_map<size_t, std::vector<void*>> free_;
  // live_bytes counts rounded sizes of blocks handed out: what the limit bounds.
  Statistics statistics_;
  const size_t most_pooled_ = quarter_of_memory();
};

Pool& pool();
void lock_pool() { pool().lock(); }
void unlock_pool() { pool().unlock(); }

// Never destroyed: blocks may be dropped by other static objects while the process exits.
Pool& pool() {
  static Pool* const instance = [] {
    Pool* made = std::make_unique<Pool>().release();
    pthread_atfork(lock_pool, unlock_pool, unlock_pool);
    return made;
  }();
  return *instance;
}

class PoolBlock : public Block {
 public:
  explicit PoolBlock(size_t bytes) {
    data_ = pool().take(bytes);
    bytes_ = bytes;
  }
  ~PoolBlock() override { pool().give(data_, bytes_); }
};

}  // namespace

BlockRef allocate(size_t bytes) { return std::make_shared<PoolBlock>(bytes); }
Statistics statistics() { return pool().statistics(); }
void reset_peak() { pool().reset_peak(); }
void set_limit(size_t bytes) { pool().set_limit(bytes); }
void empty_pool() { pool().empty(); }

}  // namespace mixflow::storage
