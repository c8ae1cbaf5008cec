// Programs that are so common that they are compiled whole: each element passes memory once, not
// once per instruction. The results are those of the instructions, bit by bit.
#pragma once

#include <cstdint>
#include <string>

#include "kernels/isa.h"
#include "kernels/program.h"

namespace mixflow::kernels {

// out[k][i] = f(in[..][i], literals) for i in [0, n). Outputs may be exactly the memory of inputs.
using WholeLoop = void (*)(const float* const* in, float* const* out, const float* literals,
                           int64_t n);

struct WholeProgram {
  const char* text;    // normal form, see normal_form
  const char* inputs;  // per input: 'f' one value per element, 's' one value for all
  WholeLoop run;
};

struct WholeTable {
  const WholeProgram* programs;
  int count;
};

namespace isa_baseline {
extern const WholeTable whole_table;
}
namespace isa_avx2 {
extern const WholeTable whole_table;
}
namespace isa_avx512 {
extern const WholeTable whole_table;
}

// The text of a program with '#' for every literal and results numbered by instruction; the literals
// in order of appearance go to `literals`. Empty when a value is not float32.
std::string normal_form(const Program& program, std::vector<float>* literals);

// Null when no such program is compiled whole.
const WholeProgram* find_whole(const std::string& text);

}  // namespace mixflow::kernels
