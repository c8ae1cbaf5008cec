#include "kernels/program.h"

#include <cstdlib>
#include <sstream>
#include <unordered_map>

#include "base/error.h"

namespace mixflow::kernels {

const std::vector<OpInfo>& all_ops() {
  static const std::vector<OpInfo> ops = {
      {"negative", Op::negative, 1, 80},
      {"abs", Op::abs, 1, 80},
      {"sign", Op::sign, 1, 100},
      {"round", Op::round, 1, 150},
      {"rint", Op::rint, 1, 100},
      {"ceil", Op::ceil, 1, 100},
      {"floor", Op::floor, 1, 100},
      {"trunc", Op::trunc, 1, 100},
      {"fix", Op::trunc, 1, 100},
      {"square", Op::square, 1, 80},
      {"sqrt", Op::sqrt, 1, 300},
      {"rsqrt", Op::rsqrt, 1, 600},
      {"cbrt", Op::cbrt, 1, 10000},
      {"rcbrt", Op::rcbrt, 1, 10000},
      {"exp", Op::exp, 1, 400},
      {"expm1", Op::expm1, 1, 500},
      {"log", Op::log, 1, 500},
      {"log2", Op::log2, 1, 500},
      {"log10", Op::log10, 1, 500},
      {"log1p", Op::log1p, 1, 900},
      {"sin", Op::sin, 1, 900},
      {"cos", Op::cos, 1, 900},
      {"tan", Op::tan, 1, 15000},
      {"arcsin", Op::arcsin, 1, 10000},
      {"arccos", Op::arccos, 1, 10000},
      {"arctan", Op::arctan, 1, 10000},
      {"sinh", Op::sinh, 1, 10000},
      {"cosh", Op::cosh, 1, 10000},
      {"tanh", Op::tanh, 1, 700},
      {"arcsinh", Op::arcsinh, 1, 15000},
      {"arccosh", Op::arccosh, 1, 15000},
      {"arctanh", Op::arctanh, 1, 15000},
      {"reciprocal", Op::reciprocal, 1, 300},
      {"relu", Op::relu, 1, 80},
      {"sigmoid", Op::sigmoid, 1, 700},
      {"softsign", Op::softsign, 1, 300},
      {"erf", Op::erf, 1, 1000},
      {"erfinv", Op::erfinv, 1, 30000},
      {"gamma", Op::gamma, 1, 60000},
      {"gammaln", Op::gammaln, 1, 30000},
      {"logical_not", Op::logical_not, 1, 80},
      {"degrees", Op::degrees, 1, 80},
      {"radians", Op::radians, 1, 80},
      {"identity", Op::identity, 1, 80},
      {"add", Op::add, 2, 120},
      {"subtract", Op::subtract, 2, 120},
      {"multiply", Op::multiply, 2, 120},
      {"divide", Op::divide, 2, 300},
      {"mod", Op::mod, 2, 15000},
      {"power", Op::power, 2, 3000},
      {"maximum", Op::maximum, 2, 120},
      {"minimum", Op::minimum, 2, 120},
      {"hypot", Op::hypot, 2, 10000},
      {"arctan2", Op::arctan2, 2, 20000},
      {"equal", Op::equal, 2, 120},
      {"not_equal", Op::not_equal, 2, 120},
      {"less", Op::less, 2, 120},
      {"less_equal", Op::less_equal, 2, 120},
      {"greater", Op::greater, 2, 120},
      {"greater_equal", Op::greater_equal, 2, 120},
      {"logical_and", Op::logical_and, 2, 120},
      {"logical_or", Op::logical_or, 2, 120},
      {"logical_xor", Op::logical_xor, 2, 120},
      {"select", Op::select, 3, 160},
      {"cast", Op::cast, 1, 120},
  };
  return ops;
}

const OpInfo* find_op(const std::string& name) {
  static const auto table = [] {
    std::unordered_map<std::string, const OpInfo*> map;
    for (const OpInfo& info : all_ops()) map[info.name] = &info;
    return map;
  }();
  const auto it = table.find(name);
  return it == table.end() ? nullptr : it->second;
}

namespace {

std::vector<std::string> words_of(const std::string& line) {
  std::istringstream stream(line);
  std::vector<std::string> words;
  for (std::string word; stream >> word;) words.push_back(word);
  return words;
}

bool is_numbered(const std::string& word, char letter) {
  if (word.size() < 2 || word[0] != letter) return false;
  return word.find_first_not_of("0123456789", 1) == std::string::npos;
}

// Builds a Program one instruction at a time.
class Builder {
 public:
  explicit Builder(const std::vector<DType>& inputs) : inputs_(static_cast<int>(inputs.size())) {
    for (int i = 0; i < inputs_; ++i) {
      Value value;
      value.kind = Value::Kind::input;
      value.dtype = inputs[i];
      value.input = i;
      program_.values.push_back(value);
    }
  }

  void instruction(const std::string& line, const std::vector<std::string>& words) {
    check(words.size() >= 4 && words[1] == "=" && is_numbered(words[0], 't'),
          "[fused] expected 't<n> = op args', got '", line, "'");
    check(names_.count(words[0]) == 0, "[fused] expected one definition of ", words[0],
          ", got a second: '", line, "'");
    std::vector<int> args;
    for (size_t i = 3; i < words.size(); ++i) args.push_back(operand(words[i], line));
    names_[words[0]] = apply(words[2], args, line);
  }

  int apply(const std::string& op_word, std::vector<int> args, const std::string& line) {
    const size_t colon = op_word.find(':');
    const OpInfo* info = find_op(op_word.substr(0, colon));
    check(info != nullptr, "[fused] expected an elementwise operator, got '", op_word, "'");
    check(static_cast<int>(args.size()) == info->arity, "[fused] expected ", info->arity,
          " operands of ", info->name, ", got '", line, "'");
    check((info->op == Op::cast) == (colon != std::string::npos),
          "[fused] expected a dtype on cast and on nothing else, got '", line, "'");
    if (info->op == Op::cast) return cast(*info, args[0], op_word.substr(colon + 1));
    return plain(*info, args, line);
  }

  int cast(const OpInfo& info, int arg, const std::string& code) {
    const auto dtype = static_cast<DType>(std::atoi(code.c_str()));
    check(size_of(dtype) != 0, "[fused] expected a dtype code after cast:, got '", code, "'");
    return emit(info.op, info.cost, {arg}, dtype);
  }

  int plain(const OpInfo& info, std::vector<int> args, const std::string& line) {
    const size_t first = info.op == Op::select ? 1 : 0;
    const DType dtype = common_dtype(args, first, line);
    for (int& arg : args) arg = typed(arg, dtype);
    if (first == 1 && domain_of(program_.values[args[0]].dtype) != domain_of(dtype)) {
      args[0] = emit(Op::nonzero, 100, {args[0]}, dtype);
    }
    return emit(info.op, info.cost, args, dtype);
  }

  void outputs(const std::vector<std::string>& words, const std::vector<DType>& dtypes) {
    check(words.size() == dtypes.size() + 1, "[fused] expected ", dtypes.size(),
          " names after out, got ", words.size() - 1);
    for (size_t i = 0; i < dtypes.size(); ++i) output(operand(words[i + 1], "out"), dtypes[i]);
  }

  void output(int value, DType dtype) {
    value = typed(value, dtype);
    const DType got = program_.values[value].dtype;
    check(got == dtype, "[fused] expected output ", program_.outputs.size(), " of dtype ",
          name_of(got), ", got ", name_of(dtype));
    program_.outputs.push_back(value);
  }

  Program take() { return std::move(program_); }

 private:
  int operand(const std::string& word, const std::string& line) {
    if (is_numbered(word, 'i')) {
      const int index = std::atoi(word.c_str() + 1);
      check(index < inputs_, "[fused] expected inputs below i", inputs_, ", got '", line, "'");
      return index;
    }
    if (is_numbered(word, 't')) {
      const auto it = names_.find(word);
      check(it != names_.end(), "[fused] expected ", word, " to be defined before '", line, "'");
      return it->second;
    }
    return literal(word, line);
  }

  int literal(const std::string& word, const std::string& line) {
    char* end = nullptr;
    Value value;
    value.kind = Value::Kind::literal;
    value.number = std::strtod(word.c_str(), &end);
    check(!word.empty() && *end == '\0', "[fused] expected a name or a number, got '", word,
          "' in '", line, "'");
    value.integer = std::strtoll(word.c_str(), &end, 10);
    if (*end != '\0') value.integer = static_cast<int64_t>(value.number);
    untyped_.resize(program_.values.size(), false);
    untyped_.push_back(true);
    program_.values.push_back(value);
    return static_cast<int>(program_.values.size()) - 1;
  }

  bool is_untyped(int value) const {
    return static_cast<size_t>(value) < untyped_.size() && untyped_[value];
  }

  int typed(int value, DType dtype) {
    if (!is_untyped(value)) return value;
    program_.values[value].dtype = dtype;
    untyped_[value] = false;
    return value;
  }

  DType common_dtype(const std::vector<int>& args, size_t first, const std::string& line) const {
    int leader = -1;
    for (size_t i = first; i < args.size(); ++i) {
      if (is_untyped(args[i])) continue;
      if (leader < 0) leader = args[i];
      const DType a = program_.values[leader].dtype;
      const DType b = program_.values[args[i]].dtype;
      check(a == b, "[fused] expected operands of one dtype, got ", name_of(a), " and ",
            name_of(b), " in '", line, "'");
    }
    if (leader >= 0) return program_.values[leader].dtype;
    return inputs_ > 0 ? program_.values[0].dtype : DType::float32;
  }

  int emit(Op op, double cost, const std::vector<int>& args, DType dtype) {
    Instruction instruction{op, static_cast<int>(args.size()), {-1, -1, -1}, 0, cost};
    for (size_t i = 0; i < args.size(); ++i) instruction.args[i] = args[i];
    instruction.result = static_cast<int>(program_.values.size());
    Value value;
    value.dtype = dtype;
    program_.values.push_back(value);
    program_.instructions.push_back(instruction);
    return instruction.result;
  }

  int inputs_;
  Program program_;
  std::vector<bool> untyped_;  // literals whose dtype is not decided yet
  std::unordered_map<std::string, int> names_;
};

}  // namespace

Program parse_program(const std::string& text, const std::vector<DType>& inputs,
                      const std::vector<DType>& outputs) {
  Builder builder(inputs);
  std::istringstream stream(text);
  bool ended = false;
  for (std::string line; std::getline(stream, line, ';');) {
    const std::vector<std::string> words = words_of(line);
    if (words.empty()) continue;
    check(!ended, "[fused] expected nothing after out, got '", line, "'");
    ended = words[0] == "out";
    if (ended) {
      builder.outputs(words, outputs);
    } else {
      builder.instruction(line, words);
    }
  }
  check(ended, "[fused] expected a last instruction 'out ...', got none in '", text, "'");
  return builder.take();
}

Program single_program(const OpInfo& info, const std::vector<DType>& inputs, DType output) {
  Builder builder(inputs);
  std::vector<int> args;
  for (size_t i = 0; i < inputs.size(); ++i) args.push_back(static_cast<int>(i));
  check(static_cast<int>(inputs.size()) == info.arity, "[", info.name, "] expected ", info.arity,
        " inputs, got ", inputs.size());
  std::string word = info.name;
  if (info.op == Op::cast) word += ":" + std::to_string(static_cast<int>(output));
  builder.output(builder.apply(word, args, info.name), output);
  return builder.take();
}

}  // namespace mixflow::kernels
