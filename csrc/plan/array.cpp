#include "plan/array.h"

#include "plan/runtime.h"

namespace mixflow::plan {

Chunk::Chunk(storage::BlockRef block, size_t bytes, Device device)
    : pointer_(block->data()), block_(std::move(block)), bytes_(bytes), device_(device) {}

const engine::TagRef& Chunk::tag() {
  if (generation_.load(std::memory_order_acquire) != engine_generation()) {
    std::lock_guard<std::mutex> lock(mutex_);
    const uint64_t now = engine_generation();
    if (generation_.load(std::memory_order_relaxed) != now) {
      tag_ = engine().new_tag();
      generation_.store(now, std::memory_order_release);
    }
  }
  return tag_;
}

void* Chunk::data() {
  void* pointer = pointer_.load(std::memory_order_acquire);
  if (pointer) return pointer;
  std::lock_guard<std::mutex> lock(mutex_);
  if (!block_) {
    block_ = storage::allocate(bytes_);
    pointer_.store(block_->data(), std::memory_order_release);
  }
  return block_->data();
}

storage::BlockRef Chunk::block() {
  data();
  std::lock_guard<std::mutex> lock(mutex_);
  return block_;
}

void Chunk::pin_plain() {
  check(layout().plain(), "[array] expected plain storage for a view or an export, got layout ",
        layout().id, "; reorder it first");
  pinned_.store(true, std::memory_order_relaxed);
}

void Chunk::share_plain() {
  pin_plain();
  shared_.store(true, std::memory_order_relaxed);
}

ChunkRef Chunk::fresh(const ChunkRef& other) {
  auto made = std::make_shared<Chunk>(other->block(), other->bytes(), other->device());
  made->layout_.store(other->layout().id, std::memory_order_relaxed);
  made->pinned_.store(other->pinned_plain(), std::memory_order_relaxed);
  made->shared_.store(other->shared(), std::memory_order_relaxed);
  made->version_.store(other->version(), std::memory_order_relaxed);
  return made;
}

bool Array::overlaps(const Array& o) const {
  if (chunk != o.chunk) return false;
  const auto end = offset + static_cast<int64_t>(bytes());
  const auto other_end = o.offset + static_cast<int64_t>(o.bytes());
  return offset < other_end && o.offset < end;
}

Array empty(const Desc& desc) {
  for (int64_t dim : desc.shape) {
    check(dim >= 0, "[empty] expected dimensions of at least 0, got ", desc.shape.str());
  }
  check(size_of(desc.dtype) != 0, "[empty] expected a known type code, got ",
        static_cast<int>(desc.dtype));
  Array made;
  made.chunk = std::make_shared<Chunk>(static_cast<size_t>(desc.bytes()), desc.device);
  made.desc = desc;
  return made;
}

Array view(const Array& base, int64_t offset, const Shape& shape, DType dtype) {
  Array made = base;
  made.desc.shape = shape;
  made.desc.dtype = dtype;
  const int64_t begin = offset * static_cast<int64_t>(size_of(base.desc.dtype));
  check(size_of(dtype) != 0 && offset >= 0 && begin + made.desc.bytes() <= base.desc.bytes(),
        "[view] expected a range inside ", base.desc.str(), ", got offset ", offset, " and shape ",
        shape.str());
  made.offset = base.offset + begin;
  if (!made.chunk->pinned_plain()) made.chunk->pin_plain();
  return made;
}

}  // namespace mixflow::plan
