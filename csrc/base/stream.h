// Copies that go past the caches. A plain store first reads the line that it overwrites, and drives
// out what others will read again: for arrays too large to stay there that is a third of the
// traffic of a copy.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

namespace mixflow {

// From here on an array is not in the caches any more when it is read again.
constexpr size_t kStreamBytes = 16 << 20;
constexpr size_t kStreamLine = 64;
// Where streamed lines may begin.
constexpr size_t kStreamAlign = 16;

inline bool can_stream(const void* to) {
  return reinterpret_cast<uintptr_t>(to) % kStreamAlign == 0;
}

// Stores kStreamLine bytes; `stream_end` must follow before another thread may be told.
inline void stream_line(void* to, const void* from) {
#if defined(__SSE2__)
  auto* target = static_cast<__m128i*>(to);
  const auto* source = static_cast<const __m128i*>(from);
  const __m128i line[4] = {_mm_loadu_si128(source), _mm_loadu_si128(source + 1),
                           _mm_loadu_si128(source + 2), _mm_loadu_si128(source + 3)};
  for (int i = 0; i < 4; ++i) _mm_stream_si128(target + i, line[i]);
#else
  std::memcpy(to, from, kStreamLine);
#endif
}

// Streamed stores come before all later ones.
inline void stream_end() {
#if defined(__SSE2__)
  _mm_sfence();
#endif
}

// memcpy past the caches.
void stream_copy(void* to, const void* from, size_t bytes);

// memcpy of bytes that belong to an array of `whole` bytes.
inline void copy_bytes(void* to, const void* from, size_t bytes, size_t whole) {
  if (whole >= kStreamBytes) {
    stream_copy(to, from, bytes);
  } else {
    std::memcpy(to, from, bytes);
  }
}

inline void copy_bytes(void* to, const void* from, size_t bytes) {
  copy_bytes(to, from, bytes, bytes);
}

}  // namespace mixflow
