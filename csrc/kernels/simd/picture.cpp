// Resizes by columns first, then by rows, with weights of 1/2048 and the rounding of OpenCV's
// 8-bit bilinear resize, so that both give equal pixels. A pixel takes four lanes (three of them
// used for RGB): its neighbours are two 4-byte loads, wherever they lie.
#include "kernels/picture.h"

#include <cmath>
#include <cstring>
#include <vector>

namespace mixflow::kernels::MIXFLOW_ISA {
namespace {

constexpr int kLane = 4;  // lanes of a pixel

// Where the columns of an output row come from: bytes into a source row, and weights per lane.
struct Columns {
  std::vector<int32_t> first, second;
  std::vector<int16_t> weight_first, weight_second;
};

class Picture {
 public:
  explicit Picture(const PictureTask& task)
      : t_(task), plain_(task.resized_h == task.whole_h && task.resized_w == task.whole_w) {
    const auto width = static_cast<size_t>(t_.width);
    for (auto* list : {&pixels_, &low_, &high_}) list->resize(width * kLane);
    for (auto& row : rows_) row.resize(width * kLane);
    edge_.resize(static_cast<size_t>(t_.region_w * t_.channels) + kLane);
    for (auto* list : {&columns_.first, &columns_.second}) list->resize(width);
    for (auto* list : {&columns_.weight_first, &columns_.weight_second}) {
      list->resize(width * kLane);
    }
    for (int64_t i = 0; i < t_.width; ++i) set_column(i);
  }

  // The pixels of an output row, four lanes each.
  const uint8_t* row(int64_t y) {
    const PictureTap tap = picture_tap(t_.crop_y + y, t_.whole_h, t_.resized_h);
    if (plain_) return copied(tap.first);
    const int16_t* low = blended(tap.first, tap.second);
    const int16_t* high = tap.weight_second == 0 ? low : blended(tap.second, tap.first);
    mix(low, high, tap.weight_first, tap.weight_second);
    return pixels_.data();
  }

 private:
  void set_column(int64_t i) {
    const int64_t x = t_.crop_x + (t_.mirror ? t_.width - 1 - i : i);
    const PictureTap tap = picture_tap(x, t_.whole_w, t_.resized_w);
    const int64_t first = (tap.first - t_.region_x) * t_.channels;
    const int64_t second =
        tap.weight_second == 0 ? first : (tap.second - t_.region_x) * t_.channels;
    const auto at = static_cast<size_t>(i);
    columns_.first[at] = static_cast<int32_t>(first);
    columns_.second[at] = static_cast<int32_t>(second);
    for (size_t k = 0; k < kLane; ++k) {
      columns_.weight_first[at * kLane + k] = tap.weight_first;
      columns_.weight_second[at * kLane + k] = tap.weight_second;
    }
  }

  // The last pixel of the last row is read four bytes wide too: that row is read from a copy.
  const uint8_t* source_row(int64_t y) {
    const int64_t row = y - t_.region_y;
    const uint8_t* from = t_.source + row * t_.row_bytes;
    if (row + 1 < t_.region_h) return from;
    std::memcpy(edge_.data(), from, static_cast<size_t>(t_.region_w * t_.channels));
    return edge_.data();
  }

  void gather(const uint8_t* from, const std::vector<int32_t>& places, uint8_t* to) const {
    const int32_t* at = places.data();
    for (int64_t i = 0; i < t_.width; ++i) std::memcpy(to + i * kLane, from + at[i], kLane);
  }

  const uint8_t* copied(int64_t y) {
    gather(source_row(y), columns_.first, pixels_.data());
    return pixels_.data();
  }

  // A source row resized to the output's columns, in units of 1/128. Neighbouring output rows
  // share source rows, so the two last ones are kept; `other` must not be thrown out.
  const int16_t* blended(int64_t y, int64_t other) {
    for (int k = 0; k < 2; ++k) {
      if (kept_[k] == y) return rows_[k].data();
    }
    const int place = kept_[0] == other ? 1 : 0;
    kept_[place] = y;
    blend(source_row(y), rows_[place].data());
    return rows_[place].data();
  }

  void blend(const uint8_t* from, int16_t* to) {
    gather(from, columns_.first, low_.data());
    gather(from, columns_.second, high_.data());
    const uint8_t* low = low_.data();
    const uint8_t* high = high_.data();
    const int16_t* weight_low = columns_.weight_first.data();
    const int16_t* weight_high = columns_.weight_second.data();
    const int64_t n = t_.width * kLane;
#pragma GCC ivdep
    for (int64_t i = 0; i < n; ++i) {
      const int sum = low[i] * weight_low[i] + high[i] * weight_high[i];
      to[i] = static_cast<int16_t>(sum >> 4);
    }
  }

  void mix(const int16_t* low, const int16_t* high, int16_t weight_low, int16_t weight_high) {
    uint8_t* to = pixels_.data();
    const int64_t n = t_.width * kLane;
#pragma GCC ivdep
    for (int64_t i = 0; i < n; ++i) {
      const auto a = static_cast<int16_t>((weight_low * low[i]) >> 16);
      const auto b = static_cast<int16_t>((weight_high * high[i]) >> 16);
      to[i] = static_cast<uint8_t>(static_cast<int16_t>(a + b + 2) >> 2);
    }
  }

  const PictureTask& t_;
  const bool plain_;
  Columns columns_;
  std::vector<uint8_t> pixels_, low_, high_;
  std::vector<uint8_t> edge_;
  std::vector<int16_t> rows_[2];
  int64_t kept_[2] = {-1, -1};  // which source rows `rows_` holds
};

inline void keep(float value, float* out) { *out = value; }
inline void keep(float value, int8_t* out) {
  const float low = value < -128.0f ? -128.0f : value;
  *out = static_cast<int8_t>(std::nearbyintf(low > 127.0f ? 127.0f : low));
}

// One channel of one row.
template <class T>
void normalise(const PictureTask& t, const uint8_t* pixels, int k, int64_t y, T* out) {
  const float factor = t.factor[k];
  const float bias = t.bias[k];
  const uint8_t* from = pixels + t.order[k];
  if (t.mean_image) {
    const float* mean = t.mean_image + (k * t.height + y) * t.width;
    for (int64_t i = 0; i < t.width; ++i) {
      keep((static_cast<float>(from[i * kLane]) - mean[i]) * factor + bias, out + i);
    }
    return;
  }
  const float mean = t.mean[k];
#pragma GCC ivdep
  for (int64_t i = 0; i < t.width; ++i) {
    keep((static_cast<float>(from[i * kLane]) - mean) * factor + bias, out + i);
  }
}

void normalise(const PictureTask& t, const uint8_t* pixels, int k, int64_t, uint8_t* out) {
  const uint8_t* from = pixels + t.order[k];
#pragma GCC ivdep
  for (int64_t i = 0; i < t.width; ++i) out[i] = from[i * kLane];
}

template <class T>
void run(const PictureTask& t, T* out) {
  Picture picture(t);
  for (int64_t y = 0; y < t.height; ++y) {
    const uint8_t* pixels = picture.row(y);
    for (int k = 0; k < t.channels; ++k) {
      normalise(t, pixels, k, y, out + (k * t.height + y) * t.width);
    }
  }
}

}  // namespace

void picture_f32(const PictureTask& task, float* out) { run(task, out); }
void picture_u8(const PictureTask& task, uint8_t* out) { run(task, out); }
void picture_i8(const PictureTask& task, int8_t* out) { run(task, out); }

}  // namespace mixflow::kernels::MIXFLOW_ISA
