#include "kernels/fused_code.h"

#include <algorithm>
#include <cstring>
#include <limits>

namespace mixflow::kernels {
namespace {

constexpr int kNever = std::numeric_limits<int>::max();

// While compiling, registers and outputs have negative provisional numbers, because the number of
// registers is known only at the end.
constexpr int kRegisterBase = -1000000;
constexpr int kOutputBase = -2000000;

class Compiler {
 public:
  Compiler(const Program& program, int inputs)
      : program_(program), slot_(program.values.size(), 0) {
    code_.inputs = inputs;
    code_.outputs = static_cast<int>(program.outputs.size());
    place_inputs_and_literals();
    find_last_uses();
  }

  Code compile() {
    const int count = static_cast<int>(program_.instructions.size());
    for (int i = 0; i < count; ++i) instruction(i);
    finish_outputs();
    number_slots();
    return std::move(code_);
  }

 private:
  const Value& value(int v) const { return program_.values[v]; }
  bool is_raw(int v) const {  // an input that is used in its memory form
    return value(v).kind == Value::Kind::input && is_direct(value(v).dtype);
  }

  void place_inputs_and_literals() {
    for (size_t v = 0; v < program_.values.size(); ++v) {
      const Value& item = program_.values[v];
      if (size_of(item.dtype) == 8 || domain_of(item.dtype) != Domain::f32) code_.wide = true;
      if (item.kind == Value::Kind::input) slot_[v] = item.input;
      if (item.kind != Value::Kind::literal) continue;
      slot_[v] = code_.inputs + static_cast<int>(code_.literals.size());
      code_.literals.push_back(literal(item));
    }
    loaded_.resize(program_.values.size(), false);
  }

  static std::array<char, 8> literal(const Value& item) {
    std::array<char, 8> bytes{};
    with_domain(domain_of(item.dtype), [&](auto tag) {
      using T = typename decltype(tag)::type;
      const T number = std::is_same_v<T, int64_t> ? static_cast<T>(item.integer)
                                                  : static_cast<T>(item.number);
      std::memcpy(bytes.data(), &number, sizeof(T));
    });
    return bytes;
  }

  void find_last_uses() {
    last_use_.assign(program_.values.size(), -1);
    std::vector<bool> seen(program_.values.size(), false);
    for (size_t i = 0; i < program_.instructions.size(); ++i) {
      const Instruction& item = program_.instructions[i];
      for (int k = 0; k < item.arity; ++k) {
        const int v = item.args[k];
        last_use_[v] = static_cast<int>(i);
        const bool reads = value(v).kind == Value::Kind::input && (is_raw(v) || !seen[v]);
        if (reads) last_raw_read_ = static_cast<int>(i);
        seen[v] = true;
      }
    }
    for (int v : program_.outputs) {
      last_use_[v] = kNever;
      if (value(v).kind == Value::Kind::input) last_raw_read_ = kNever;
    }
  }

  int new_register() {
    if (free_.empty()) return kRegisterBase - code_.registers++;
    const int slot = free_.back();
    free_.pop_back();
    return slot;
  }

  // The slot of a value in domain form; an input in another form is loaded at its first use.
  int domain_slot(int v) {
    if (value(v).kind == Value::Kind::input && !is_raw(v) && !loaded_[v]) {
      const int target = new_register();
      step(loop_table().load(value(v).dtype), {slot_[v]}, target, 100);
      slot_[v] = target;
      loaded_[v] = true;
    }
    return slot_[v];
  }

  void step(const LoopSet& loops, std::vector<int> args, int target, double cost) {
    Step item;
    item.loops = loops;
    item.arity = static_cast<int>(args.size());
    std::copy(args.begin(), args.end(), item.args);
    item.target = target;
    code_.steps.push_back(item);
    code_.cost += cost;
  }

  LoopSet loops_of(const Instruction& item) const {
    const DType from = value(item.args[0]).dtype;
    const DType to = value(item.result).dtype;
    const LoopTable& table = loop_table();
    if (item.op == Op::cast) return table.cast(domain_of(from), to);
    if (item.op == Op::nonzero) return table.nonzero(domain_of(from), domain_of(to));
    if (item.arity == 1) return table.unary(item.op, domain_of(to));
    if (item.arity == 2) return table.binary(item.op, domain_of(to));
    return table.select(domain_of(to));
  }

  // The output that the result may be written to at once, or -1.
  int direct_output(int index, int result) const {
    if (index < last_raw_read_ || !is_direct(value(result).dtype)) return -1;
    const auto& outputs = program_.outputs;
    const auto it = std::find(outputs.begin(), outputs.end(), result);
    return it == outputs.end() ? -1 : static_cast<int>(it - outputs.begin());
  }

  void release(const Instruction& item, int index) {
    for (int k = 0; k < item.arity; ++k) {
      const int v = item.args[k];
      if (last_use_[v] != index || slot_[v] > kRegisterBase || slot_[v] <= kOutputBase) continue;
      if (std::find(free_.begin(), free_.end(), slot_[v]) == free_.end()) free_.push_back(slot_[v]);
    }
  }

  void instruction(int index) {
    const Instruction& item = program_.instructions[index];
    std::vector<int> args;
    bool same_width = true;
    for (int k = 0; k < item.arity; ++k) {
      args.push_back(domain_slot(item.args[k]));
      same_width &= domain_of(value(item.args[k]).dtype) == domain_of(value(item.result).dtype);
    }
    // A register may be overwritten by the step that reads it last, if elements keep their size.
    if (same_width) release(item, index);
    const int output = direct_output(index, item.result);
    const int target = output >= 0 ? kOutputBase - output : new_register();
    if (!same_width) release(item, index);
    const double width = domain_of(value(item.result).dtype) == Domain::f32 ? 1.0 : 2.0;
    step(loops_of(item), args, target, item.cost * width);
    slot_[item.result] = target;
    // A result that nobody reads must not keep its register.
    if (last_use_[item.result] < 0 && output < 0) free_.push_back(target);
  }

  void finish_outputs() {
    const auto& outputs = program_.outputs;
    if (outputs.size() > 1) {
      for (int v : outputs) keep_input(v);
    }
    for (size_t k = 0; k < outputs.size(); ++k) {
      const int target = kOutputBase - static_cast<int>(k);
      const int source = domain_slot(outputs[k]);
      if (source == target) continue;
      const DType dtype = value(outputs[k]).dtype;
      step(loop_table().store(domain_of(dtype), dtype), {source}, target, 100);
    }
  }

  // Several outputs may alias several inputs crosswise, so inputs that are outputs are saved first.
  void keep_input(int v) {
    if (value(v).kind != Value::Kind::input || !is_raw(v) || loaded_[v]) {
      domain_slot(v);
      return;
    }
    const int target = new_register();
    step(loop_table().load(value(v).dtype), {slot_[v]}, target, 100);
    slot_[v] = target;
    loaded_[v] = true;
  }

  void number_slots() {
    for (Step& item : code_.steps) {
      for (int& arg : item.args) arg = final_slot(arg);
      item.target = final_slot(item.target);
    }
  }

  int final_slot(int slot) const {
    if (slot <= kOutputBase) return code_.output_slot(kOutputBase - slot);
    if (slot <= kRegisterBase) return code_.register_slot(kRegisterBase - slot);
    return slot;
  }

  const Program& program_;
  Code code_;
  std::vector<int> slot_;
  std::vector<int> last_use_;
  std::vector<bool> loaded_;
  std::vector<int> free_;
  int last_raw_read_ = -1;
};

}  // namespace

Code compile_program(const Program& program, int inputs) {
  return Compiler(program, inputs).compile();
}

}  // namespace mixflow::kernels
