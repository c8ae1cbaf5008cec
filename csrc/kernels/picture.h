// From the decoded bytes of a picture to a sample of a batch in one pass: bilinear resizing, crop,
// mirror, channel order, normalisation and layout. One thread; no lock, no allocation kept.
#pragma once

#include <cstdint>

#include "kernels/isa.h"

namespace mixflow::kernels {

constexpr int kMaxChannels = 4;

// The picture is a window of what was decoded (then the region begins at a negative place), or the
// decoder has given only a region of it. Everything is in pixels.
struct PictureTask {
  const uint8_t* source = nullptr;  // (region_h, region_w, channels)
  int64_t row_bytes = 0;            // from one row of the source to the next
  int channels = 3;
  int64_t region_y = 0, region_x = 0, region_h = 0, region_w = 0;  // where the source lies in it
  int64_t whole_h = 0, whole_w = 0;                                // the whole picture
  int64_t resized_h = 0, resized_w = 0;                            // its size after resizing
  int64_t crop_y = 0, crop_x = 0, height = 0, width = 0;           // the part of the resized one
  bool mirror = false;                                             // left and right change places
  int order[kMaxChannels] = {0, 1, 2, 3};  // output channel k comes from source channel order[k]
  float mean[kMaxChannels] = {};           // out = (pixel - mean) * factor + bias
  float factor[kMaxChannels] = {1, 1, 1, 1};
  float bias[kMaxChannels] = {};
  const float* mean_image = nullptr;  // (channels, height, width), in place of `mean`; may be null
};

// Rows [first, end) of the whole picture that `task` reads, or its columns.
struct PictureSpan {
  int64_t first = 0, end = 0;
};
PictureSpan picture_rows(const PictureTask& task);
PictureSpan picture_columns(const PictureTask& task);

// Throws Error when sizes do not fit each other, or when the region lacks pixels that are read.
void check_picture(const PictureTask& task);

// out: (channels, height, width). float: normalised. uint8: the pixels. int8: normalised, rounded
// and saturated.
#define MIXFLOW_DECLARE_PICTURE                      \
  void picture_f32(const PictureTask&, float* out);  \
  void picture_u8(const PictureTask&, uint8_t* out); \
  void picture_i8(const PictureTask&, int8_t* out);
namespace isa_baseline {
MIXFLOW_DECLARE_PICTURE
}
namespace isa_avx2 {
MIXFLOW_DECLARE_PICTURE
}
namespace isa_avx512 {
MIXFLOW_DECLARE_PICTURE
}
#undef MIXFLOW_DECLARE_PICTURE

inline void picture(const PictureTask& task, float* out) { MIXFLOW_PICK(picture_f32)(task, out); }
inline void picture(const PictureTask& task, uint8_t* out) { MIXFLOW_PICK(picture_u8)(task, out); }
inline void picture(const PictureTask& task, int8_t* out) { MIXFLOW_PICK(picture_i8)(task, out); }

// Source position of one output row or column: two neighbours and their weights of 1/2048.
struct PictureTap {
  int64_t first = 0, second = 0;
  int16_t weight_first = 0, weight_second = 0;
};
PictureTap picture_tap(int64_t position, int64_t whole, int64_t resized);

}  // namespace mixflow::kernels
