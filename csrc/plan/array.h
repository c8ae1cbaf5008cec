// Chunk: storage with a tag, a version and a layout. Array: a contiguous view of a chunk.
//
// The hazard: several handles, views and pending tasks share one chunk, so everything that must be
// agreed on (order of accesses, layout, version) lives in the chunk and never in a handle.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>

#include "base/desc.h"
#include "engine/engine.h"
#include "storage/storage.h"

namespace mixflow::plan {

// Thread-safe. Memory is taken from the pool at the first use of `data`, so that tasks that wait in
// the queue hold none yet.
class Chunk {
 public:
  Chunk(size_t bytes, Device device) : bytes_(bytes), device_(device) {}
  Chunk(storage::BlockRef block, size_t bytes, Device device);

  // The tag of the current engine (made anew after the engine was replaced).
  const engine::TagRef& tag();
  // Allocates when needed; throws Error when the memory limit is passed.
  void* data();
  storage::BlockRef block();
  bool allocated() const { return pointer_.load(std::memory_order_acquire) != nullptr; }
  size_t bytes() const { return bytes_; }
  Device device() const { return device_; }

  // Grows with every write pushed: the autograd tape compares it.
  uint64_t version() const { return version_.load(std::memory_order_relaxed); }
  // `site`: the line that pushed the write.
  void bump_version(uint32_t site) {
    version_.fetch_add(1, std::memory_order_relaxed);
    write_site_.store(site, std::memory_order_relaxed);
  }
  uint32_t write_site() const { return write_site_.load(std::memory_order_relaxed); }

  // Only a pushed reorder, which writes the tag, may change the layout.
  Layout layout() const { return Layout{layout_.load(std::memory_order_relaxed)}; }
  // Storage with a live view, a DLPack export or foreign memory stays plain for ever.
  void pin_plain();
  bool pinned_plain() const { return pinned_.load(std::memory_order_relaxed); }
  // For an export or foreign memory: pinned, and others may write it without pushing, so that its
  // version says nothing.
  void share_plain();
  bool shared() const { return shared_.load(std::memory_order_relaxed); }

  // Over the same memory as `other`, with a tag of its own: for handles inside a callback whose
  // task already holds the other's tag.
  static std::shared_ptr<Chunk> fresh(const std::shared_ptr<Chunk>& other);

 private:
  std::mutex mutex_;
  engine::TagRef tag_;
  std::atomic<uint64_t> generation_{0};
  std::atomic<void*> pointer_{nullptr};
  storage::BlockRef block_;
  size_t bytes_ = 0;
  Device device_;
  std::atomic<uint64_t> version_{0};
  std::atomic<uint32_t> write_site_{0};
  std::atomic<uint32_t> layout_{0};
  std::atomic<bool> pinned_{false};
  std::atomic<bool> shared_{false};
};
using ChunkRef = std::shared_ptr<Chunk>;

// A handle. A value: copying it shares the chunk. Not thread-safe itself (its chunk is).
struct Array {
  ChunkRef chunk;
  int64_t offset = 0;  // bytes from the start of the chunk
  Desc desc;

  size_t bytes() const { return static_cast<size_t>(desc.bytes()); }
  void* data() const { return static_cast<char*>(chunk->data()) + offset; }
  bool covers_chunk() const { return offset == 0 && bytes() == chunk->bytes(); }
  bool same_memory(const Array& o) const {
    return chunk == o.chunk && offset == o.offset && bytes() == o.bytes();
  }
  bool overlaps(const Array& o) const;
};

Array empty(const Desc& desc);
// A view `offset` elements after the start of `base`; throws Error when it leaves it. Pins plain.
Array view(const Array& base, int64_t offset, const Shape& shape, DType dtype);

}  // namespace mixflow::plan
