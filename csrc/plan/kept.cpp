#include "plan/kept.h"

#include <algorithm>

namespace mixflow::plan {
namespace {

constexpr uint64_t kUnknown = UINT64_MAX;

}  // namespace

uint64_t stamp_of(const Chunk& chunk) { return chunk.shared() ? kUnknown : chunk.version(); }

char* Kept::memory(size_t bytes) {
  if (!block_) block_ = storage::allocate(bytes);
  return static_cast<char*>(block_->data());
}

bool Kept::holds(const Stamps& stamps) {
  const bool known = std::find(stamps.begin(), stamps.end(), kUnknown) == stamps.end();
  if (known && !stamps.empty() && stamps == stamps_) return true;
  stamps_.clear();
  return false;
}

}  // namespace mixflow::plan
