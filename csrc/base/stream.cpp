#include "base/stream.h"

#include <algorithm>

namespace mixflow {

void stream_copy(void* to, const void* from, size_t bytes) {
  auto* target = static_cast<char*>(to);
  const auto* source = static_cast<const char*>(from);
  const size_t past = reinterpret_cast<uintptr_t>(to) % kStreamLine;
  const size_t head = std::min(bytes, past == 0 ? 0 : kStreamLine - past);
  std::memcpy(target, source, head);
  size_t at = head;
  for (; at + kStreamLine <= bytes; at += kStreamLine) stream_line(target + at, source + at);
  std::memcpy(target + at, source + at, bytes - at);
  stream_end();
}

}  // namespace mixflow
