// Makes a Loop from an element function F::run, with one variant per set of scalar operands.
#pragma once

#include "kernels/loops.h"

namespace mixflow::kernels {
namespace {

template <int kBit, int kScalars, class T>
inline T pick(const T* values, T single, int64_t i) {
  if constexpr ((kScalars >> kBit & 1) != 0) return single;
  return values[i];
}

template <class F, class A, class R, int kScalars>
void loop1(const void* pa, const void*, const void*, void* po, int64_t n) {
  if (n <= 0) return;
  const A* a = static_cast<const A*>(pa);
  R* out = static_cast<R*>(po);
  if constexpr (kScalars != 0) {
    const R value = F::run(a[0]);
    for (int64_t i = 0; i < n; ++i) out[i] = value;
  } else {
#pragma GCC ivdep
    for (int64_t i = 0; i < n; ++i) out[i] = F::run(a[i]);
  }
}

template <class F, class T, int kScalars>
void loop2(const void* pa, const void* pb, const void*, void* po, int64_t n) {
  if (n <= 0) return;
  const T* a = static_cast<const T*>(pa);
  const T* b = static_cast<const T*>(pb);
  T* out = static_cast<T*>(po);
  const T a0 = a[0];
  const T b0 = b[0];
#pragma GCC ivdep
  for (int64_t i = 0; i < n; ++i) {
    out[i] = F::run(pick<0, kScalars>(a, a0, i), pick<1, kScalars>(b, b0, i));
  }
}

template <class F, class T, int kScalars>
void loop3(const void* pa, const void* pb, const void* pc, void* po, int64_t n) {
  if (n <= 0) return;
  const T* a = static_cast<const T*>(pa);
  const T* b = static_cast<const T*>(pb);
  const T* c = static_cast<const T*>(pc);
  T* out = static_cast<T*>(po);
  const T a0 = a[0];
  const T b0 = b[0];
  const T c0 = c[0];
#pragma GCC ivdep
  for (int64_t i = 0; i < n; ++i) {
    out[i] = F::run(pick<0, kScalars>(a, a0, i), pick<1, kScalars>(b, b0, i),
                    pick<2, kScalars>(c, c0, i));
  }
}

template <class F, class A, class R>
LoopSet set1() {
  return {{&loop1<F, A, R, 0>, &loop1<F, A, R, 1>}};
}

template <class F, class T>
LoopSet set2() {
  return {{&loop2<F, T, 0>, &loop2<F, T, 1>, &loop2<F, T, 2>, &loop2<F, T, 3>}};
}

template <class F, class T>
LoopSet set3() {
  return {{&loop3<F, T, 0>, &loop3<F, T, 1>, &loop3<F, T, 2>, &loop3<F, T, 3>, &loop3<F, T, 4>,
           &loop3<F, T, 5>, &loop3<F, T, 6>, &loop3<F, T, 7>}};
}

}  // namespace
}  // namespace mixflow::kernels
