// Pooling by rows: for one tap of the window, a whole stretch of outputs is updated at once, which
// vectorises for every window size; the padding is left out by shortening the stretch.
#include "kernels/pool.h"

#include <cmath>

#include "kernels/simd/nn_vector.h"

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

// The commonest pooling, 2x2 windows side by side, needs no general machinery: each input element
// belongs to one window, so that rows of windows are done in one pass that vectorises.
inline bool is_quads(const PoolGeometry& g) {
  bool quads = g.mode == PoolMode::max && g.in[0] == 1 && g.kernel[0] == 1;
  for (int axis = 0; axis < 3; ++axis) quads = quads && g.pad[axis] == 0;
  for (int axis = 1; axis < 3; ++axis) {
    quads = quads && g.kernel[axis] == 2 && g.stride[axis] == 2 && 2 * g.out[axis] <= g.in[axis];
  }
  return quads;
}

// Rows are short: at most 8 elements at a time, then 4 (or what a vector holds), then one.
template <class T>
constexpr int kWide = kLanes<T> < 8 ? static_cast<int>(kLanes<T>) : 8;
template <class T>
constexpr int kNarrow = kWide<T> < 4 ? kWide<T> : 4;

// N elements at a time.
template <class T, int N>
struct Some {
  typedef T values __attribute__((vector_size(N * sizeof(T)), aligned(sizeof(T)), may_alias));
  typedef decltype(values{} < values{}) flags;

  static values get(const T* p) { return *reinterpret_cast<const values*>(p); }
  static void put(T* p, values v) { *reinterpret_cast<values*>(p) = v; }
  // Elements 2 i + odd of the 2 N at p.
  static values every_other(const T* p, int odd) {
    flags at;
    for (int i = 0; i < N; ++i) at[i] = 2 * i + odd;
    return __builtin_shuffle(get(p), get(p + N), at);
  }
  static void put_alternating(T* p, values even, values odd) {
    flags low, high;
    for (int i = 0; i < N; ++i) {
      low[i] = i / 2 + i % 2 * N;
      high[i] = N / 2 + i / 2 + i % 2 * N;
    }
    put(p, __builtin_shuffle(even, odd, low));
    put(p + N, __builtin_shuffle(even, odd, high));
  }
};

// Whether the later element is the maximum: it is larger, or the first NaN.
template <class V>
inline auto later_wins(V earlier, V later) {
  return (later > earlier) | ((later != later) & (earlier == earlier));
}

template <class T, int N>
inline void quads_of(const T* top, const T* low, T* y) {
  using S = Some<T, N>;
  const auto a = S::every_other(top, 0), b = S::every_other(top, 1);
  const auto c = S::every_other(low, 0), d = S::every_other(low, 1);
  const auto up = later_wins(a, b) ? b : a;
  const auto down = later_wins(c, d) ? d : c;
  S::put(y, later_wins(up, down) ? down : up);
}

template <class T, int N>
inline void quads_grad_of(const T* top, const T* low, const T* dy, T* dtop, T* dlow) {
  using S = Some<T, N>;
  const auto a = S::every_other(top, 0), b = S::every_other(top, 1);
  const auto c = S::every_other(low, 0), d = S::every_other(low, 1);
  const typename S::values zero{}, g = S::get(dy);
  const auto b_wins = later_wins(a, b);
  const auto d_wins = later_wins(c, d);
  const auto low_wins = later_wins(b_wins ? b : a, d_wins ? d : c);
  const auto for_top = low_wins ? zero : g;
  const auto for_low = low_wins ? g : zero;
  S::put_alternating(dtop, b_wins ? zero : for_top, b_wins ? for_top : zero);
  S::put_alternating(dlow, d_wins ? zero : for_low, d_wins ? for_low : zero);
}

template <class T>
inline void quad_row(const T* top, const T* low, int64_t n, T* y) {
  int64_t i = 0;
  constexpr int wide = kWide<T>, narrow = kNarrow<T>;
  for (; i + wide <= n; i += wide) quads_of<T, wide>(top + 2 * i, low + 2 * i, y + i);
  for (; i + narrow <= n; i += narrow) quads_of<T, narrow>(top + 2 * i, low + 2 * i, y + i);
  for (; i < n; ++i) {
    const T left = Max<T>::join(top[2 * i], top[2 * i + 1]);
    y[i] = Max<T>::join(left, Max<T>::join(low[2 * i], low[2 * i + 1]));
  }
}

template <class T>
inline void quad_grad_row(const T* top, const T* low, const T* dy, int64_t n, T* dtop, T* dlow) {
  int64_t i = 0;
  constexpr int wide = kWide<T>, narrow = kNarrow<T>;
  for (; i + wide <= n; i += wide) {
    quads_grad_of<T, wide>(top + 2 * i, low + 2 * i, dy + i, dtop + 2 * i, dlow + 2 * i);
  }
  for (; i + narrow <= n; i += narrow) {
    quads_grad_of<T, narrow>(top + 2 * i, low + 2 * i, dy + i, dtop + 2 * i, dlow + 2 * i);
  }
  for (; i < n; ++i) {
    const T a = top[2 * i], b = top[2 * i + 1], c = low[2 * i], d = low[2 * i + 1];
    T* up = dtop + 2 * i;
    T* down = dlow + 2 * i;
    up[0] = up[1] = down[0] = down[1] = 0;
    const bool right = later_wins(a, b), low_right = later_wins(c, d);
    const bool low_wins = later_wins(right ? b : a, low_right ? d : c);
    (low_wins ? down[low_right] : up[right]) = dy[i];
  }
}

template <class T>
void quads_forward(const PoolTask<T>& t) {
  const PoolGeometry& g = *t.geometry;
  for (int64_t i = 0; i < t.planes; ++i) {
    const T* x = t.x + i * g.in_size();
    T* y = t.result + i * g.out_size();
    for (int64_t o = 0; o < g.out[1]; ++o) {
      quad_row(x + 2 * o * g.in[2], x + (2 * o + 1) * g.in[2], g.out[2], y + o * g.out[2]);
    }
  }
}

template <class T>
void quads_grad(const PoolTask<T>& t) {
  const PoolGeometry& g = *t.geometry;
  const bool covered = 2 * g.out[1] == g.in[1] && 2 * g.out[2] == g.in[2];
  for (int64_t i = 0; i < t.planes; ++i) {
    const T* x = t.x + i * g.in_size();
    const T* dy = t.dy + i * g.out_size();
    T* dx = t.result + i * g.in_size();
    for (int64_t j = 0; !covered && j < g.in_size(); ++j) dx[j] = 0;
    for (int64_t o = 0; o < g.out[1]; ++o) {
      const int64_t top = 2 * o * g.in[2], low = top + g.in[2];
      quad_grad_row(x + top, x + low, dy + o * g.out[2], g.out[2], dx + top, dx + low);
    }
  }
}

template <class T>
void forward(const PoolTask<T>& t) {
  const PoolGeometry& g = *t.geometry;
  if (is_quads(g)) return quads_forward(t);
  for (int64_t i = 0; i < t.planes; ++i) {
    forward_plane(g, t.x + i * g.in_size(), t.result + i * g.out_size());
  }
}

template <class T>
void grad(const PoolTask<T>& t) {
  const PoolGeometry& g = *t.geometry;
  if (is_quads(g)) return quads_grad(t);
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
