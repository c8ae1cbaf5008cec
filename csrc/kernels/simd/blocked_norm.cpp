// Batch normalisation of one block of channels (Ioffe and Szegedy, 2015), with what follows it
// (addend, relu) in the same pass over memory.
//
// Hazard: float sums over a batch lose digits. Sums run over at most kRun places in float, then in
// double; the variance is taken around a pilot mean, so that one reading of x is enough.
#include <cmath>

#include "kernels/blocked.h"
#include "kernels/simd/blocked_vector.h"

namespace mixflow::kernels::MIXFLOW_ISA {
namespace {

constexpr int64_t kRun = 256;  // places summed in float
constexpr int kWays = 4;       // independent sums, to hide the latency of additions

// Calls body(offset) for every run of places: body(offset, count).
template <class Body>
inline void for_runs(const BlockedNormTask& t, const Body& body) {
  for (int64_t n = 0; n < t.outer; ++n) {
    for (int64_t i = 0; i < t.inner; i += kRun) {
      const int64_t count = t.inner - i < kRun ? t.inner - i : kRun;
      body(n * t.stride + i * t.size, count);
    }
  }
}

// Adds the sums of term(offset) -> (a, b) over all places to `first` and `second`.
template <int B, class Term>
inline void two_sums(const BlockedNormTask& t, double* first, double* second, const Term& term) {
  for (int c = 0; c < B; ++c) first[c] = second[c] = 0;
  for_runs(t, [&](int64_t at, int64_t count) {
    Block<B> a[kWays] = {}, b[kWays] = {};
    int64_t i = 0;
    for (; i + kWays <= count; i += kWays) {
      for (int k = 0; k < kWays; ++k) term(at + (i + k) * B, a[k], b[k]);
    }
    for (; i < count; ++i) term(at + i * B, a[0], b[0]);
    const Block<B> a_sum = (a[0] + a[1]) + (a[2] + a[3]);
    const Block<B> b_sum = (b[0] + b[1]) + (b[2] + b[3]);
    for (int c = 0; c < B; ++c) first[c] += static_cast<double>(a_sum[c]);
    for (int c = 0; c < B; ++c) second[c] += static_cast<double>(b_sum[c]);
  });
}

template <int B, class T>
Block<B> pilot_mean(const BlockedNormTask& t) {
  const T* x = static_cast<const T*>(t.x);
  const int64_t count = t.inner < 64 ? t.inner : 64;
  Block<B> sum = {};
  for (int64_t i = 0; i < count; ++i) sum += load_block<B>(x + i * B);
  return sum / static_cast<float>(count);
}

template <int B, class T>
void stats(const BlockedNormTask& t) {
  const T* x = static_cast<const T*>(t.x);
  double sums[B], squares[B];
  const Block<B> pilot = pilot_mean<B, T>(t);
  two_sums<B>(t, sums, squares, [&](int64_t at, Block<B>& a, Block<B>& b) {
    const Block<B> d = load_block<B>(x + at) - pilot;
    a += d;
    b += d * d;
  });
  const double count = static_cast<double>(t.outer * t.inner);
  for (int c = 0; c < B; ++c) {
    const double shift = sums[c] / count;
    const double var = squares[c] / count - shift * shift;
    t.first[c] = static_cast<float>(static_cast<double>(pilot[c]) + shift);
    t.second[c] = static_cast<float>(var > 0 ? var : 0);
  }
}

template <int B, class T, bool kAdd, bool kRelu>
void apply_ends(const BlockedNormTask& t, Block<B> mean, Block<B> scale, Block<B> beta) {
  const Block<B> zero = {};
  for_runs(t, [&](int64_t at, int64_t count) {
    const T* x = static_cast<const T*>(t.x) + at;
    const T* addend = kAdd ? static_cast<const T*>(t.addend) + at : nullptr;
    T* y = static_cast<T*>(t.result) + at;
    for (int64_t i = 0; i < count * B; i += B) {
      Block<B> v = (load_block<B>(x + i) - mean) * scale + beta;
      if (kAdd) v += load_block<B>(addend + i);
      if (kRelu) v = v < zero ? zero : v;  // keeps NaN
      put_block<B>(y + i, v);
    }
  });
}

template <int B, class T>
void apply(const BlockedNormTask& t, const float* mean, Block<B> scale) {
  const Block<B> m = load_block<B>(mean), beta = load_block<B>(t.beta);
  if (t.addend) {
    return t.relu ? apply_ends<B, T, true, true>(t, m, scale, beta)
                  : apply_ends<B, T, true, false>(t, m, scale, beta);
  }
  return t.relu ? apply_ends<B, T, false, true>(t, m, scale, beta)
                : apply_ends<B, T, false, false>(t, m, scale, beta);
}

template <int B, class T>
void train(const BlockedNormTask& t) {
  stats<B, T>(t);
  Block<B> scale = {};
  for (int c = 0; c < B; ++c) scale[c] = t.gamma[c] / std::sqrt(t.second[c] + t.eps);
  apply<B, T>(t, t.first, scale);
}

// dx = a * dy + b * (x - mean) + shift, where dy is what relu let through.
template <int B, class T, bool kRelu>
void grad(const BlockedNormTask& t) {
  const T* x = static_cast<const T*>(t.x);
  const T* from = static_cast<const T*>(t.dy);
  T* to = static_cast<T*>(t.result);
  double totals[B], moments[B];
  const Block<B> zero = {}, mean = load_block<B>(t.mean), beta = load_block<B>(t.beta);
  const Block<B> scale = load_block<B>(t.gamma) * load_block<B>(t.inv_std);
  const auto through = [&](Block<B> dy, Block<B> centred) {
    return kRelu ? (centred * scale + beta > zero ? dy : zero) : dy;
  };
  two_sums<B>(t, totals, moments, [&](int64_t at, Block<B>& a, Block<B>& b) {
    const Block<B> centred = load_block<B>(x + at) - mean;
    const Block<B> dy = through(load_block<B>(from + at), centred);
    a += dy;
    b += dy * centred;
  });
  const double count = static_cast<double>(t.outer * t.inner);
  Block<B> slope = {}, shift = {};
  for (int c = 0; c < B; ++c) {
    const double inv = t.inv_std[c], whole = t.gamma[c] * inv;
    slope[c] = static_cast<float>(-whole * inv * inv * moments[c] / count);
    shift[c] = static_cast<float>(-whole * totals[c] / count);
    t.first[c] = static_cast<float>(moments[c] * inv);
    t.second[c] = static_cast<float>(totals[c]);
  }
  for_runs(t, [&](int64_t at, int64_t places) {
    for (int64_t i = at; i < at + places * B; i += B) {
      const Block<B> centred = load_block<B>(x + i) - mean;
      const Block<B> dy = through(load_block<B>(from + i), centred);
      put_block<B>(to + i, scale * dy + slope * centred + shift);
    }
  });
}

template <int B, class T>
void apply_all(const BlockedNormTask& t) {
  apply<B, T>(t, t.mean, load_block<B>(t.gamma) * load_block<B>(t.inv_std));
}

template <int B, class T>
void grad_all(const BlockedNormTask& t) {
  t.relu ? grad<B, T, true>(t) : grad<B, T, false>(t);
}

}  // namespace

void blocked_norm_train(const BlockedNormTask& t) {
  if (t.narrow) return t.size == 8 ? train<8, BHalf>(t) : train<16, BHalf>(t);
  t.size == 8 ? train<8, float>(t) : train<16, float>(t);
}

void blocked_norm_apply(const BlockedNormTask& t) {
  if (t.narrow) return t.size == 8 ? apply_all<8, BHalf>(t) : apply_all<16, BHalf>(t);
  t.size == 8 ? apply_all<8, float>(t) : apply_all<16, float>(t);
}

void blocked_norm_grad(const BlockedNormTask& t) {
  if (t.narrow) return t.size == 8 ? grad_all<8, BHalf>(t) : grad_all<16, BHalf>(t);
  t.size == 8 ? grad_all<8, float>(t) : grad_all<16, float>(t);
}

}  // namespace mixflow::kernels::MIXFLOW_ISA
