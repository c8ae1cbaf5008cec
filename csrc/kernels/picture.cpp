#include "kernels/picture.h"

#include <algorithm>
#include <cmath>

#include "base/error.h"

namespace mixflow::kernels {

// Pixel centres keep their relative places; beyond the outer centres the edge pixel counts.
PictureTap picture_tap(int64_t position, int64_t whole, int64_t resized) {
  constexpr float kOne = 2048.0f;
  const double scale = static_cast<double>(whole) / static_cast<double>(resized);
  float place = static_cast<float>((static_cast<double>(position) + 0.5) * scale - 0.5);
  int64_t first = static_cast<int64_t>(std::floor(place));
  float part = place - static_cast<float>(first);
  if (first < 0) {
    first = 0;
    part = 0.0f;
  }
  if (first >= whole - 1) {
    first = whole - 1;
    part = 0.0f;
  }
  PictureTap tap;
  tap.first = first;
  tap.second = std::min(first + 1, whole - 1);
  tap.weight_first = static_cast<int16_t>(std::lrintf((1.0f - part) * kOne));
  tap.weight_second = static_cast<int16_t>(std::lrintf(part * kOne));
  return tap;
}

namespace {

PictureSpan span_of(int64_t start, int64_t length, int64_t whole, int64_t resized) {
  const PictureTap low = picture_tap(start, whole, resized);
  const PictureTap high = picture_tap(start + length - 1, whole, resized);
  // A neighbour of weight 0 is not read.
  return {low.first, (high.weight_second != 0 ? high.second : high.first) + 1};
}

}  // namespace

PictureSpan picture_rows(const PictureTask& t) {
  return span_of(t.crop_y, t.height, t.whole_h, t.resized_h);
}

PictureSpan picture_columns(const PictureTask& t) {
  return span_of(t.crop_x, t.width, t.whole_w, t.resized_w);
}

void check_picture(const PictureTask& t) {
  constexpr int64_t kMost = int64_t{1} << 28;  // byte offsets into a row fit into 32 bits
  check(t.channels >= 1 && t.channels <= kMaxChannels, "[picture] expected 1 to 4 channels, got ",
        t.channels);
  for (int64_t size : {t.region_h, t.region_w, t.whole_h, t.whole_w, t.resized_h, t.resized_w,
                       t.height, t.width}) {
    check(size >= 1 && size < kMost, "[picture] expected sizes of at least one pixel, got ", size);
  }
  check(t.crop_y >= 0 && t.crop_x >= 0 && t.crop_y + t.height <= t.resized_h &&
            t.crop_x + t.width <= t.resized_w,
        "[picture] expected a part inside of ", t.resized_h, " x ", t.resized_w, " pixels, got ",
        t.height, " x ", t.width, " at (", t.crop_y, ", ", t.crop_x, ")");
  for (int k = 0; k < t.channels; ++k) {
    check(t.order[k] >= 0 && t.order[k] < t.channels, "[picture] expected channels below ",
          t.channels, ", got ", t.order[k]);
  }
  const PictureSpan rows = picture_rows(t);
  const PictureSpan columns = picture_columns(t);
  check(t.region_y <= rows.first && t.region_x <= columns.first && rows.end <= t.region_y + t.region_h &&
            columns.end <= t.region_x + t.region_w,
        "[picture] expected rows ", rows.first, " to ", rows.end, " and columns ", columns.first,
        " to ", columns.end, " of the picture, got a region of ", t.region_h, " x ", t.region_w,
        " at (", t.region_y, ", ", t.region_x, ")");
}

}  // namespace mixflow::kernels
