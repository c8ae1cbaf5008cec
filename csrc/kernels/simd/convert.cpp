// Loads, stores and casts, and the table that collects all loops of this instruction set.
#include "kernels/simd/loop.h"
#include "kernels/simd/parts.h"

namespace mixflow::kernels {
namespace {

struct LoadElement {
  template <class T>
  static auto run(T x) {
    return compute(x);
  }
};

template <class T>
struct StoreElement {
  template <class C>
  static T run(C x) {
    return kernels::store<T>(x);
  }
};

template <class T>
struct RoundElement {
  template <class C>
  static auto run(C x) {
    return compute(kernels::store<T>(x));
  }
};

template <class R>
struct NonzeroElement {
  template <class C>
  static R run(C x) {
    return x != 0 ? R(1) : R(0);
  }
};

}  // namespace

namespace MIXFLOW_ISA {

LoopSet load(DType from) {
  return with_dtype(from, [](auto tag) {
    using T = typename decltype(tag)::type;
    return set1<LoadElement, T, Computed<T>>();
  });
}

LoopSet store(Domain from, DType to) {
  return with_domain(from, [to](auto source) {
    using C = typename decltype(source)::type;
    return with_dtype(to, [](auto tag) {
      using T = typename decltype(tag)::type;
      return set1<StoreElement<T>, C, T>();
    });
  });
}

LoopSet cast(Domain from, DType to) {
  return with_domain(from, [to](auto source) {
    using C = typename decltype(source)::type;
    return with_dtype(to, [](auto tag) {
      using T = typename decltype(tag)::type;
      return set1<RoundElement<T>, C, Computed<T>>();
    });
  });
}

LoopSet nonzero(Domain from, Domain to) {
  return with_domain(from, [to](auto source) {
    using C = typename decltype(source)::type;
    return with_domain(to, [](auto tag) {
      using R = typename decltype(tag)::type;
      return set1<NonzeroElement<R>, C, R>();
    });
  });
}

extern const LoopTable loop_table;
const LoopTable loop_table = {unary, binary, select, load, store, cast, nonzero};

}  // namespace MIXFLOW_ISA
}  // namespace mixflow::kernels
