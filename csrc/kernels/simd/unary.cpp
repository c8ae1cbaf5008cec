// Unary operators that need no series: signs, roundings, roots.
#include "kernels/simd/loop.h"
#include "kernels/simd/parts.h"
#include "kernels/simd/vmath.h"

namespace mixflow::kernels {
namespace {

// Rounding to an integer by adding and subtracting 2^23 (2^52): half to even.
inline float rint_of(float x) {
  const float a = absolute(x);
  const float r = (a + 8388608.0f) - 8388608.0f;
  return a < 8388608.0f ? with_sign(r, x) : x;
}
inline double rint_of(double x) {
  const double a = absolute(x);
  const double r = (a + 4503599627370496.0) - 4503599627370496.0;
  return a < 4503599627370496.0 ? with_sign(r, x) : x;
}
template <class T>
inline T floor_of(T x) {
  const T r = rint_of(x);
  return r > x ? r - T(1) : r;
}
template <class T>
inline T trunc_of(T x) {
  return with_sign(floor_of(absolute(x)), x);
}

struct Identity {
  template <class T>
  static T run(T x) {
    return x;
  }
};
struct Negative {
  template <class T>
  static T run(T x) {
    return -x;
  }
  static int64_t run(int64_t x) { return static_cast<int64_t>(0 - static_cast<uint64_t>(x)); }
};
struct Abs {
  template <class T>
  static T run(T x) {
    return absolute(x);
  }
  static int64_t run(int64_t x) { return x < 0 ? Negative::run(x) : x; }
};
struct Sign {
  template <class T>
  static T run(T x) {
    return x > 0 ? T(1) : x < 0 ? T(-1) : T(0);  // 0 for NaN, as MXNet has it
  }
};
struct Round {
  template <class T>
  static T run(T x) {
    const T a = absolute(x);
    const T whole = floor_of(a);
    return with_sign(a - whole >= T(0.5) ? whole + T(1) : whole, x);
  }
  static int64_t run(int64_t x) { return x; }
};
struct Rint {  // half to the lower integer, as MXNet has it
  template <class T>
  static T run(T x) {
    const T low = floor_of(x);
    return low + (x - low > T(0.5) ? T(1) : T(0));
  }
  static int64_t run(int64_t x) { return x; }
};
struct Ceil {
  template <class T>
  static T run(T x) {
    return -floor_of(-x);
  }
  static int64_t run(int64_t x) { return x; }
};
struct Floor {
  template <class T>
  static T run(T x) {
    return floor_of(x);
  }
  static int64_t run(int64_t x) { return x; }
};
struct Trunc {
  template <class T>
  static T run(T x) {
    return trunc_of(x);
  }
  static int64_t run(int64_t x) { return x; }
};
struct Square {
  template <class T>
  static T run(T x) {
    return x * x;
  }
  static int64_t run(int64_t x) {
    return static_cast<int64_t>(static_cast<uint64_t>(x) * static_cast<uint64_t>(x));
  }
};
struct Sqrt {
  static float run(float x) { return __builtin_sqrtf(x); }
  static double run(double x) { return __builtin_sqrt(x); }
  static int64_t run(int64_t x) { return static_cast<int64_t>(::sqrt(static_cast<double>(x))); }
};
struct Rsqrt {
  static float run(float x) { return 1.0f / __builtin_sqrtf(x); }
  static double run(double x) { return 1.0 / __builtin_sqrt(x); }
  static int64_t run(int64_t x) {
    return static_cast<int64_t>(1.0 / ::sqrt(static_cast<double>(x)));
  }
};
struct Reciprocal {
  template <class T>
  static T run(T x) {
    return T(1) / x;
  }
  static int64_t run(int64_t x) { return x == 1 || x == -1 ? x : 0; }
};
struct Relu {
  template <class T>
  static T run(T x) {
    return x < T(0) ? T(0) : x;  // a NaN stays
  }
};
struct Softsign {
  template <class T>
  static T run(T x) {
    return x / (T(1) + absolute(x));
  }
  static int64_t run(int64_t) { return 0; }
};
struct LogicalNot {
  template <class T>
  static T run(T x) {
    return x == 0 ? T(1) : T(0);
  }
};
struct Degrees {
  template <class T>
  static T run(T x) {
    return static_cast<T>(x * T(57.295779513082320877));
  }
  static int64_t run(int64_t x) { return static_cast<int64_t>(run(static_cast<double>(x))); }
};
struct Radians {
  template <class T>
  static T run(T x) {
    return static_cast<T>(x * T(0.017453292519943295769));
  }
  static int64_t run(int64_t x) { return static_cast<int64_t>(run(static_cast<double>(x))); }
};

template <class T>
LoopSet unary_of(Op op) {
  switch (op) {
    case Op::identity: return set1<Identity, T, T>();
    case Op::negative: return set1<Negative, T, T>();
    case Op::abs: return set1<Abs, T, T>();
    case Op::sign: return set1<Sign, T, T>();
    case Op::round: return set1<Round, T, T>();
    case Op::rint: return set1<Rint, T, T>();
    case Op::ceil: return set1<Ceil, T, T>();
    case Op::floor: return set1<Floor, T, T>();
    case Op::trunc: return set1<Trunc, T, T>();
    case Op::square: return set1<Square, T, T>();
    case Op::sqrt: return set1<Sqrt, T, T>();
    case Op::rsqrt: return set1<Rsqrt, T, T>();
    case Op::reciprocal: return set1<Reciprocal, T, T>();
    case Op::relu: return set1<Relu, T, T>();
    case Op::softsign: return set1<Softsign, T, T>();
    case Op::logical_not: return set1<LogicalNot, T, T>();
    case Op::degrees: return set1<Degrees, T, T>();
    case Op::radians: return set1<Radians, T, T>();
    default: return {};
  }
}

}  // namespace

namespace MIXFLOW_ISA {

LoopSet unary(Op op, Domain domain) {
  const LoopSet set = with_domain(
      domain, [op](auto tag) { return unary_of<typename decltype(tag)::type>(op); });
  return set.by_scalars[0] != nullptr ? set : unary_math(op, domain);
}

}  // namespace MIXFLOW_ISA
}  // namespace mixflow::kernels
