#include "kernels/softmax.h"

#include <cmath>

#include "kernels/simd/nn_vector.h"
#include "kernels/simd/vmath.h"

namespace mixflow::kernels::MIXFLOW_ISA {
namespace {

constexpr int64_t kColumns = 64;  // columns done at a time

inline float exponential(float x) { return exp_f32(x); }
inline double exponential(double x) { return std::exp(x); }

template <class T>
T line_max(const T* x, int64_t n) {
  constexpr int64_t lanes = kLanes<T>;
  T best = x[0];
  int64_t i = 0;
  if (n >= lanes) {
    vec<T> most = load(x);
    for (i = lanes; i + lanes <= n; i += lanes) {
      const vec<T> v = load(x + i);
      most = v > most ? v : most;
    }
    for (int64_t k = 0; k < lanes; ++k) best = most[k] > best ? most[k] : best;
  }
  for (; i < n; ++i) best = x[i] > best ? x[i] : best;
  return best;
}

template <class T>
T line_sum(const T* x, int64_t n) {
  constexpr int64_t lanes = kLanes<T>;
  vec<T> sum{};
  int64_t i = 0;
  for (; i + lanes <= n; i += lanes) sum += load(x + i);
  T total = sum_lanes<T>(sum);
  for (; i < n; ++i) total += x[i];
  return total;
}

// Blocks small enough that their exponentials stay in the L1 cache.
template <class T>
T sum_of_exponentials(const T* x, int64_t n, T shift) {
  T block[512], total = 0;
  for (int64_t first = 0; first < n; first += 512) {
    const int64_t count = n - first < 512 ? n - first : 512;
    for (int64_t i = 0; i < count; ++i) block[i] = exponential(x[first + i] - shift);
    total += line_sum(block, count);
  }
  return total;
}

template <class T>
void line(const T* x, T* y, int64_t n, bool log) {
  const T top = line_max(x, n);
  if (log) {
    // Not x - (top + log): the sum would round away the logarithm where |top| is large.
    const T shift = std::log(sum_of_exponentials(x, n, top));
    for (int64_t i = 0; i < n; ++i) y[i] = (x[i] - top) - shift;
    return;
  }
  for (int64_t i = 0; i < n; ++i) y[i] = exponential(x[i] - top);
  const T scale = 1 / line_sum(y, n);
  for (int64_t i = 0; i < n; ++i) y[i] *= scale;
}

template <class T>
void columns(const SoftmaxTask<T>& t, int64_t first, int64_t count) {
  T top[kColumns], sum[kColumns];
  const T* x = t.x + first;
  T* y = t.y + first;
  for (int64_t j = 0; j < count; ++j) top[j] = x[j];
  for (int64_t i = 1; i < t.length; ++i) {
    const T* row = x + i * t.stride;
    for (int64_t j = 0; j < count; ++j) top[j] = row[j] > top[j] ? row[j] : top[j];
  }
  for (int64_t j = 0; j < count; ++j) sum[j] = 0;
  for (int64_t i = 0; i < t.length; ++i) {
    for (int64_t j = 0; j < count; ++j) {
      const T e = exponential(x[i * t.stride + j] - top[j]);
      sum[j] += e;
      if (!t.log) y[i * t.stride + j] = e;
    }
  }
  if (t.log) {
    for (int64_t j = 0; j < count; ++j) sum[j] = std::log(sum[j]);
  } else {
    for (int64_t j = 0; j < count; ++j) sum[j] = 1 / sum[j];
  }
  for (int64_t i = 0; i < t.length; ++i) {
    T* row = y + i * t.stride;
    const T* from = x + i * t.stride;
    for (int64_t j = 0; j < count; ++j) {
      row[j] = t.log ? (from[j] - top[j]) - sum[j] : row[j] * sum[j];
    }
  }
}

template <class T>
void all(const SoftmaxTask<T>& t) {
  if (t.stride == 1) return line(t.x, t.y, t.length, t.log);
  for (int64_t first = 0; first < t.inner; first += kColumns) {
    columns(t, first, t.inner - first < kColumns ? t.inner - first : kColumns);
  }
}

}  // namespace

void softmax_f32(const SoftmaxTask<float>& task) { all(task); }
void softmax_f64(const SoftmaxTask<double>& task) { all(task); }

}  // namespace mixflow::kernels::MIXFLOW_ISA
