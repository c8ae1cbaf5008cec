// Work on blocked tensors (N, C / b, *S, b) on one thread, in float32: batch normalisation of one
// block of channels, pooling of planes. blocked_*.cpp split the blocks and planes over threads.
// Norms and pooling may read and write bfloat16 (`narrow`); vectors stay float32.
#pragma once

#include <cstdint>

#include "kernels/isa.h"
#include "kernels/pool.h"

namespace mixflow::kernels {

// A block of channels: `outer` images of `inner` places, `stride` elements from image to image.
// Vectors have `size` elements, one per channel of the block. What is not used stays null.
struct BlockedNormTask {
  int64_t size = 16;  // channels of the block: 8 or 16
  int64_t outer = 0, inner = 0, stride = 0;
  bool narrow = false;  // x, dy, addend and result are bfloat16, else float32
  const void* x = nullptr;
  const void* dy = nullptr;
  const void* addend = nullptr;
  void* result = nullptr;  // y or dx; y may be x or addend, dx may be dy or x
  const float* gamma = nullptr;
  const float* beta = nullptr;
  const float* mean = nullptr;
  const float* inv_std = nullptr;
  float* first = nullptr;   // mean, or dgamma
  float* second = nullptr;  // variance, or dbeta
  float eps = 0;
  bool relu = false;
};

struct BlockedPoolTask {
  const PoolGeometry* geometry = nullptr;
  int64_t size = 16;
  int64_t planes = 0;
  const void* x = nullptr;   // (planes, in, size)
  const void* y = nullptr;   // (planes, out, size), gradient of max only
  const void* dy = nullptr;  // (planes, out, size), gradient only
  void* result = nullptr;    // y or dx
  bool narrow = false;       // all of them bfloat16, else float32
  float* plane = nullptr;    // narrow gradients sum here: in * size floats of scratch
};

// LRN of `places` neighbouring places of an image: (blocks, inner, size) from the first place on.
struct BlockedLrnTask {
  int64_t size = 16, blocks = 0, inner = 0, places = 0;
  const float* x = nullptr;
  const float* y = nullptr;    // gradient only
  const float* dy = nullptr;   // gradient only
  float* result = nullptr;     // y or dx
  float* workspace = nullptr;  // kLrnRows rows of blocks * size + width elements
  float alpha = 0, beta = 0, knorm = 0;
  int64_t width = 1;  // of the window; odd
};
constexpr int64_t kLrnRows = 7;

#define MIXFLOW_DECLARE_BLOCKED                    \
  void blocked_norm_train(const BlockedNormTask&); \
  void blocked_norm_apply(const BlockedNormTask&); \
  void blocked_norm_grad(const BlockedNormTask&);  \
  void blocked_pool(const BlockedPoolTask&);       \
  void blocked_pool_grad(const BlockedPoolTask&);  \
  void blocked_lrn(const BlockedLrnTask&);         \
  void blocked_lrn_grad(const BlockedLrnTask&);
namespace isa_baseline {
MIXFLOW_DECLARE_BLOCKED
}
namespace isa_avx2 {
MIXFLOW_DECLARE_BLOCKED
}
namespace isa_avx512 {
MIXFLOW_DECLARE_BLOCKED
}
#undef MIXFLOW_DECLARE_BLOCKED

}  // namespace mixflow::kernels
