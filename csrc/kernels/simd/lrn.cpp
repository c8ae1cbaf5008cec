// Local response normalisation across channels (Krizhevsky, Sutskever, Hinton, 2012).
#include "kernels/lrn.h"

#include <cmath>

namespace mixflow::kernels::MIXFLOW_ISA {
namespace {

// scale = knorm + alpha / size * sum of squares over the channels around c.
template <class T>
void scales(const LrnTask<T>& t, int64_t c, T* scale) {
  const int64_t low = c < t.size / 2 ? 0 : c - t.size / 2;
  const int64_t high = c + t.size / 2 + 1 < t.channels ? c + t.size / 2 + 1 : t.channels;
  for (int64_t i = 0; i < t.places; ++i) scale[i] = 0;
  for (int64_t k = low; k < high; ++k) {
    const T* x = t.x + k * t.stride;
    for (int64_t i = 0; i < t.places; ++i) scale[i] += x[i] * x[i];
  }
  const T factor = t.alpha / static_cast<T>(t.size);
  for (int64_t i = 0; i < t.places; ++i) scale[i] = t.knorm + factor * scale[i];
}

// to = scale ^ -beta. Square roots serve the power that nets use.
template <class T>
void powers(const T* scale, T beta, int64_t n, T* to) {
  if (beta == T(0.75)) {
    for (int64_t i = 0; i < n; ++i) {
      const T root = std::sqrt(scale[i]);
      to[i] = 1 / (root * std::sqrt(root));
    }
  } else {
    for (int64_t i = 0; i < n; ++i) to[i] = std::pow(scale[i], -beta);
  }
}

template <class T>
void forward(const LrnTask<T>& t) {
  T scale[kLrnStrip], power[kLrnStrip];
  for (int64_t c = 0; c < t.channels; ++c) {
    scales(t, c, scale);
    powers(scale, t.beta, t.places, power);
    const T* x = t.x + c * t.stride;
    T* y = t.result + c * t.stride;
    for (int64_t i = 0; i < t.places; ++i) y[i] = x[i] * power[i];
  }
}

template <class T>
void grad(const LrnTask<T>& t) {
  T* power = t.workspace;
  T* share = t.workspace + t.channels * kLrnStrip;  // dy * y / scale
  for (int64_t c = 0; c < t.channels; ++c) {
    T scale[kLrnStrip];
    scales(t, c, scale);
    powers(scale, t.beta, t.places, power + c * kLrnStrip);
    const T* y = t.y + c * t.stride;
    const T* dy = t.dy + c * t.stride;
    for (int64_t i = 0; i < t.places; ++i) share[c * kLrnStrip + i] = dy[i] * y[i] / scale[i];
  }
  const T factor = 2 * t.alpha * t.beta / static_cast<T>(t.size);
  for (int64_t c = 0; c < t.channels; ++c) {
    T around[kLrnStrip];
    const int64_t low = c < t.size / 2 ? 0 : c - t.size / 2;
    const int64_t high = c + t.size / 2 + 1 < t.channels ? c + t.size / 2 + 1 : t.channels;
    for (int64_t i = 0; i < t.places; ++i) around[i] = 0;
    for (int64_t k = low; k < high; ++k) {
      for (int64_t i = 0; i < t.places; ++i) around[i] += share[k * kLrnStrip + i];
    }
    const T* x = t.x + c * t.stride;
    const T* dy = t.dy + c * t.stride;
    const T* own = power + c * kLrnStrip;
    T* dx = t.result + c * t.stride;
    for (int64_t i = 0; i < t.places; ++i) dx[i] = dy[i] * own[i] - factor * x[i] * around[i];
  }
}

}  // namespace

void lrn_f32(const LrnTask<float>& t) { forward(t); }
void lrn_f64(const LrnTask<double>& t) { forward(t); }
void lrn_grad_f32(const LrnTask<float>& t) { grad(t); }
void lrn_grad_f64(const LrnTask<double>& t) { grad(t); }

}  // namespace mixflow::kernels::MIXFLOW_ISA
