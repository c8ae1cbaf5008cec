#include "kernels/integers.h"

#include "kernels/element.h"

namespace mixflow::kernels {

void read_integers(DType dtype, const void* data, int64_t begin, int64_t n, int64_t* out) {
  with_dtype(dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    const T* from = static_cast<const T*>(data) + begin;
    for (int64_t i = 0; i < n; ++i) out[i] = static_cast<int64_t>(compute(from[i]));
  });
}

void write_integers(DType dtype, const int64_t* values, int64_t n, void* data, int64_t begin) {
  with_dtype(dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    T* to = static_cast<T*>(data) + begin;
    for (int64_t i = 0; i < n; ++i) to[i] = store<T>(values[i]);
  });
}

}  // namespace mixflow::kernels
