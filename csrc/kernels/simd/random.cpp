// Philox4x32-10 (Salmon, Moraes, Dror and Shaw, "Parallel random numbers: as easy as 1, 2, 3",
// 2011), 32 counters side by side, and normal draws.
#include "kernels/random_loops.h"
#include "kernels/simd/vmath.h"

namespace mixflow::kernels {
namespace {

constexpr int kSide = 32;  // loops of 16 would be unrolled before they are vectorised

struct Counters {
  uint32_t words[4][kSide];
};

inline void philox_round(Counters& c, uint32_t key0, uint32_t key1) {
  for (int i = 0; i < kSide; ++i) {
    const uint64_t p0 = uint64_t{0xD2511F53u} * c.words[0][i];
    const uint64_t p1 = uint64_t{0xCD9E8D57u} * c.words[2][i];
    const uint32_t w1 = c.words[1][i];
    const uint32_t w3 = c.words[3][i];
    c.words[0][i] = static_cast<uint32_t>(p1 >> 32) ^ w1 ^ key0;
    c.words[1][i] = static_cast<uint32_t>(p1);
    c.words[2][i] = static_cast<uint32_t>(p0 >> 32) ^ w3 ^ key1;
    c.words[3][i] = static_cast<uint32_t>(p0);
  }
}

void words(const PhiloxKey& key, int64_t block, int64_t blocks, uint32_t* out) {
  for (int64_t b = 0; b < blocks; b += kSide) {
    Counters c;
    for (int i = 0; i < kSide; ++i) {
      const auto counter = static_cast<uint64_t>(block + b + i);
      c.words[0][i] = static_cast<uint32_t>(counter);
      c.words[1][i] = static_cast<uint32_t>(counter >> 32);
      c.words[2][i] = static_cast<uint32_t>(key.draw);
      c.words[3][i] = static_cast<uint32_t>(key.draw >> 32);
    }
    auto key0 = static_cast<uint32_t>(key.seed);
    auto key1 = static_cast<uint32_t>(key.seed >> 32);
    for (int round = 0; round < 10; ++round) {
      philox_round(c, key0, key1);
      key0 += 0x9E3779B9u;
      key1 += 0xBB67AE85u;
    }
    const int64_t n = blocks - b < kSide ? blocks - b : kSide;
    for (int64_t i = 0; i < n; ++i) {
      for (int w = 0; w < 4; ++w) out[4 * (b + i) + w] = c.words[w][i];
    }
  }
}

constexpr double kTwoPi = 6.28318530717958647692;
constexpr double kUnit24 = 1.0 / 16777216.0;

void normal32(const uint32_t* words, int64_t pairs, float* out) {
  for (int64_t j = 0; j < pairs; ++j) {
    const float u1 = static_cast<float>(static_cast<int32_t>((words[2 * j] >> 8) + 1)) *
                     static_cast<float>(kUnit24);
    const float angle = static_cast<float>(static_cast<int32_t>(words[2 * j + 1] >> 8)) *
                        static_cast<float>(kUnit24 * kTwoPi);
    const float r = __builtin_sqrtf(-2.0f * log_f32(u1));
    out[2 * j] = r * cos_f32(angle);
    out[2 * j + 1] = r * sin_f32(angle);
  }
}

void normal64(const uint32_t* words, int64_t pairs, double* out) {
  for (int64_t j = 0; j < pairs; ++j) {
    const double u1 = ((words[2 * j] >> 8) + 1) * kUnit24;
    const double angle = (words[2 * j + 1] >> 8) * (kUnit24 * kTwoPi);
    const double r = ::sqrt(-2.0 * ::log(u1));
    out[2 * j] = r * ::cos(angle);
    out[2 * j + 1] = r * ::sin(angle);
  }
}

}  // namespace

namespace MIXFLOW_ISA {

extern const RandomTable random_table;
const RandomTable random_table = {words, normal32, normal64};

}  // namespace MIXFLOW_ISA
}  // namespace mixflow::kernels
