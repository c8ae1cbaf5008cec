// What this processor can do at most: the limits that profiles compare with.
#pragma once

namespace mixflow::kernels {

// Per second, all threads together. `flops`: float32 multiplications and additions in registers.
// `bytes`: read and written by a = b + s * c on arrays far larger than the caches; lines that are
// fetched only to be overwritten do not count.
struct Peak {
  double flops = 0;
  double bytes = 0;
};

// Blocks for about half a second. Runs on threads of its own, so that no team stays with a caller
// that may fork; the best of several rounds counts.
Peak measure_peak(int threads);

}  // namespace mixflow::kernels
