// Fused programs: the text of docs/design/primitives.md, parsed and checked. Running them is the
// work of fused.cpp and of the loops in simd/.
#pragma once

#include <string>
#include <vector>

#include "base/dtype.h"
#include "kernels/element.h"

namespace mixflow::kernels {

enum class Op : uint8_t {
  negative, abs, sign, round, rint, ceil, floor, trunc, square, sqrt, rsqrt, cbrt, rcbrt,
  exp, expm1, log, log2, log10, log1p, sin, cos, tan, arcsin, arccos, arctan, sinh, cosh, tanh,
  arcsinh, arccosh, arctanh, reciprocal, relu, sigmoid, softsign, erf, erfinv, gamma, gammaln,
  logical_not, degrees, radians, identity,
  add, subtract, multiply, divide, mod, power, maximum, minimum, hypot, arctan2, equal, not_equal,
  less, less_equal, greater, greater_equal, logical_and, logical_or, logical_xor,
  select, cast,
  nonzero,  // internal: the condition of a select, brought to the domain of its branches
};

struct OpInfo {
  const char* name;
  Op op;
  int arity;
  double cost;  // nanoseconds per 1000 elements, roughly
};

// Null when no elementwise primitive has this name.
const OpInfo* find_op(const std::string& name);
const std::vector<OpInfo>& all_ops();

struct Value {
  enum class Kind : uint8_t { input, literal, temporary };
  Kind kind = Kind::temporary;
  DType dtype = DType::float32;  // of literals: decided by the first use
  int input = -1;
  double number = 0.0;   // literals only
  int64_t integer = 0;   // literals only
};

struct Instruction {
  Op op;
  int arity;
  int args[3];   // value numbers
  int result;    // value number
  double cost;
};

struct Program {
  std::vector<Value> values;  // the inputs come first
  std::vector<Instruction> instructions;
  std::vector<int> outputs;  // value numbers
};

// Throws Error naming the instruction that is wrong.
Program parse_program(const std::string& text, const std::vector<DType>& inputs,
                      const std::vector<DType>& outputs);

// The program of one elementwise primitive.
Program single_program(const OpInfo& info, const std::vector<DType>& inputs, DType output);

}  // namespace mixflow::kernels
