#include "kernels/isa.h"

#include <atomic>

namespace mixflow::kernels {
namespace {

Isa find_isa() {
#if defined(__x86_64__)
  const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
  const bool avx512 = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                      __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
  if (avx2 && avx512) return Isa::avx512;
  if (avx2) return Isa::avx2;
#endif
  return Isa::baseline;
}

std::atomic<Isa>& in_use() {
  static std::atomic<Isa> isa{find_isa()};
  return isa;
}

}  // namespace

Isa best_isa() { return in_use().load(std::memory_order_relaxed); }

Isa limit_isa(Isa most) {
  const Isa found = find_isa();
  const Isa isa = most < found ? most : found;
  in_use().store(isa);
  return isa;
}

}  // namespace mixflow::kernels
