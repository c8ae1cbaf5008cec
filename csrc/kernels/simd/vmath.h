// Float32 functions without branches, so that loops over them vectorise. Error below 4 units in
// the last place (tests/unit/test_native_kernels.py). The methods are the classical ones: argument
// reduction by Cody and Waite ("Software Manual for the Elementary Functions", 1980), logarithm by
// the atanh series in s = f / (2 + f), and polynomials that were fitted at Chebyshev nodes for this
// file. In an unnamed namespace for the reason given in element.h.
#pragma once

#include <cmath>
#include <limits>

#include "kernels/element.h"

namespace mixflow::kernels {
namespace {

#ifdef __FMA__
constexpr bool kHasFma = true;
#else
constexpr bool kHasFma = false;
#endif

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kLn2Hi = 0.693145751953125f;  // 15 significant bits: n * kLn2Hi is exact
constexpr float kLn2Lo = 1.428606820309417e-6f;
constexpr float kLog2e = 1.44269504088896341f;
constexpr float kMagic = 12582912.0f;  // 1.5 * 2^23: adding it rounds to an integer

inline float madd(float a, float b, float c) {
  if constexpr (kHasFma) return __builtin_fmaf(a, b, c);
  return a * b + c;
}
inline double madd(double a, double b, double c) {
  if constexpr (kHasFma) return __builtin_fma(a, b, c);
  return a * b + c;
}

inline float absolute(float x) { return bit_cast<float>(bit_cast<uint32_t>(x) & 0x7fffffffu); }
inline double absolute(double x) {
  return bit_cast<double>(bit_cast<uint64_t>(x) & 0x7fffffffffffffffull);
}
inline float with_sign(float magnitude, float sign) {
  return bit_cast<float>(bit_cast<uint32_t>(magnitude) | (bit_cast<uint32_t>(sign) & 0x80000000u));
}
inline double with_sign(double magnitude, double sign) {
  return bit_cast<double>(bit_cast<uint64_t>(magnitude) |
                          (bit_cast<uint64_t>(sign) & 0x8000000000000000ull));
}

inline float pow2(int32_t n) { return bit_cast<float>((n + 127) << 23); }

// Horner's rule; coefficients from the constant upwards.
template <class T>
inline T horner(T, T last) {
  return last;
}
template <class T, class... Rest>
inline T horner(T x, T first, Rest... rest) {
  return madd(horner(x, rest...), x, first);
}

// x = n ln 2 + r with |r| <= ln 2 / 2.
struct ExpParts {
  int32_t n;
  float r;
};

inline ExpParts exp_parts(float x) {
  const float shifted = madd(x, kLog2e, kMagic);
  const float n = shifted - kMagic;
  const float r = madd(n, -kLn2Lo, madd(n, -kLn2Hi, x));
  return {bit_cast<int32_t>(shifted) - 0x4b400000, r};
}

// (e^r - 1 - r) / r^2
inline float exp_tail(float r) {
  return horner(r, 0.5f, 1.666657700e-01f, 4.166655463e-02f, 8.363177630e-03f, 1.392618181e-03f);
}

inline float exp_f32(float x) {
  const float high = x > 89.0f ? 89.0f : x;
  const ExpParts p = exp_parts(high < -104.0f ? -104.0f : high);
  const float value = madd(p.r * p.r, exp_tail(p.r), p.r) + 1.0f;
  const int32_t half = p.n >> 1;
  return value * pow2(half) * pow2(p.n - half);
}

inline float expm1_f32(float x) {
  const float high = x > 89.0f ? 89.0f : x;
  const ExpParts p = exp_parts(high < -20.0f ? -20.0f : high);
  const float value = madd(p.r * p.r, exp_tail(p.r), p.r);
  const float scale = pow2(p.n - 1);  // half of 2^n, which overflows for n = 128
  const float result = (madd(value, scale, scale - 0.5f)) * 2.0f;
  return x == 0.0f ? x : result;
}

// log(1 + f) + e ln 2 for f in [sqrt(1/2) - 1, sqrt(2) - 1].
inline float log_core(float f, float e) {
  const float s = f / (2.0f + f);
  const float z = s * s;
  const float tail = z * horner(z, 6.666666655e-01f, 4.000012200e-01f, 2.855080255e-01f,
                                2.333096404e-01f);
  const float half = 0.5f * f * f;
  const float low = madd(s, half + tail, e * kLn2Lo);
  return madd(e, kLn2Hi, f - (half - low));
}

struct LogParts {
  float f;
  float e;
};

// x = 2^e (1 + f); subnormals are scaled first.
inline LogParts log_parts(float x) {
  const bool small = x < 1.17549435e-38f;
  const float scaled = small ? x * 8388608.0f : x;
  const uint32_t shifted = bit_cast<uint32_t>(scaled) - 0x3f3504f3u;
  const float e = static_cast<float>(static_cast<int32_t>(shifted) >> 23);
  const float m = bit_cast<float>((shifted & 0x7fffffu) + 0x3f3504f3u);
  return {m - 1.0f, small ? e - 23.0f : e};
}

inline float log_edges(float x, float value) {
  value = x < kInf ? value : x;
  value = x == 0.0f ? -kInf : value;
  return x < 0.0f ? kNan : value;
}

inline float log_f32(float x) {
  const LogParts p = log_parts(x);
  return log_edges(x, log_core(p.f, p.e));
}

inline float log2_f32(float x) {
  const LogParts p = log_parts(x);
  return log_edges(x, madd(log_core(p.f, 0.0f), kLog2e, p.e));
}

inline float log10_f32(float x) {
  const LogParts p = log_parts(x);
  const float mantissa = madd(log_core(p.f, 0.0f), 0.43429448190325183f, p.e * 7.9034149e-7f);
  return log_edges(x, madd(p.e, 0.30102920532226562f, mantissa));
}

// Kahan's correction: log(u) plus the part of x that 1 + x lost.
inline float log1p_f32(float x) {
  const float u = 1.0f + x;
  const LogParts p = log_parts(u);
  const float lost = x > 1.0f ? 1.0f - (u - x) : x - (u - 1.0f);
  const float value = log_core(p.f, p.e) + lost / u;
  const float edge = log_edges(u, value);
  return absolute(x) < 1e-7f ? x : edge;
}

inline float tanh_f32(float x) {
  const float a = absolute(x);
  const float z = a * a;
  const float small = madd(a * z, horner(z, -3.333333323e-01f, 1.333331287e-01f, -5.396155178e-02f,
                                         2.178832200e-02f, -8.410070804e-03f, 2.370765644e-03f), a);
  const float large = 1.0f - 2.0f / (exp_f32(a > 10.0f ? 20.0f : 2.0f * a) + 1.0f);
  return with_sign(a < 0.6f ? small : large, x);
}

inline float sigmoid_f32(float x) {
  const float e = exp_f32(-absolute(x));
  return (x < 0.0f ? e : 1.0f) / (1.0f + e);
}

// Below 1 an odd polynomial, above it 1 - exp(polynomial fitted to log erfc).
inline float erf_f32(float x) {
  const float a = absolute(x);
  const float z = a * a;
  const float small = a * horner(z, 1.128379167e+00f, -3.761263847e-01f, 1.128378250e-01f,
                                 -2.686543073e-02f, 5.221031807e-03f, -8.484080393e-04f,
                                 1.126595894e-04f, -9.667044322e-06f);
  const float c = a > 4.0f ? 4.0f : a;
  const float log_erfc = horner(c, 3.201380501e-04f, -1.130233435e+00f, -6.318260516e-01f,
                                -1.100800830e-01f, 2.642113601e-02f, -4.759596294e-03f,
                                5.968056258e-04f, -4.605804271e-05f, 1.637151416e-06f);
  return with_sign(a < 1.0f ? small : 1.0f - exp_f32(log_erfc), x);
}

// x = n pi/2 + r, reduced in double: exact enough up to |x| = kTrigLimit.
constexpr float kTrigLimit = 1.0e6f;

struct TrigParts {
  float r;
  int32_t quadrant;
};

inline TrigParts trig_parts(float x) {
  constexpr double magic = 6755399441055744.0;  // 1.5 * 2^52
  const double wide = x;
  const double shifted = madd(wide, 0.63661977236758134308, magic);
  const double n = shifted - magic;
  const double high = madd(n, -1.5707963267341256, wide);  // the first 33 bits of pi / 2
  const double r = madd(n, -6.0771005065061922e-11, high);
  return {static_cast<float>(r), static_cast<int32_t>(bit_cast<int64_t>(shifted))};
}

inline float sin_quadrant(float r, int32_t quadrant) {
  const float z = r * r;
  const float s = madd(r * z, horner(z, -1.666666666e-01f, 8.333331852e-03f, -1.984007467e-04f,
                                     2.724836478e-06f), r);
  const float c = madd(z * z, horner(z, 4.166666666e-02f, -1.388888765e-03f, 2.480059030e-05f,
                                     -2.729965631e-07f), 1.0f - 0.5f * z);
  const float value = (quadrant & 1) != 0 ? c : s;
  return bit_cast<float>(bit_cast<uint32_t>(value) ^
                         (static_cast<uint32_t>(quadrant & 2) << 30));
}

inline float sin_f32(float x) {
  const TrigParts p = trig_parts(x);
  return sin_quadrant(p.r, p.quadrant);
}

inline float cos_f32(float x) {
  const TrigParts p = trig_parts(x);
  return sin_quadrant(p.r, p.quadrant + 1);
}

// log of a positive float, in double, to about 2^-40.
inline double log_wide(float x) {
  const LogParts p = log_parts(x);
  const double f = p.f;
  const double s = f / (2.0 + f);
  const double z = s * s;
  const double series = horner(z, 2.0, 2.0 / 3, 2.0 / 5, 2.0 / 7, 2.0 / 9, 2.0 / 11, 2.0 / 13);
  return madd(static_cast<double>(p.e), 0.69314718055994530942, s * series);
}

inline double exp_wide(double x) {
  constexpr double magic = 6755399441055744.0;
  const double high = x > 100.0 ? 100.0 : x;
  const double c = high < -120.0 ? -120.0 : high;
  const double shifted = madd(c, 1.4426950408889634074, magic);
  const double r = madd(shifted - magic, -0.69314718055994530942, c);
  const double value = horner(r, 1.0, 1.0, 1.0 / 2, 1.0 / 6, 1.0 / 24, 1.0 / 120, 1.0 / 720,
                              1.0 / 5040, 1.0 / 40320, 1.0 / 362880);
  const uint64_t exponent = bit_cast<uint64_t>(shifted) << 52;
  return bit_cast<double>(bit_cast<uint64_t>(value) + exponent);
}

// |x|^y through double logarithms; then the sign and the special cases of IEEE 754.
inline float pow_f32(float x, float y) {
  const float a = absolute(x);
  const float ya = absolute(y);
  const double log_a = a == 0.0f ? -std::numeric_limits<double>::infinity()
                       : a < kInf ? log_wide(a)
                                  : static_cast<double>(a);
  float value = static_cast<float>(exp_wide(static_cast<double>(y) * log_a));
  const float whole = (ya + 8388608.0f) - 8388608.0f;
  const bool is_whole = ya >= 8388608.0f || whole == ya;
  const int32_t low = static_cast<int32_t>(ya < 16777216.0f ? ya : 0.0f);
  const bool is_odd = is_whole && (low & 1) != 0;
  value = is_odd ? with_sign(value, x) : value;
  value = (x < 0.0f && !is_whole && a < kInf) ? kNan : value;
  value = (y == 0.0f || x == 1.0f || (x == -1.0f && ya == kInf)) ? 1.0f : value;
  return value;
}

// Inverse error function: Giles ("Approximating the erfinv function", 2010) gives the idea of a
// start in w = -log(1 - x^2); here the start is Winitzki's formula (2008), refined by three steps
// of Halley's method in double.
inline double erfinv_f64(double x) {
  if (!(absolute(x) < 1.0)) {
    return absolute(x) == 1.0 ? with_sign(std::numeric_limits<double>::infinity(), x)
                              : std::numeric_limits<double>::quiet_NaN();
  }
  constexpr double a = 0.147;
  const double magnitude = absolute(x);
  const double w = ::log1p(-magnitude * magnitude);
  const double t = 2.0 / (3.14159265358979323846 * a) + 0.5 * w;
  double y = ::sqrt(::sqrt(t * t - w / a) - t);
  if (magnitude < 1e-4) y = 0.88622692545275801365 * magnitude;
  for (int step = 0; step < 3; ++step) {
    const double miss = magnitude < 0.5 ? ::erf(y) - magnitude : (1.0 - magnitude) - ::erfc(y);
    const double newton = miss / (1.12837916709551257390 * ::exp(-y * y));
    y -= newton / (1.0 + y * newton);
  }
  return with_sign(y, x);
}

inline float erfinv_f32(float x) { return static_cast<float>(erfinv_f64(x)); }

}  // namespace
}  // namespace mixflow::kernels
