// Memory for arrays and arenas: an aligned pool with statistics and a limit, shared mappings, and
// memory that somebody else owns. Thread-safe, all of it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

namespace mixflow::storage {

constexpr size_t kAlignment = 64;

// A run of bytes with one owner. Freed (or handed back) when the last holder drops it, on whatever
// thread that happens.
class Block {
 public:
  virtual ~Block() = default;
  void* data() const { return data_; }
  size_t bytes() const { return bytes_; }

 protected:
  void* data_ = nullptr;
  size_t bytes_ = 0;
};
using BlockRef = std::shared_ptr<Block>;

struct Statistics {
  size_t live_bytes = 0;    // handed out now
  size_t peak_bytes = 0;    // largest live_bytes since the last reset
  size_t pooled_bytes = 0;  // kept for reuse
  size_t allocations = 0;   // calls of allocate
  size_t system_calls = 0;  // of these, those that the pool could not serve
  size_t limit_bytes = 0;   // 0 = none
};

// Aligned to kAlignment; never null, also for 0 bytes. Contents are undefined. Throws Error that
// states the request, the live bytes and the limit when the limit would be passed (after the pool
// was emptied) or the system refuses.
BlockRef allocate(size_t bytes);

// A named shared mapping (POSIX shm). create: made with this size, removed when the creator drops
// it; otherwise opened, and `bytes` must not pass its size.
BlockRef shared_mapping(const std::string& name, size_t bytes, bool create);

// Memory of somebody else; `release` is called when the last holder drops the block.
BlockRef external(void* data, size_t bytes, std::function<void()> release);

Statistics statistics();
void reset_peak();
void set_limit(size_t bytes);
void empty_pool();

}  // namespace mixflow::storage
