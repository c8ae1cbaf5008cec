// Unary operators by series or by the C library. Integers go through double.
#include "kernels/simd/loop.h"
#include "kernels/simd/parts.h"
#include "kernels/simd/vmath.h"

namespace mixflow::kernels {
namespace {

template <float (*kFloat)(float), double (*kDouble)(double)>
struct Math {
  static float run(float x) { return kFloat(x); }
  static double run(double x) { return kDouble(x); }
  static int64_t run(int64_t x) { return static_cast<int64_t>(kDouble(static_cast<double>(x))); }
};

// The reentrant forms: lgamma itself writes a global.
float gammaln_f32(float x) {
  int sign = 0;
  return static_cast<float>(::lgamma_r(static_cast<double>(x), &sign));
}
double gammaln_f64(double x) {
  int sign = 0;
  return ::lgamma_r(x, &sign);
}
float gamma_f32(float x) { return static_cast<float>(::tgamma(static_cast<double>(x))); }
float rcbrt_f32(float x) { return 1.0f / ::cbrtf(x); }
double rcbrt_f64(double x) { return 1.0 / ::cbrt(x); }
double sigmoid_f64(double x) {
  const double e = ::exp(-absolute(x));
  return (x < 0.0 ? e : 1.0) / (1.0 + e);
}

// Vectorised while every argument of the block is small enough for the short reduction.
template <float (*kFast)(float), float (*kSlow)(float)>
struct Trig {
  static bool all_small(const float* x, int64_t n) {
    uint32_t largest = 0;
    for (int64_t i = 0; i < n; ++i) {
      const uint32_t a = bit_cast<uint32_t>(absolute(x[i]));
      largest = a > largest ? a : largest;
    }
    return largest <= bit_cast<uint32_t>(kTrigLimit);
  }
  static void loop(const void* pa, const void*, const void*, void* po, int64_t n) {
    const float* a = static_cast<const float*>(pa);
    float* out = static_cast<float*>(po);
    if (!all_small(a, n)) {
      for (int64_t i = 0; i < n; ++i) out[i] = kSlow(a[i]);
      return;
    }
#pragma GCC ivdep
    for (int64_t i = 0; i < n; ++i) out[i] = kFast(a[i]);
  }
  static void fill(const void* pa, const void*, const void*, void* po, int64_t n) {
    float value = 0.0f;
    loop(pa, nullptr, nullptr, &value, 1);
    float* out = static_cast<float*>(po);
    for (int64_t i = 0; i < n; ++i) out[i] = value;
  }
};

template <class T>
LoopSet trig_of(Op op) {
  using Sin = Math<::sinf, ::sin>;
  using Cos = Math<::cosf, ::cos>;
  return op == Op::sin ? set1<Sin, T, T>() : set1<Cos, T, T>();
}
template <>
LoopSet trig_of<float>(Op op) {
  using Sin = Trig<sin_f32, ::sinf>;
  using Cos = Trig<cos_f32, ::cosf>;
  return op == Op::sin ? LoopSet{{&Sin::loop, &Sin::fill}} : LoopSet{{&Cos::loop, &Cos::fill}};
}

template <class T, float (*kFloat)(float), double (*kDouble)(double)>
LoopSet math() {
  return set1<Math<kFloat, kDouble>, T, T>();
}

template <class T>
LoopSet library_of(Op op) {
  switch (op) {
    case Op::cbrt: return math<T, ::cbrtf, ::cbrt>();
    case Op::rcbrt: return math<T, rcbrt_f32, rcbrt_f64>();
    case Op::tan: return math<T, ::tanf, ::tan>();
    case Op::arcsin: return math<T, ::asinf, ::asin>();
    case Op::arccos: return math<T, ::acosf, ::acos>();
    case Op::arctan: return math<T, ::atanf, ::atan>();
    case Op::sinh: return math<T, ::sinhf, ::sinh>();
    case Op::cosh: return math<T, ::coshf, ::cosh>();
    case Op::arcsinh: return math<T, ::asinhf, ::asinh>();
    case Op::arccosh: return math<T, ::acoshf, ::acosh>();
    case Op::arctanh: return math<T, ::atanhf, ::atanh>();
    case Op::erfinv: return math<T, erfinv_f32, erfinv_f64>();
    case Op::gamma: return math<T, gamma_f32, ::tgamma>();
    case Op::gammaln: return math<T, gammaln_f32, gammaln_f64>();
    default: return {};
  }
}

template <class T>
LoopSet math_of(Op op) {
  switch (op) {
    case Op::exp: return math<T, exp_f32, ::exp>();
    case Op::expm1: return math<T, expm1_f32, ::expm1>();
    case Op::log: return math<T, log_f32, ::log>();
    case Op::log2: return math<T, log2_f32, ::log2>();
    case Op::log10: return math<T, log10_f32, ::log10>();
    case Op::log1p: return math<T, log1p_f32, ::log1p>();
    case Op::tanh: return math<T, tanh_f32, ::tanh>();
    case Op::sigmoid: return math<T, sigmoid_f32, sigmoid_f64>();
    case Op::erf: return math<T, erf_f32, ::erf>();
    case Op::sin:
    case Op::cos: return trig_of<T>(op);
    default: return library_of<T>(op);
  }
}

}  // namespace

namespace MIXFLOW_ISA {

LoopSet unary_math(Op op, Domain domain) {
  return with_domain(domain, [op](auto tag) { return math_of<typename decltype(tag)::type>(op); });
}

}  // namespace MIXFLOW_ISA
}  // namespace mixflow::kernels
