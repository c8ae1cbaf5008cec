// Convolution of images of few channels (1 to 4), stride 1: an image is copied once to rows of one
// pitch with the padding in place, so that all taps of a vector of places lie at fixed distances.
// Vectors run over places; what lies between the end of a row and its pitch is left out at the end.
#pragma once

#include <cstdint>

#include "kernels/isa.h"

namespace mixflow::kernels {

// One image. Floats: image channels * plane + kFewSlack; strip kFewFilters * places rounded up.
struct FewImage {
  int64_t channels = 0, plane = 0;           // plane: floats of a channel's copy
  int64_t pitch = 0;                         // floats of a row of the copy
  int64_t kernel_rows = 0, kernel_cols = 0;  // taps
  int64_t places = 0;                        // out_rows * pitch, a multiple of kFewSlack
  const float* image = nullptr;
};

constexpr int64_t kFewFilters = 4;   // filters that a strip holds at most
constexpr int64_t kFewColumns = 5;   // taps of a row that the weight gradient takes at a time
constexpr int64_t kFewSlack = 64;    // floats that vectors may read beyond the last place
constexpr int64_t kFewLanes = 16;    // room for the lanes of a sum

// strip[f][place] = bias[f] + sum of weights[f][channel][tap] * image; bias may be null.
// weight_step: floats from one filter to the next.
struct FewForward {
  FewImage image;
  int64_t filters = 0;  // at most kFewFilters
  const float* weights = nullptr;
  int64_t weight_step = 0;
  const float* bias = nullptr;
  float* strip = nullptr;
};

// sums[f][channel][tap][lane] += strip[f][place] * image at the tap of the place; zero in the strip
// between rows.
struct FewWeightGrad {
  FewImage image;
  int64_t filters = 0;
  const float* strip = nullptr;
  float* sums = nullptr;
};

// Rows of `cols` floats between places with different distances of rows.
struct FewRows {
  int64_t rows = 0, cols = 0;
  const float* from = nullptr;
  float* to = nullptr;
  int64_t from_step = 0, to_step = 0;
};

#define MIXFLOW_DECLARE_FEW                     \
  void few_forward(const FewForward& t);        \
  void few_weight_grad(const FewWeightGrad& t); \
  void few_rows(const FewRows& t);
namespace isa_baseline {
MIXFLOW_DECLARE_FEW
}
namespace isa_avx2 {
MIXFLOW_DECLARE_FEW
}
namespace isa_avx512 {
MIXFLOW_DECLARE_FEW
}
#undef MIXFLOW_DECLARE_FEW

}  // namespace mixflow::kernels
