// Convolution as a matrix product: the windows of an image as columns of a matrix, and back.
#pragma once

#include <array>
#include <cstdint>

namespace mixflow::kernels {

// One image of one group, always with three spatial axes (missing ones lead, of size 1).
struct Windows {
  int64_t channels = 0;
  std::array<int64_t, 3> in{1, 1, 1}, out{1, 1, 1}, kernel{1, 1, 1};
  std::array<int64_t, 3> stride{1, 1, 1}, dilate{1, 1, 1}, pad{0, 0, 0};

  int64_t positions() const { return out[0] * out[1] * out[2]; }
  int64_t taps() const { return kernel[0] * kernel[1] * kernel[2]; }
  int64_t rows() const { return channels * taps(); }
  int64_t plane() const { return in[0] * in[1] * in[2]; }
};

// columns (rows(), count): element (c, tap; j) is what the tap of channel c sees in window
// first + j of the image (channels, plane()); zero in the padding.
template <class T>
void unfold(const Windows& w, const T* image, int64_t first, int64_t count, T* columns);

// Adds the columns back to where unfold took them from.
template <class T>
void fold_add(const Windows& w, const T* columns, int64_t first, int64_t count, T* image);

}  // namespace mixflow::kernels
