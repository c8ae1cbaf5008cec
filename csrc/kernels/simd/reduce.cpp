// Row and column reductions.
#include <type_traits>

#include "kernels/reduce_loops.h"

namespace mixflow::kernels {
namespace {

template <class C>
constexpr bool kIsInteger = C(0.5) == C(0);
template <class C>
using Acc = std::conditional_t<kIsInteger<C>, int64_t, double>;

struct Sum {
  // The type that lanes add in.
  template <class C>
  using Lane = C;
  template <class P>
  static P first() {
    return P(0);
  }
  template <class P>
  static P combine(P a, P b) {
    return a + b;
  }
  static int64_t combine(int64_t a, int64_t b) {
    return static_cast<int64_t>(static_cast<uint64_t>(a) + static_cast<uint64_t>(b));
  }
};
struct Prod {
  template <class C>
  using Lane = Acc<C>;
  template <class P>
  static P first() {
    return P(1);
  }
  template <class P>
  static P combine(P a, P b) {
    return a * b;
  }
  static int64_t combine(int64_t a, int64_t b) {
    return static_cast<int64_t>(static_cast<uint64_t>(a) * static_cast<uint64_t>(b));
  }
};

template <class P>
constexpr P lowest() {
  if constexpr (kIsInteger<P>) return INT64_MIN;
  return -static_cast<P>(__builtin_inf());
}
template <class P>
constexpr P highest() {
  if constexpr (kIsInteger<P>) return INT64_MAX;
  return static_cast<P>(__builtin_inf());
}

// A NaN from either side stays.
struct Max {
  template <class C>
  using Lane = C;
  template <class P>
  static P first() {
    return lowest<P>();
  }
  template <class P>
  static P combine(P a, P b) {
    return (a > b || a != a) ? a : b;
  }
};
struct Min {
  template <class C>
  using Lane = C;
  template <class P>
  static P first() {
    return highest<P>();
  }
  template <class P>
  static P combine(P a, P b) {
    return (a < b || a != a) ? a : b;
  }
};

constexpr int kLanes = 64;
constexpr int64_t kSegment = 512;

// Independent lanes, so that the additions vectorise and do not wait for each other.
template <class R, class T>
auto reduce_segment(const T* x, int64_t n) {
  using P = typename R::template Lane<Computed<T>>;
  P lanes[kLanes];
  for (int l = 0; l < kLanes; ++l) lanes[l] = R::template first<P>();
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    for (int l = 0; l < kLanes; ++l) {
      lanes[l] = R::combine(lanes[l], static_cast<P>(compute(x[i + l])));
    }
  }
  for (int l = 0; i < n; ++i, ++l) {
    lanes[l] = R::combine(lanes[l], static_cast<P>(compute(x[i])));
  }
  for (int width = kLanes / 2; width > 0; width /= 2) {
    for (int l = 0; l < width; ++l) lanes[l] = R::combine(lanes[l], lanes[l + width]);
  }
  return lanes[0];
}

template <class R, class T>
void reduce_row(const void* data, int64_t n, void* acc) {
  using A = Acc<Computed<T>>;
  const T* x = static_cast<const T*>(data);
  A total = *static_cast<A*>(acc);
  if (n < kLanes) {
    for (int64_t i = 0; i < n; ++i) total = R::combine(total, static_cast<A>(compute(x[i])));
  } else {
    for (int64_t i = 0; i < n; i += kSegment) {
      const int64_t part = n - i < kSegment ? n - i : kSegment;
      total = R::combine(total, static_cast<A>(reduce_segment<R>(x + i, part)));
    }
  }
  *static_cast<A*>(acc) = total;
}

// Four rows at a time into one line of partial results.
template <class R, class T, class P>
void add_rows(const T* x, int64_t rows, int64_t stride, int64_t n, P* partial) {
  int64_t r = 0;
  for (; r + 4 <= rows; r += 4, x += 4 * stride) {
    const T* x1 = x + stride;
    const T* x2 = x1 + stride;
    const T* x3 = x2 + stride;
#pragma GCC ivdep
    for (int64_t j = 0; j < n; ++j) {
      const P low = R::combine(static_cast<P>(compute(x[j])), static_cast<P>(compute(x1[j])));
      const P high = R::combine(static_cast<P>(compute(x2[j])), static_cast<P>(compute(x3[j])));
      partial[j] = R::combine(partial[j], R::combine(low, high));
    }
  }
  for (; r < rows; ++r, x += stride) {
#pragma GCC ivdep
    for (int64_t j = 0; j < n; ++j) {
      partial[j] = R::combine(partial[j], static_cast<P>(compute(x[j])));
    }
  }
}

template <class R, class T>
void reduce_columns(const void* data, int64_t rows, int64_t stride, int64_t n, void* acc) {
  using A = Acc<Computed<T>>;
  using P = typename R::template Lane<Computed<T>>;
  constexpr int64_t kRows = 64;
  const T* x = static_cast<const T*>(data);
  A* total = static_cast<A*>(acc);
  P partial[kReduceColumns];
  for (int64_t r = 0; r < rows; r += kRows) {
    for (int64_t j = 0; j < n; ++j) partial[j] = R::template first<P>();
    add_rows<R>(x + r * stride, rows - r < kRows ? rows - r : kRows, stride, n, partial);
    for (int64_t j = 0; j < n; ++j) total[j] = R::combine(total[j], static_cast<A>(partial[j]));
  }
}

template <class R>
ReduceRow row_of(DType dtype) {
  return with_dtype(dtype, [](auto tag) -> ReduceRow {
    return &reduce_row<R, typename decltype(tag)::type>;
  });
}
template <class R>
ReduceColumns columns_of(DType dtype) {
  return with_dtype(dtype, [](auto tag) -> ReduceColumns {
    return &reduce_columns<R, typename decltype(tag)::type>;
  });
}

}  // namespace

namespace MIXFLOW_ISA {

ReduceRow row(ReduceOp op, DType dtype) {
  if (op == ReduceOp::prod) return row_of<Prod>(dtype);
  if (op == ReduceOp::max) return row_of<Max>(dtype);
  if (op == ReduceOp::min) return row_of<Min>(dtype);
  return row_of<Sum>(dtype);
}

ReduceColumns columns(ReduceOp op, DType dtype) {
  if (op == ReduceOp::prod) return columns_of<Prod>(dtype);
  if (op == ReduceOp::max) return columns_of<Max>(dtype);
  if (op == ReduceOp::min) return columns_of<Min>(dtype);
  return columns_of<Sum>(dtype);
}

extern const ReduceTable reduce_table;
const ReduceTable reduce_table = {row, columns};

}  // namespace MIXFLOW_ISA
}  // namespace mixflow::kernels
