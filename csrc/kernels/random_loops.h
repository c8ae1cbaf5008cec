// The inner loops of random draws, one table per instruction set.
#pragma once

#include <cstdint>

#include "kernels/isa.h"

namespace mixflow::kernels {

struct PhiloxKey {
  uint64_t seed;
  uint64_t draw;
};

struct RandomTable {
  // Words 4 * block ... 4 * (block + blocks) - 1 of a draw.
  void (*words)(const PhiloxKey& key, int64_t block, int64_t blocks, uint32_t* out);
  // Standard normals by the method of Box and Muller (1958), from `pairs` pairs of words.
  void (*normal32)(const uint32_t* words, int64_t pairs, float* out);
  void (*normal64)(const uint32_t* words, int64_t pairs, double* out);
};

namespace isa_baseline {
extern const RandomTable random_table;
}
namespace isa_avx2 {
extern const RandomTable random_table;
}
namespace isa_avx512 {
extern const RandomTable random_table;
}

inline const RandomTable& random_table() { return MIXFLOW_PICK(random_table); }

}  // namespace mixflow::kernels
