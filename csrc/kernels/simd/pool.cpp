// Pooling by rows: for one tap of the window, a whole stretch of outputs is updated at once, which
// vectorises for every window size; the padding is left out by shortening the stretch.
#include "kernels/pool.h"

#include <cmath>

namespace mixflow::kernels::MIXFLOW_ISA {
namespace {

constexpr int64_t kStretch = 256;  // outputs updated at a time

inline int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }
inline int64_t most(int64_t a, int64_t b) { return a > b ? a : b; }

// Outputs [begin, end) of a stretch, which read the input row from `source` on.
struct Reach {
  int64_t begin, end, source;
};

inline Reach reach_of(const PoolGeometry& g, int64_t tap, int64_t first, int64_t count) {
  const int64_t offset = tap - g.pad[2], stride = g.stride[2];
  const int64_t low = offset >= 0 ? 0 : (-offset + stride - 1) / stride;
  const int64_t room = g.in[2] - offset;
  const int64_t high = room <= 0 ? 0 : (room + stride - 1) / stride;
  Reach r;
  r.begin = least(count, most(0, low - first));
  r.end = most(r.begin, least(count, high - first));
  r.source = (first + r.begin) * stride + offset;
  return r;
}

// Calls body(Reach with source in the plane) for every tap that touches the input.
template <class Body>
inline void for_taps(const PoolGeometry& g, int64_t o0, int64_t o1, int64_t first, int64_t count,
                     const Body& body) {
  for (int64_t k0 = 0; k0 < g.kernel[0]; ++k0) {
    const int64_t i0 = o0 * g.stride[0] - g.pad[0] + k0;
    if (i0 < 0 || i0 >= g.in[0]) continue;
    for (int64_t k1 = 0; k1 < g.kernel[1]; ++k1) {
      const int64_t i1 = o1 * g.stride[1] - g.pad[1] + k1;
      if (i1 < 0 || i1 >= g.in[1]) continue;
      for (int64_t k2 = 0; k2 < g.kernel[2]; ++k2) {
        Reach reach = reach_of(g, k2, first, count);
        reach.source += (i0 * g.in[1] + i1) * g.in[2];
        if (reach.begin < reach.end) body(reach);
      }
    }
  }
}

// Calls body(o0, o1, first, count) for every stretch of outputs of a plane.
template <class Body>
inline void for_stretches(const PoolGeometry& g, const Body& body) {
  for (int64_t o0 = 0; o0 < g.out[0]; ++o0) {
    for (int64_t o1 = 0; o1 < g.out[1]; ++o1) {
      for (int64_t first = 0; first < g.out[2]; first += kStretch) {
        body(o0, o1, first, least(kStretch, g.out[2] - first));
      }
    }
  }
}

template <class T>
struct Max {
  static T start() { return -static_cast<T>(INFINITY); }
  static T join(T sum, T v) { return (v > sum) | (v != v) ? v : sum; }
};
template <class T>
struct Sum {
  static T start() { return 0; }
  static T join(T sum, T v) { return sum + v; }
};
template <class T>
struct SumOfSquares {
  static T start() { return 0; }
  static T join(T sum, T v) { return sum + v * v; }
};

// Step is the stride where it is known to the compiler, else 0.
template <class T, class Join, int64_t Step>
inline void update(T* to, const T* from, int64_t count, int64_t stride) {
  const int64_t step = Step ? Step : stride;
  for (int64_t i = 0; i < count; ++i) to[i] = Join::join(to[i], from[i * step]);
}

template <class T, class Join, int64_t Step>
void plane_forward(const PoolGeometry& g, const T* x, T* y) {
  for_stretches(g, [&](int64_t o0, int64_t o1, int64_t first, int64_t count) {
    T* row = y + (o0 * g.out[1] + o1) * g.out[2] + first;
    for (int64_t i = 0; i < count; ++i) row[i] = Join::start();
    for_taps(g, o0, o1, first, count, [&](const Reach& r) {
      update<T, Join, Step>(row + r.begin, x + r.source, r.end - r.begin, g.stride[2]);
    });
  });
}

template <class T, class Join>
void reduce(const PoolGeometry& g, const T* x, T* y) {
  switch (g.stride[2]) {
    case 1:
      return plane_forward<T, Join, 1>(g, x, y);
    case 2:
      return plane_forward<T, Join, 2>(g, x, y);
    default:
      return plane_forward<T, Join, 0>(g, x, y);
  }
}

// How many elements of a window along one axis an average divides by.
inline int64_t extent(const PoolGeometry& g, int axis, int64_t o) {
  const int64_t start = o * g.stride[axis] - g.pad[axis];
  const int64_t end = start + g.kernel[axis];
  if (g.include_pad) return most(1, least(end, g.in[axis] + g.pad[axis]) - start);
  return most(1, least(end, g.in[axis]) - most(start, 0));
}

// row[i] *= 1 / size of window (o0, o1, first + i).
template <class T>
void divide(const PoolGeometry& g, int64_t o0, int64_t o1, int64_t first, int64_t count, T* row) {
  const int64_t outer = extent(g, 0, o0) * extent(g, 1, o1);
  for (int64_t i = 0; i < count; ++i) row[i] /= static_cast<T>(outer * extent(g, 2, first + i));
}

template <class T>
T integer_power(T value, int64_t n) {
  T result = value;
  for (int64_t i = 1; i < n; ++i) result *= value;
  return result;
}

template <class T>
T root(T value, int64_t n) {
  if (n == 1) return value;
  if (n == 2) return std::sqrt(value);
  if (n == 3) return std::cbrt(value);
  return std::pow(value, T(1) / static_cast<T>(n));
}

template <class T>
void power_sum(const PoolGeometry& g, const T* x, T* y) {
  for_stretches(g, [&](int64_t o0, int64_t o1, int64_t first, int64_t count) {
    T* row = y + (o0 * g.out[1] + o1) * g.out[2] + first;
    for (int64_t i = 0; i < count; ++i) row[i] = 0;
    for_taps(g, o0, o1, first, count, [&](const Reach& r) {
      const T* from = x + r.source;
      for (int64_t i = r.begin; i < r.end; ++i, from += g.stride[2]) {
        row[i] += integer_power(*from, g.power);
      }
    });
  });
}

template <class T>
void forward_plane(const PoolGeometry& g, const T* x, T* y) {
  switch (g.mode) {
    case PoolMode::max:
      return reduce<T, Max<T>>(g, x, y);
    case PoolMode::sum:
      return reduce<T, Sum<T>>(g, x, y);
    case PoolMode::avg:
      reduce<T, Sum<T>>(g, x, y);
      return for_stretches(g, [&](int64_t o0, int64_t o1, int64_t first, int64_t count) {
        divide(g, o0, o1, first, count, y + (o0 * g.out[1] + o1) * g.out[2] + first);
      });
    case PoolMode::lp:
      break;
  }
  if (g.power == 2) {
    reduce<T, SumOfSquares<T>>(g, x, y);
  } else {
    power_sum(g, x, y);
  }
  for (int64_t i = 0; i < g.out_size(); ++i) y[i] = root(y[i], g.power);
}

// Offset in the plane of the first maximum of each window of a stretch.
template <class T, int64_t Step>
inline void find_maxima(const PoolGeometry& g, const T* x, int64_t o0, int64_t o1, int64_t first,
                        int64_t count, int32_t* where) {
  T best[kStretch];
  for (int64_t i = 0; i < count; ++i) best[i] = -static_cast<T>(INFINITY);
  for (int64_t i = 0; i < count; ++i) where[i] = -1;
  const int64_t step = Step ? Step : g.stride[2];
  for_taps(g, o0, o1, first, count, [&](const Reach& r) {
    const T* from = x + r.source;
    const int32_t source = static_cast<int32_t>(r.source);
    for (int64_t i = r.begin; i < r.end; ++i) {
      const int32_t offset = static_cast<int32_t>((i - r.begin) * step);
      const T v = from[offset];
      const bool better = (v > best[i]) | ((v != v) & (best[i] == best[i])) | (where[i] < 0);
      best[i] = better ? v : best[i];
      where[i] = better ? source + offset : where[i];
    }
  });
}

// Calls body(output offset, input offset of the window's first maximum).
template <class T, class Body>
void for_maxima(const PoolGeometry& g, const T* x, const Body& body) {
  int32_t where[kStretch];
  for_stretches(g, [&](int64_t o0, int64_t o1, int64_t first, int64_t count) {
    if (g.stride[2] == 1) {
      find_maxima<T, 1>(g, x, o0, o1, first, count, where);
    } else if (g.stride[2] == 2) {
      find_maxima<T, 2>(g, x, o0, o1, first, count, where);
    } else {
      find_maxima<T, 0>(g, x, o0, o1, first, count, where);
    }
    const int64_t row = (o0 * g.out[1] + o1) * g.out[2] + first;
    for (int64_t i = 0; i < count; ++i) {
      if (where[i] >= 0) body(row + i, where[i]);
    }
  });
}

template <class T>
void spread_plane(const PoolGeometry& g, const T* dy, T* dx) {
  for_stretches(g, [&](int64_t o0, int64_t o1, int64_t first, int64_t count) {
    T row[kStretch];
    const T* from = dy + (o0 * g.out[1] + o1) * g.out[2] + first;
    for (int64_t i = 0; i < count; ++i) row[i] = from[i];
    if (g.mode == PoolMode::avg) divide(g, o0, o1, first, count, row);
    for_taps(g, o0, o1, first, count, [&](const Reach& r) {
      T* to = dx + r.source;
      for (int64_t i = r.begin; i < r.end; ++i, to += g.stride[2]) *to += row[i];
    });
  });
}

template <class T>
void forward(const PoolTask<T>& t) {
  const PoolGeometry& g = *t.geometry;
  for (int64_t i = 0; i < t.planes; ++i) {
    forward_plane(g, t.x + i * g.in_size(), t.result + i * g.out_size());
  }
}

template <class T>
void grad(const PoolTask<T>& t) {
  const PoolGeometry& g = *t.geometry;
  for (int64_t i = 0; i < t.planes; ++i) {
    const T* dy = t.dy + i * g.out_size();
    T* dx = t.result + i * g.in_size();
    for (int64_t j = 0; j < g.in_size(); ++j) dx[j] = 0;
    if (g.mode == PoolMode::max) {
      for_maxima(g, t.x + i * g.in_size(), [&](int64_t o, int64_t at) { dx[at] += dy[o]; });
    } else {
      spread_plane(g, dy, dx);
    }
  }
}

template <class T>
void take(const PoolTask<T>& t) {
  const PoolGeometry& g = *t.geometry;
  for (int64_t i = 0; i < t.planes; ++i) {
    const T* values = t.dy + i * g.in_size();
    T* y = t.result + i * g.out_size();
    for (int64_t j = 0; j < g.out_size(); ++j) y[j] = 0;
    for_maxima(g, t.x + i * g.in_size(), [&](int64_t o, int64_t at) { y[o] = values[at]; });
  }
}

}  // namespace

void pool_f32(const PoolTask<float>& t) { forward(t); }
void pool_f64(const PoolTask<double>& t) { forward(t); }
void pool_grad_f32(const PoolTask<float>& t) { grad(t); }
void pool_grad_f64(const PoolTask<double>& t) { grad(t); }
void pool_take_f32(const PoolTask<float>& t) { take(t); }
void pool_take_f64(const PoolTask<double>& t) { take(t); }

}  // namespace mixflow::kernels::MIXFLOW_ISA
