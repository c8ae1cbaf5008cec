// A program made ready to run: steps over slots, registers assigned, outputs written in place
// where that cannot destroy an input that is still to be read.
#pragma once

#include <array>

#include "kernels/loops.h"
#include "kernels/program.h"

namespace mixflow::kernels {

// Slots are numbered: inputs, then literals, then registers, then outputs.
struct Step {
  LoopSet loops;
  int arity = 1;
  int args[3] = {-1, -1, -1};
  int target = -1;
};

struct Code {
  int inputs = 0;
  int outputs = 0;
  int registers = 0;
  std::vector<std::array<char, 8>> literals;  // in domain form
  std::vector<Step> steps;
  double cost = 0.0;      // nanoseconds per 1000 elements
  bool wide = false;      // some value needs 8 bytes

  int literal_slot(int i) const { return inputs + i; }
  int register_slot(int i) const { return inputs + static_cast<int>(literals.size()) + i; }
  int output_slot(int i) const { return register_slot(registers) + i; }
  int slots() const { return output_slot(outputs); }
};

Code compile_program(const Program& program, int inputs);

}  // namespace mixflow::kernels
