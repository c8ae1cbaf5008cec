// How index tensors are read and brought into range.
#pragma once

#include "kernels/dispatch.h"
#include "kernels/integers.h"

namespace mixflow::kernels {

enum class IndexMode { clip, wrap, raise };

inline IndexMode index_mode(const Request& r) {
  if (!r.attrs.has("mode")) return IndexMode::clip;
  const std::string& name = r.attrs.text("mode");
  if (name == "clip") return IndexMode::clip;
  if (name == "wrap") return IndexMode::wrap;
  check(name == "raise", "[", r.primitive, "] expected mode clip, wrap or raise, got ", name);
  return IndexMode::raise;
}

// Indices into an axis of `size` elements. Mode raise is checked by validate(), on the calling
// thread before anything is written, because an exception must not leave a parallel region.
struct IndexRule {
  IndexMode mode = IndexMode::clip;
  int64_t size = 1;
  DType dtype = DType::int64;
  std::string primitive;

  int64_t fix(int64_t i) const {
    if (mode == IndexMode::clip) return i < 0 ? 0 : i >= size ? size - 1 : i;
    if (mode == IndexMode::raise) return i < 0 ? i + size : i;
    const int64_t rest = i % size;
    return rest < 0 ? rest + size : rest;
  }

  // out[k] = index begin + k, in range; n <= kIndexBlock.
  void read(const void* data, int64_t begin, int64_t n, int64_t* out) const {
    read_integers(dtype, data, begin, n, out);
    for (int64_t k = 0; k < n; ++k) out[k] = fix(out[k]);
  }

  void validate(const void* data, int64_t begin, int64_t count) const {
    if (mode != IndexMode::raise) return;
    int64_t block[kIndexBlock];
    for (int64_t i = 0; i < count; i += kIndexBlock) {
      const int64_t n = std::min(kIndexBlock, count - i);
      read_integers(dtype, data, begin + i, n, block);
      for (int64_t k = 0; k < n; ++k) {
        check(block[k] >= -size && block[k] < size, "[", primitive, "] expected indices in [",
              -size, ", ", size, "), got ", block[k]);
      }
    }
  }
};

inline IndexRule index_rule(const Request& r, int64_t size, const Desc& indices, IndexMode mode) {
  check(size > 0 || indices.shape.size() == 0, "[", r.primitive,
        "] expected a non-empty axis to index, got length 0");
  return IndexRule{mode, size, indices.dtype, r.primitive};
}

// target[i] += source[i], computed as the dtype is and rounded on store.
template <class T, class A>
void add_line(const T* source, A* target, int64_t n) {
  for (int64_t i = 0; i < n; ++i) target[i] = store<A>(compute(target[i]) + compute(source[i]));
}

}  // namespace mixflow::kernels
