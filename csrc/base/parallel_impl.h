#pragma once

#include <omp.h>

#include <algorithm>

namespace mixflow {

template <class Body>
void parallel_for(int threads, int64_t count, int64_t grain, const Body& body) {
  if (count <= 0) return;
  const int64_t most = (count + grain - 1) / grain;
  const int parts = static_cast<int>(std::min<int64_t>(threads, most));
  if (parts <= 1) {
    body(int64_t{0}, count);
    return;
  }
  const int64_t step = ((most + parts - 1) / parts) * grain;
#pragma omp parallel num_threads(parts)
  {
    const int64_t begin = omp_get_thread_num() * step;
    const int64_t end = std::min(count, begin + step);
    if (begin < end) body(begin, end);
  }
}

}  // namespace mixflow
