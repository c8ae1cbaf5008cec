#include "kernels/unfold.h"

#include <algorithm>

namespace mixflow::kernels {
namespace {

// A stretch of windows within one output row, for one tap: where it reads, and which part of it
// lies inside the input.
struct Stretch {
  int64_t column;  // first column of the stretch
  int64_t length;  // windows in it
  int64_t begin;   // [begin, end) of it reads the input, the rest padding
  int64_t end;
  int64_t source;  // offset in the plane of window `begin`
  int64_t step;    // from one window to the next
};

struct Tap {
  int64_t offset[3];
};

Tap tap_of(const Windows& w, int64_t tap) {
  const int64_t k2 = tap % w.kernel[2];
  const int64_t k1 = tap / w.kernel[2] % w.kernel[1];
  const int64_t k0 = tap / w.kernel[2] / w.kernel[1];
  return {{k0 * w.dilate[0] - w.pad[0], k1 * w.dilate[1] - w.pad[1], k2 * w.dilate[2] - w.pad[2]}};
}

int64_t ceil_div(int64_t a, int64_t b) { return a <= 0 ? 0 : (a + b - 1) / b; }

Stretch stretch_of(const Windows& w, const Tap& tap, int64_t row, int64_t from, int64_t to) {
  const int64_t y0 = row / w.out[1] * w.stride[0] + tap.offset[0];
  const int64_t y1 = row % w.out[1] * w.stride[1] + tap.offset[1];
  Stretch s{0, to - from, 0, 0, 0, w.stride[2]};
  if (y0 < 0 || y0 >= w.in[0] || y1 < 0 || y1 >= w.in[1]) return s;
  const int64_t low = ceil_div(-tap.offset[2], w.stride[2]);
  const int64_t high = ceil_div(w.in[2] - tap.offset[2], w.stride[2]);
  s.begin = std::clamp(low, from, to) - from;
  s.end = std::max(s.begin, std::clamp(high, from, to) - from);
  s.source = (y0 * w.in[1] + y1) * w.in[2] + (from + s.begin) * w.stride[2] + tap.offset[2];
  return s;
}

// Calls body(stretch) for the windows [first, first + count), output row by output row.
template <class Body>
void for_stretches(const Windows& w, int64_t tap_index, int64_t first, int64_t count,
                   const Body& body) {
  const Tap tap = tap_of(w, tap_index);
  for (int64_t done = 0; done < count;) {
    const int64_t row = (first + done) / w.out[2];
    const int64_t from = (first + done) % w.out[2];
    const int64_t to = std::min(w.out[2], from + count - done);
    Stretch stretch = stretch_of(w, tap, row, from, to);
    stretch.column = done;
    body(stretch);
    done += to - from;
  }
}

template <class T>
void copy_stretch(const Stretch& s, const T* plane, T* columns) {
  T* to = columns + s.column;
  std::fill(to, to + s.begin, T(0));
  const T* from = plane + s.source;
  if (s.step == 1) {
    std::copy(from, from + (s.end - s.begin), to + s.begin);
  } else {
    for (int64_t i = s.begin; i < s.end; ++i) to[i] = from[(i - s.begin) * s.step];
  }
  std::fill(to + s.end, to + s.length, T(0));
}

template <class T>
void add_stretch(const Stretch& s, const T* columns, T* plane) {
  const T* from = columns + s.column;
  T* to = plane + s.source;
  for (int64_t i = s.begin; i < s.end; ++i) to[(i - s.begin) * s.step] += from[i];
}

}  // namespace

template <class T>
void unfold(const Windows& w, const T* image, int64_t first, int64_t count, T* columns) {
  const int64_t taps = w.taps();
  for (int64_t row = 0; row < w.rows(); ++row) {
    const T* plane = image + row / taps * w.plane();
    T* to = columns + row * count;
    for_stretches(w, row % taps, first, count,
                  [&](const Stretch& s) { copy_stretch(s, plane, to); });
  }
}

template <class T>
void fold_add(const Windows& w, const T* columns, int64_t first, int64_t count, T* image) {
  const int64_t taps = w.taps();
  for (int64_t row = 0; row < w.rows(); ++row) {
    T* plane = image + row / taps * w.plane();
    const T* from = columns + row * count;
    for_stretches(w, row % taps, first, count,
                  [&](const Stretch& s) { add_stretch(s, from, plane); });
  }
}

template void unfold(const Windows&, const float*, int64_t, int64_t, float*);
template void unfold(const Windows&, const double*, int64_t, int64_t, double*);
template void fold_add(const Windows&, const float*, int64_t, int64_t, float*);
template void fold_add(const Windows&, const double*, int64_t, int64_t, double*);

}  // namespace mixflow::kernels
