// Pooling of blocked planes: one vector holds a place's whole block of channels, so that windows of
// every size and stride vectorise alike. The gradient of max finds the winner again by comparing
// with y, which needs no index from the forward pass.
#include "kernels/blocked.h"
#include "kernels/simd/blocked_vector.h"

namespace mixflow::kernels::MIXFLOW_ISA {
namespace {

inline int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }
inline int64_t most(int64_t a, int64_t b) { return a > b ? a : b; }

// The part of a window that lies inside of the plane, and what an average divides by.
struct Window {
  int64_t begin[3], end[3];
  float inverse = 1;
};

Window window_of(const PoolGeometry& g, const int64_t* out) {
  Window w;
  int64_t counted = 1;
  for (int a = 0; a < 3; ++a) {
    const int64_t first = out[a] * g.stride[a] - g.pad[a], last = first + g.kernel[a];
    w.begin[a] = most(first, 0);
    w.end[a] = least(last, g.in[a]);
    counted *= g.include_pad ? least(last, g.in[a] + g.pad[a]) - first : w.end[a] - w.begin[a];
  }
  if (g.mode == PoolMode::avg) w.inverse = 1.0f / static_cast<float>(most(counted, 1));
  return w;
}

// Calls body(offset) for every place of the window.
template <int B, class Body>
inline void for_places(const PoolGeometry& g, const Window& w, const Body& body) {
  for (int64_t i = w.begin[0]; i < w.end[0]; ++i) {
    for (int64_t j = w.begin[1]; j < w.end[1]; ++j) {
      const int64_t row = (i * g.in[1] + j) * g.in[2];
      for (int64_t k = w.begin[2]; k < w.end[2]; ++k) body((row + k) * B);
    }
  }
}

// Calls body(window, offset of the output) for every output of a plane.
template <int B, class Body>
inline void for_outputs(const PoolGeometry& g, const Body& body) {
  int64_t out[3], at = 0;
  for (out[0] = 0; out[0] < g.out[0]; ++out[0]) {
    for (out[1] = 0; out[1] < g.out[1]; ++out[1]) {
      for (out[2] = 0; out[2] < g.out[2]; ++out[2], at += B) body(window_of(g, out), at);
    }
  }
}

template <int B, class T>
void forward_plane(const PoolGeometry& g, const T* x, T* y) {
  if (g.mode == PoolMode::max) {
    for_outputs<B>(g, [&](const Window& w, int64_t at) {
      Block<B> best = Block<B>{} - __builtin_inff();
      for_places<B>(g, w, [&](int64_t from) {
        const Block<B> v = load_block<B>(x + from);
        best = (v > best) | (v != v) ? v : best;  // NaN wins
      });
      put_block<B>(y + at, best);
    });
    return;
  }
  for_outputs<B>(g, [&](const Window& w, int64_t at) {
    Block<B> sum = {};
    for_places<B>(g, w, [&](int64_t from) { sum += load_block<B>(x + from); });
    put_block<B>(y + at, sum * w.inverse);
  });
}

template <int B, class T>
void grad_of_max(const PoolGeometry& g, const T* dy, const T* x, const T* y, float* dx) {
  for_outputs<B>(g, [&](const Window& w, int64_t at) {
    Block<B> left = load_block<B>(dy + at);  // zero once the winner has got it
    const Block<B> best = load_block<B>(y + at), zero = {};
    for_places<B>(g, w, [&](int64_t to) {
      const Block<B> v = load_block<B>(x + to);
      put_block<B>(dx + to, load_block<B>(dx + to) + (v == best ? left : zero));
      left = v == best ? zero : left;
    });
  });
}

// The gradient of one plane; windows overlap, so it is summed in float.
template <int B, class T>
void grad_plane(const BlockedPoolTask& t, int64_t plane, float* dx) {
  const PoolGeometry& g = *t.geometry;
  const int64_t in = g.in_size() * B, out = g.out_size() * B;
  const T* dy = static_cast<const T*>(t.dy) + plane * out;
  for (int64_t i = 0; i < in; i += B) put_block<B>(dx + i, Block<B>{});
  if (g.mode == PoolMode::max) {
    const T* x = static_cast<const T*>(t.x) + plane * in;
    return grad_of_max<B>(g, dy, x, static_cast<const T*>(t.y) + plane * out, dx);
  }
  for_outputs<B>(g, [&](const Window& w, int64_t at) {
    const Block<B> share = load_block<B>(dy + at) * w.inverse;
    for_places<B>(g, w, [&](int64_t to) {
      put_block<B>(dx + to, load_block<B>(dx + to) + share);
    });
  });
}

template <int B, class T>
void forward(const BlockedPoolTask& t) {
  const int64_t in = t.geometry->in_size() * B, out = t.geometry->out_size() * B;
  const T* x = static_cast<const T*>(t.x);
  T* y = static_cast<T*>(t.result);
  for (int64_t p = 0; p < t.planes; ++p) forward_plane<B>(*t.geometry, x + p * in, y + p * out);
}

template <int B>
void grad(const BlockedPoolTask& t) {
  const int64_t in = t.geometry->in_size() * B;
  float* dx = static_cast<float*>(t.result);
  for (int64_t p = 0; p < t.planes; ++p) grad_plane<B, float>(t, p, dx + p * in);
}

template <int B>
void narrow_grad(const BlockedPoolTask& t) {
  const int64_t in = t.geometry->in_size() * B;
  for (int64_t p = 0; p < t.planes; ++p) {
    BHalf* dx = static_cast<BHalf*>(t.result) + p * in;
    grad_plane<B, BHalf>(t, p, t.plane);
    for (int64_t i = 0; i < in; i += B) put_block<B>(dx + i, load_block<B>(t.plane + i));
  }
}

}  // namespace

void blocked_pool(const BlockedPoolTask& t) {
  if (t.narrow) return t.size == 8 ? forward<8, BHalf>(t) : forward<16, BHalf>(t);
  t.size == 8 ? forward<8, float>(t) : forward<16, float>(t);
}

void blocked_pool_grad(const BlockedPoolTask& t) {
  if (t.narrow) return t.size == 8 ? narrow_grad<8>(t) : narrow_grad<16>(t);
  t.size == 8 ? grad<8>(t) : grad<16>(t);
}

}  // namespace mixflow::kernels::MIXFLOW_ISA
