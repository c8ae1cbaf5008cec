#include "kernels/whole.h"

#include <algorithm>

namespace mixflow::kernels {
namespace {

const char* name_of(Op op) {
  for (const OpInfo& info : all_ops()) {
    if (info.op == op) return info.name;
  }
  return "?";
}

}  // namespace

std::string normal_form(const Program& program, std::vector<float>* literals) {
  const auto plain = [](const Value& value) { return value.dtype == DType::float32; };
  if (!std::all_of(program.values.begin(), program.values.end(), plain)) return "";
  std::vector<std::string> names(program.values.size());
  const auto name = [&](int v) {
    const Value& value = program.values[v];
    if (value.kind == Value::Kind::input) return "i" + std::to_string(value.input);
    if (value.kind == Value::Kind::temporary) return names[v];
    literals->push_back(static_cast<float>(value.number));
    return std::string("#");
  };
  std::string text;
  for (size_t i = 0; i < program.instructions.size(); ++i) {
    const Instruction& item = program.instructions[i];
    text += name_of(item.op);
    for (int k = 0; k < item.arity; ++k) text += " " + name(item.args[k]);
    text += ";";
    names[item.result] = "t" + std::to_string(i);
  }
  text += "out";
  for (int v : program.outputs) text += " " + name(v);
  return text;
}

const WholeProgram* find_whole(const std::string& text) {
  const WholeTable& table = MIXFLOW_PICK(whole_table);
  const auto end = table.programs + table.count;
  const auto it = std::find_if(table.programs, end,
                               [&](const WholeProgram& item) { return text == item.text; });
  return it == end ? nullptr : it;
}

}  // namespace mixflow::kernels
