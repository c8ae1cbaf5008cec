// Files under simd/ are compiled once per instruction set, in namespaces isa_baseline, isa_avx2 and
// isa_avx512; the fastest that this processor runs is picked at run time.
#pragma once

namespace mixflow::kernels {

enum class Isa { baseline, avx2, avx512 };

// The best set that the processor (and its operating system) supports, within the limit.
Isa best_isa();
// For tests: no better set than this from now on; kernels that are prepared already may keep theirs.
// Returns the set in use.
Isa limit_isa(Isa most);

}  // namespace mixflow::kernels

// MIXFLOW_PICK(name): the `name` of the best namespace. The one place that knows which namespaces
// are built; use it with names declared in all three.
#if defined(__x86_64__)
#define MIXFLOW_PICK(name)                                                              \
  (::mixflow::kernels::best_isa() == ::mixflow::kernels::Isa::avx512 ? isa_avx512::name \
   : ::mixflow::kernels::best_isa() == ::mixflow::kernels::Isa::avx2 ? isa_avx2::name   \
                                                                     : isa_baseline::name)
#else
#define MIXFLOW_PICK(name) isa_baseline::name
#endif
