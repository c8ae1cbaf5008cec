// Helpers that every family of plain kernels shares: dispatch by element size, checks of
// descriptors, and the rule for when threads pay.
#pragma once

#include <algorithm>

#include "base/parallel.h"
#include "kernels/element.h"
#include "kernels/kernel.h"

namespace mixflow::kernels {


// Calls fn(TypeTag<U>{}) with an unsigned type of the given size: for kernels that only move data.
template <class Fn>
auto with_size(size_t bytes, Fn&& fn) {
  switch (bytes) {
    case 1:
      return fn(TypeTag<uint8_t>{});
    case 2:
      return fn(TypeTag<uint16_t>{});
    case 8:
      return fn(TypeTag<uint64_t>{});
    default:
      return fn(TypeTag<uint32_t>{});
  }
}

// Sets threads and cheap from an estimate of the work in nanoseconds on one thread.
inline void set_cost(Kernel& kernel, const Request& request, double nanoseconds) {
  constexpr double kNanosecondsPerThread = 20000.0;
  constexpr double kCheap = 20000.0;
  const int most = static_cast<int>(std::min(nanoseconds / kNanosecondsPerThread, 1024.0));
  kernel.threads = std::max(1, std::min(request.threads, most));
  kernel.cheap = nanoseconds <= kCheap;
}

inline void expect_counts(const Request& r, size_t inputs, size_t outputs) {
  check(r.inputs.size() == inputs && r.outputs.size() == outputs, "[", r.primitive, "] expected ",
        inputs, " inputs and ", outputs, " outputs, got ", r.inputs.size(), " and ",
        r.outputs.size());
}

inline void expect_shape(const Request& r, const char* what, const Shape& got,
                         const Shape& expected) {
  check(got == expected, "[", r.primitive, "] expected ", what, " of shape ", expected.str(),
        ", got ", got.str());
}

inline void expect_dtype(const Request& r, const char* what, DType got, DType expected) {
  check(got == expected, "[", r.primitive, "] expected ", what, " of dtype ", name_of(expected),
        ", got ", name_of(got));
}

inline void expect_plain(const Request& r) {
  for (const auto* list : {&r.inputs, &r.outputs}) {
    for (const Desc& desc : *list) {
      check(desc.layout.plain(), "[", r.primitive, "] expected plain layouts, got a blocked one");
    }
  }
}

// Whether every tensor has this dtype; kernels for one type of element ask first.
inline bool all_of_dtype(const Request& r, DType dtype) {
  const auto same = [dtype](const Desc& desc) { return desc.dtype == dtype; };
  return std::all_of(r.inputs.begin(), r.inputs.end(), same) &&
         std::all_of(r.outputs.begin(), r.outputs.end(), same);
}

inline int64_t checked_axis(const Request& r, int64_t axis, int ndim) {
  check(axis >= -ndim && axis < ndim, "[", r.primitive, "] expected an axis in [", -ndim, ", ",
        ndim, "), got ", axis);
  return axis < 0 ? axis + ndim : axis;
}

// A tensor seen as (outer, length, inner) around one axis.
struct AxisView {
  int64_t outer = 1;
  int64_t length = 1;
  int64_t inner = 1;
};

inline AxisView axis_view(const Shape& shape, int64_t axis) {
  AxisView view;
  for (int i = 0; i < shape.ndim(); ++i) {
    (i < axis ? view.outer : i == axis ? view.length : view.inner) *= shape[i];
  }
  return view;
}

}  // namespace mixflow::kernels
