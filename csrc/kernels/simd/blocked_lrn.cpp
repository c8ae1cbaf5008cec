// Local response normalisation across channels (Krizhevsky, Sutskever, Hinton, 2012), place by
// place: the channels of a place are laid side by side with zeros around them, so that the sum over
// a window is a few shifted additions of whole vectors.
#include <cmath>
#include <cstring>

#include "kernels/blocked.h"

namespace mixflow::kernels::MIXFLOW_ISA {
namespace {

// The rows of the workspace; `padded` ones have half a window of zeros on both sides.
struct Rows {
  int64_t count, half;  // channels, half a window
  float *x, *y, *dy, *scale, *power, *padded, *sum;

  explicit Rows(const BlockedLrnTask& t) : count(t.blocks * t.size), half(t.width / 2) {
    const int64_t step = (count + t.width + 15) / 16 * 16;
    float* row = t.workspace;
    for (float** place : {&x, &y, &dy, &scale, &power, &padded, &sum}) {
      *place = row;
      row += step;
    }
    for (int64_t i = 0; i < half; ++i) padded[i] = padded[half + count + i] = 0;
  }
};

void gather(const BlockedLrnTask& t, const float* from, float* to) {
  for (int64_t b = 0; b < t.blocks; ++b) {
    std::memcpy(to + b * t.size, from + b * t.inner * t.size,
                static_cast<size_t>(t.size) * sizeof(float));
  }
}

void scatter(const BlockedLrnTask& t, const float* from, float* to) {
  for (int64_t b = 0; b < t.blocks; ++b) {
    std::memcpy(to + b * t.inner * t.size, from + b * t.size,
                static_cast<size_t>(t.size) * sizeof(float));
  }
}

void window_sums(const Rows& r) {
  float* __restrict sum = r.sum;
  const float* __restrict padded = r.padded;
  for (int64_t c = 0; c < r.count; ++c) sum[c] = padded[c];
  for (int64_t k = 1; k <= 2 * r.half; ++k) {
    for (int64_t c = 0; c < r.count; ++c) sum[c] += padded[c + k];
  }
}

// scale = knorm + alpha / width * sum of squares; power = scale ^ -beta.
void powers(const BlockedLrnTask& t, const Rows& r) {
  const float factor = t.alpha / static_cast<float>(t.width);
  const float* __restrict x = r.x;
  float* __restrict scale = r.scale;
  float* __restrict power = r.power;
  for (int64_t c = 0; c < r.count; ++c) r.padded[r.half + c] = x[c] * x[c];
  window_sums(r);
  for (int64_t c = 0; c < r.count; ++c) scale[c] = t.knorm + factor * r.sum[c];
  if (t.beta == 0.75f) {  // square roots serve the power that nets use
    for (int64_t c = 0; c < r.count; ++c) {
      const float root = std::sqrt(scale[c]);
      power[c] = 1 / (root * std::sqrt(root));
    }
  } else {
    for (int64_t c = 0; c < r.count; ++c) power[c] = std::pow(scale[c], -t.beta);
  }
}

}  // namespace

void blocked_lrn(const BlockedLrnTask& t) {
  const Rows r(t);
  for (int64_t i = 0; i < t.places; ++i) {
    gather(t, t.x + i * t.size, r.x);
    powers(t, r);
    for (int64_t c = 0; c < r.count; ++c) r.y[c] = r.x[c] * r.power[c];
    scatter(t, r.y, t.result + i * t.size);
  }
}

void blocked_lrn_grad(const BlockedLrnTask& t) {
  const Rows r(t);
  const float factor = 2 * t.alpha * t.beta / static_cast<float>(t.width);
  for (int64_t i = 0; i < t.places; ++i) {
    gather(t, t.x + i * t.size, r.x);
    gather(t, t.y + i * t.size, r.y);
    gather(t, t.dy + i * t.size, r.dy);
    powers(t, r);
    for (int64_t c = 0; c < r.count; ++c) {
      r.padded[r.half + c] = r.dy[c] * r.y[c] / r.scale[c];
    }
    window_sums(r);
    for (int64_t c = 0; c < r.count; ++c) {
      r.y[c] = r.dy[c] * r.power[c] - factor * r.x[c] * r.sum[c];
    }
    scatter(t, r.y, t.result + i * t.size);
  }
}

}  // namespace mixflow::kernels::MIXFLOW_ISA
