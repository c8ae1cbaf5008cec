// Binary operators and select.
#include "kernels/simd/loop.h"
#include "kernels/simd/parts.h"
#include "kernels/simd/vmath.h"

namespace mixflow::kernels {
namespace {

// Integer arithmetic wraps around; unsigned, because signed overflow is undefined.
inline int64_t wrap(uint64_t x) { return static_cast<int64_t>(x); }
inline uint64_t bits(int64_t x) { return static_cast<uint64_t>(x); }

struct Add {
  template <class T>
  static T run(T a, T b) {
    return a + b;
  }
  static int64_t run(int64_t a, int64_t b) { return wrap(bits(a) + bits(b)); }
};
struct Subtract {
  template <class T>
  static T run(T a, T b) {
    return a - b;
  }
  static int64_t run(int64_t a, int64_t b) { return wrap(bits(a) - bits(b)); }
};
struct Multiply {
  template <class T>
  static T run(T a, T b) {
    return a * b;
  }
  static int64_t run(int64_t a, int64_t b) { return wrap(bits(a) * bits(b)); }
};
struct Divide {
  template <class T>
  static T run(T a, T b) {
    return a / b;
  }
  // Division by zero gives 0, as in NumPy, and the most negative number stays itself.
  static int64_t run(int64_t a, int64_t b) {
    if (b == 0) return 0;
    return b == -1 ? wrap(0 - bits(a)) : a / b;
  }
};
struct Mod {
  static double fit(double r, double b) {
    if (r == 0.0) return with_sign(0.0, b);
    return (r < 0.0) != (b < 0.0) ? r + b : r;
  }
  static double run(double a, double b) { return fit(::fmod(a, b), b); }
  static float run(float a, float b) {
    const float r = ::fmodf(a, b);
    if (r == 0.0f) return with_sign(0.0f, b);
    return (r < 0.0f) != (b < 0.0f) ? r + b : r;
  }
  static int64_t run(int64_t a, int64_t b) {
    if (b == 0 || b == -1) return 0;
    const int64_t r = a % b;
    return r != 0 && (r < 0) != (b < 0) ? r + b : r;
  }
};
struct Power {
  static float run(float a, float b) { return pow_f32(a, b); }
  static double run(double a, double b) { return ::pow(a, b); }
  static int64_t run(int64_t a, int64_t b) {
    if (b < 0) return a == 1 ? 1 : a == -1 ? ((b & 1) != 0 ? -1 : 1) : 0;
    uint64_t result = 1;
    uint64_t base = bits(a);
    for (; b > 0; b >>= 1, base *= base) {
      if ((b & 1) != 0) result *= base;
    }
    return wrap(result);
  }
};
struct Maximum {
  template <class T>
  static T run(T a, T b) {
    return (a > b || a != a) ? a : b;
  }
};
struct Minimum {
  template <class T>
  static T run(T a, T b) {
    return (a < b || a != a) ? a : b;
  }
};
struct Hypot {
  static float run(float a, float b) { return ::hypotf(a, b); }
  static double run(double a, double b) { return ::hypot(a, b); }
  static int64_t run(int64_t a, int64_t b) {
    return static_cast<int64_t>(::hypot(static_cast<double>(a), static_cast<double>(b)));
  }
};
struct Arctan2 {
  static float run(float a, float b) { return ::atan2f(a, b); }
  static double run(double a, double b) { return ::atan2(a, b); }
  static int64_t run(int64_t a, int64_t b) {
    return static_cast<int64_t>(::atan2(static_cast<double>(a), static_cast<double>(b)));
  }
};
struct Equal {
  template <class T>
  static T run(T a, T b) {
    return a == b ? T(1) : T(0);
  }
};
struct NotEqual {
  template <class T>
  static T run(T a, T b) {
    return a != b ? T(1) : T(0);
  }
};
struct Less {
  template <class T>
  static T run(T a, T b) {
    return a < b ? T(1) : T(0);
  }
};
struct LessEqual {
  template <class T>
  static T run(T a, T b) {
    return a <= b ? T(1) : T(0);
  }
};
struct Greater {
  template <class T>
  static T run(T a, T b) {
    return a > b ? T(1) : T(0);
  }
};
struct GreaterEqual {
  template <class T>
  static T run(T a, T b) {
    return a >= b ? T(1) : T(0);
  }
};
struct LogicalAnd {
  template <class T>
  static T run(T a, T b) {
    return (a != 0) & (b != 0) ? T(1) : T(0);
  }
};
struct LogicalOr {
  template <class T>
  static T run(T a, T b) {
    return (a != 0) | (b != 0) ? T(1) : T(0);
  }
};
struct LogicalXor {
  template <class T>
  static T run(T a, T b) {
    return (a != 0) != (b != 0) ? T(1) : T(0);
  }
};
struct Select {
  template <class T>
  static T run(T condition, T x, T y) {
    return condition != 0 ? x : y;
  }
};

template <class T>
LoopSet binary_of(Op op) {
  switch (op) {
    case Op::add: return set2<Add, T>();
    case Op::subtract: return set2<Subtract, T>();
    case Op::multiply: return set2<Multiply, T>();
    case Op::divide: return set2<Divide, T>();
    case Op::mod: return set2<Mod, T>();
    case Op::power: return set2<Power, T>();
    case Op::maximum: return set2<Maximum, T>();
    case Op::minimum: return set2<Minimum, T>();
    case Op::hypot: return set2<Hypot, T>();
    case Op::arctan2: return set2<Arctan2, T>();
    case Op::equal: return set2<Equal, T>();
    case Op::not_equal: return set2<NotEqual, T>();
    case Op::less: return set2<Less, T>();
    case Op::less_equal: return set2<LessEqual, T>();
    case Op::greater: return set2<Greater, T>();
    case Op::greater_equal: return set2<GreaterEqual, T>();
    case Op::logical_and: return set2<LogicalAnd, T>();
    case Op::logical_or: return set2<LogicalOr, T>();
    case Op::logical_xor: return set2<LogicalXor, T>();
    default: return {};
  }
}

}  // namespace

namespace MIXFLOW_ISA {

LoopSet binary(Op op, Domain domain) {
  return with_domain(
      domain, [op](auto tag) { return binary_of<typename decltype(tag)::type>(op); });
}

LoopSet select(Domain domain) {
  return with_domain(domain, [](auto tag) { return set3<Select, typename decltype(tag)::type>(); });
}

}  // namespace MIXFLOW_ISA
}  // namespace mixflow::kernels
