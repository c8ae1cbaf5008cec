// Batch normalisation (Ioffe and Szegedy, 2015). Sums over a row use the type of the data, sums of
// rows double. The block of channels is read twice, the second time from the cache.
#include "kernels/norm.h"

#include <cmath>

#include "kernels/simd/nn_vector.h"

namespace mixflow::kernels::MIXFLOW_ISA {
namespace {

// Sum over i < n of term(load at i): whole vectors first, then the rest one by one.
template <class T, class VectorTerm, class Term>
inline T sum_terms(int64_t n, const VectorTerm& vector_term, const Term& term) {
  constexpr int64_t lanes = kLanes<T>;
  vec<T> sums[4] = {};
  int64_t i = 0;
  for (; i + 4 * lanes <= n; i += 4 * lanes) {
    for (int k = 0; k < 4; ++k) sums[k] += vector_term(i + k * lanes);
  }
  for (; i + lanes <= n; i += lanes) sums[0] += vector_term(i);
  T total = sum_lanes<T>((sums[0] + sums[1]) + (sums[2] + sums[3]));
  for (; i < n; ++i) total += term(i);
  return total;
}

template <class T>
T row_sum(const T* x, int64_t n) {
  return sum_terms<T>(n, [&](int64_t i) { return load(x + i); }, [&](int64_t i) { return x[i]; });
}

template <class T>
T row_squares(const T* x, int64_t n, T mean) {
  const auto vector_term = [&](int64_t i) {
    const vec<T> d = load(x + i) - mean;
    return d * d;
  };
  return sum_terms<T>(n, vector_term, [&](int64_t i) { return (x[i] - mean) * (x[i] - mean); });
}

template <class T>
T row_moment(const T* dy, const T* x, int64_t n, T mean) {
  return sum_terms<T>(
      n, [&](int64_t i) { return load(dy + i) * (load(x + i) - mean); },
      [&](int64_t i) { return dy[i] * (x[i] - mean); });
}

// Calls body(channel, offset) for every row of the block.
template <class T, class Body>
inline void for_rows(const NormTask<T>& t, const Body& body) {
  for (int64_t n = 0; n < t.outer; ++n) {
    for (int64_t c = 0; c < t.channels; ++c) body(c, n * t.stride + c * t.inner);
  }
}

template <class T>
void sums_of(const NormTask<T>& t, const T* x, double* sums) {
  for (int64_t c = 0; c < t.channels; ++c) sums[c] = 0;
  if (t.inner == 1) {
    for (int64_t n = 0; n < t.outer; ++n) {
      const T* row = x + n * t.stride;
      for (int64_t c = 0; c < t.channels; ++c) sums[c] += static_cast<double>(row[c]);
    }
    return;
  }
  for_rows(t, [&](int64_t c, int64_t at) { sums[c] += row_sum(x + at, t.inner); });
}

template <class T>
void squares_of(const NormTask<T>& t, const T* mean, double* sums) {
  for (int64_t c = 0; c < t.channels; ++c) sums[c] = 0;
  if (t.inner == 1) {
    for (int64_t n = 0; n < t.outer; ++n) {
      const T* row = t.x + n * t.stride;
      for (int64_t c = 0; c < t.channels; ++c) {
        const double d = static_cast<double>(row[c] - mean[c]);
        sums[c] += d * d;
      }
    }
    return;
  }
  for_rows(t, [&](int64_t c, int64_t at) { sums[c] += row_squares(t.x + at, t.inner, mean[c]); });
}

template <class T>
void moments_of(const NormTask<T>& t, double* sums) {
  for (int64_t c = 0; c < t.channels; ++c) sums[c] = 0;
  if (t.inner == 1) {
    for (int64_t n = 0; n < t.outer; ++n) {
      const T* x = t.x + n * t.stride;
      const T* dy = t.dy + n * t.stride;
      for (int64_t c = 0; c < t.channels; ++c) {
        sums[c] += static_cast<double>(dy[c] * (x[c] - t.mean[c]));
      }
    }
    return;
  }
  for_rows(t, [&](int64_t c, int64_t at) {
    sums[c] += row_moment(t.dy + at, t.x + at, t.inner, t.mean[c]);
  });
}

template <class T>
void stats(const NormTask<T>& t) {
  double sums[kNormBlock];
  const double count = static_cast<double>(t.outer * t.inner);
  sums_of(t, t.x, sums);
  for (int64_t c = 0; c < t.channels; ++c) t.first[c] = static_cast<T>(sums[c] / count);
  squares_of(t, t.first, sums);
  for (int64_t c = 0; c < t.channels; ++c) t.second[c] = static_cast<T>(sums[c] / count);
}

// y = (x - mean) * scale + beta, in this order: a shift that has scale * mean folded in would lose
// digits where the mean is far from zero.
template <class T>
void apply(const NormTask<T>& t, const T* mean, const T* scale) {
  if (t.inner == 1) {
    for (int64_t n = 0; n < t.outer; ++n) {
      const T* x = t.x + n * t.stride;
      T* y = t.result + n * t.stride;
      for (int64_t c = 0; c < t.channels; ++c) y[c] = (x[c] - mean[c]) * scale[c] + t.beta[c];
    }
    return;
  }
  for_rows(t, [&](int64_t c, int64_t at) {
    const T m = mean[c], s = scale[c], b = t.beta[c];
    const T* x = t.x + at;
    T* y = t.result + at;
    for (int64_t i = 0; i < t.inner; ++i) y[i] = (x[i] - m) * s + b;
  });
}

template <class T>
void normalise(const NormTask<T>& t) {
  T scale[kNormBlock];
  for (int64_t c = 0; c < t.channels; ++c) scale[c] = t.gamma[c] * t.inv_std[c];
  apply(t, t.mean, scale);
}

template <class T>
void train(const NormTask<T>& t) {
  stats(t);
  T scale[kNormBlock];
  for (int64_t c = 0; c < t.channels; ++c) {
    scale[c] = t.gamma[c] / std::sqrt(t.second[c] + static_cast<T>(t.eps));
  }
  apply(t, t.first, scale);
}

// dx = a * dy + b * (x - mean) + c
template <class T>
void combine(const NormTask<T>& t, const T* a, const T* b, const T* shift) {
  if (t.inner == 1) {
    for (int64_t n = 0; n < t.outer; ++n) {
      const T* x = t.x + n * t.stride;
      const T* dy = t.dy + n * t.stride;
      T* dx = t.result + n * t.stride;
      for (int64_t c = 0; c < t.channels; ++c) {
        dx[c] = a[c] * dy[c] + b[c] * (x[c] - t.mean[c]) + shift[c];
      }
    }
    return;
  }
  for_rows(t, [&](int64_t c, int64_t at) {
    const T a_c = a[c], b_c = b[c], shift_c = shift[c], mean = t.mean[c];
    const T* x = t.x + at;
    const T* dy = t.dy + at;
    T* dx = t.result + at;
    for (int64_t i = 0; i < t.inner; ++i) dx[i] = a_c * dy[i] + b_c * (x[i] - mean) + shift_c;
  });
}

template <class T>
void grad(const NormTask<T>& t) {
  double totals[kNormBlock], moments[kNormBlock];
  T a[kNormBlock], b[kNormBlock], shift[kNormBlock];
  sums_of(t, t.dy, totals);
  moments_of(t, moments);
  const double count = static_cast<double>(t.outer * t.inner);
  for (int64_t c = 0; c < t.channels; ++c) {
    const double inv = t.inv_std[c], scale = t.gamma[c] * inv;
    t.first[c] = static_cast<T>(moments[c] * inv);
    t.second[c] = static_cast<T>(totals[c]);
    a[c] = static_cast<T>(scale);
    b[c] = static_cast<T>(-scale * inv * inv * moments[c] / count);
    shift[c] = static_cast<T>(-scale * totals[c] / count);
  }
  combine(t, a, b, shift);
}

}  // namespace

void norm_stats_f32(const NormTask<float>& t) { stats(t); }
void norm_stats_f64(const NormTask<double>& t) { stats(t); }
void norm_apply_f32(const NormTask<float>& t) { normalise(t); }
void norm_apply_f64(const NormTask<double>& t) { normalise(t); }
void norm_train_f32(const NormTask<float>& t) { train(t); }
void norm_train_f64(const NormTask<double>& t) { train(t); }
void norm_grad_f32(const NormTask<float>& t) { grad(t); }
void norm_grad_f64(const NormTask<double>& t) { grad(t); }

}  // namespace mixflow::kernels::MIXFLOW_ISA
