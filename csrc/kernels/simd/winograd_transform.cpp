// Tile transforms of Winograd's convolution, vectorised over channels. A row of tiles goes through
// a strip in the L1 cache that holds [row][column][lane] with the padding already zero, so that the
// transforms know nothing of the order of the tensor or of its edges.
#include "kernels/simd/transpose.h"
#include "kernels/winograd.h"

namespace mixflow::kernels::MIXFLOW_ISA {
namespace {

inline int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }
inline int64_t most(int64_t a, int64_t b) { return a > b ? a : b; }

// The product of all (x^2 - p^2) at work: a tile of n values takes the points 0, infinity and the
// pairs +-1, +-2, +-1/2, as many as n needs. `input` evaluates the polynomials that miss one point.
template <int n>
struct Tile;

template <>
struct Tile<4> {
  static constexpr float kZero = 1.0f, kPair[] = {0.5f};
  static void input(const Lanes* d, Lanes* o) {
    o[0] = d[0] - d[2];
    o[1] = d[1] + d[2];
    o[2] = d[2] - d[1];
    o[3] = d[3] - d[1];
  }
};

template <>
struct Tile<6> {
  static constexpr float kZero = 0.25f, kPair[] = {-1.0f / 6, 1.0f / 24};
  static void input(const Lanes* d, Lanes* o) {
    const Lanes a = d[4] - 4.0f * d[2], b = d[3] - 4.0f * d[1];
    const Lanes c = d[4] - d[2], e = 2.0f * (d[3] - d[1]);
    o[0] = 4.0f * d[0] - 5.0f * d[2] + d[4];
    o[1] = a + b;
    o[2] = a - b;
    o[3] = c + e;
    o[4] = c - e;
    o[5] = 4.0f * d[1] - 5.0f * d[3] + d[5];
  }
};

template <>
struct Tile<8> {
  static constexpr float kZero = 1.0f, kPair[] = {-2.0f / 9, 1.0f / 90, 32.0f / 45};
  static void input(const Lanes* d, Lanes* o) {
    const Lanes a = d[6] - 4.25f * d[4] + d[2], b = d[5] - 4.25f * d[3] + d[1];
    const Lanes c = d[6] - 1.25f * d[4] + 0.25f * d[2];
    const Lanes e = 2.0f * d[5] - 2.5f * d[3] + 0.5f * d[1];
    const Lanes f = d[6] - 5.0f * d[4] + 4.0f * d[2];
    const Lanes g = 0.5f * d[5] - 2.5f * d[3] + 2.0f * d[1];
    o[0] = d[0] - d[6] + 5.25f * (d[4] - d[2]);
    o[1] = a + b;
    o[2] = a - b;
    o[3] = c + e;
    o[4] = c - e;
    o[5] = f + g;
    o[6] = f - g;
    o[7] = d[7] - d[1] + 5.25f * (d[3] - d[5]);
  }
};

// Powers 0 to 4 of the positive points.
constexpr float kPowers[3][5] = {
    {1, 1, 1, 1, 1}, {1, 2, 4, 8, 16}, {1, 0.5f, 0.25f, 0.125f, 0.0625f}};

// A polynomial of `size` terms at the points: o[0] = v[0] * first, o[+-p] = scale(p) * (even terms
// of v(p) +- odd terms), o[last] = v[size - 1].
template <int pairs, int size>
inline void evaluate(const Lanes* v, float first, const float* scale, Lanes* o) {
  o[0] = first * v[0];
#pragma GCC unroll 3
  for (int q = 0; q < pairs; ++q) {
    Lanes even = scale[q] * v[0], odd{};
#pragma GCC unroll 8
    for (int k = 1; k < size; ++k) (k % 2 ? odd : even) += scale[q] * kPowers[q][k] * v[k];
    o[1 + 2 * q] = even + odd;
    o[2 + 2 * q] = even - odd;
  }
  o[1 + 2 * pairs] = v[size - 1];
}

// The transposed map: from values at the points to `size` sums.
template <int pairs, int size>
inline void interpolate(const Lanes* m, float first, const float* scale, Lanes* o) {
  Lanes even[pairs], odd[pairs];
#pragma GCC unroll 3
  for (int q = 0; q < pairs; ++q) {
    even[q] = m[1 + 2 * q] + m[2 + 2 * q];
    odd[q] = m[1 + 2 * q] - m[2 + 2 * q];
  }
#pragma GCC unroll 8
  for (int k = 0; k < size; ++k) {
    Lanes sum = k == 0 ? first * m[0] : Lanes{};
#pragma GCC unroll 3
    for (int q = 0; q < pairs; ++q) sum += scale[q] * kPowers[q][k] * (k % 2 ? odd : even)[q];
    o[k] = k == size - 1 ? sum + m[1 + 2 * pairs] : sum;
  }
}

// F(side, taps), one axis of it.
template <int side, int taps>
struct F {
  static constexpr int kSide = side, kTaps = taps, kPoints = side + taps - 1;
  static constexpr int kPairs = (kPoints - 2) / 2;
  static constexpr int64_t kTilesWide = (kWinogradColumns - taps + 1) / side;
  using Points = Tile<kPoints>;
  static constexpr float kOnes[] = {1, 1, 1};

  static void input(const Lanes* d, Lanes* o) { Points::input(d, o); }
  static void output(const Lanes* m, Lanes* o) { interpolate<kPairs, side>(m, 1, kOnes, o); }
  static void output_grad(const Lanes* y, Lanes* o) { evaluate<kPairs, side>(y, 1, kOnes, o); }
  static void weights(const Lanes* g, Lanes* o) {
    evaluate<kPairs, taps>(g, Points::kZero, Points::kPair, o);
  }
  static void weights_grad(const Lanes* u, Lanes* o) {
    interpolate<kPairs, taps>(u, Points::kZero, Points::kPair, o);
  }
};

// Applies a transform of `from` to `to` values to columns, then to rows. load_at(row, col) and
// store_at(row, col, value) say where the square comes from and goes to.
template <int from, int to, class Transform, class Load, class Store>
inline void both_ways(const Transform& transform, const Load& load_at, const Store& store_at) {
  Lanes middle[to][from];
#pragma GCC unroll 8
  for (int col = 0; col < from; ++col) {
    Lanes in[from], out[to];
#pragma GCC unroll 8
    for (int row = 0; row < from; ++row) in[row] = load_at(row, col);
    transform(in, out);
#pragma GCC unroll 8
    for (int row = 0; row < to; ++row) middle[row][col] = out[row];
  }
#pragma GCC unroll 8
  for (int row = 0; row < to; ++row) {
    Lanes out[to];
    transform(middle[row], out);
#pragma GCC unroll 8
    for (int col = 0; col < to; ++col) store_at(row, col, out[col]);
  }
}

// Calls body(image, tile row, tile column, tiles, index in the block) for each run of neighbours.
template <class F, class Body>
void for_runs(const WinogradTiles& t, const Body& body) {
  const WinogradPlane& p = t.plane;
  for (int64_t done = 0; done < t.count;) {
    const int64_t tile = t.first + done;
    const int64_t col = tile % p.tile_cols, row = tile / p.tile_cols % p.tile_rows;
    const int64_t width = least(least(F::kTilesWide, p.tile_cols - col), t.count - done);
    body(tile / p.tile_cols / p.tile_rows, row, col, width, done);
    done += width;
  }
}

// The part of a strip that lies inside the image.
struct Window {
  int64_t image, channel, row, col;  // of the strip's corner; row and col may be outside
  int64_t rows, cols;
  int64_t left, right;  // columns inside: [left, right)

  Window(const WinogradPlane& p, int64_t image, int64_t channel, int64_t row, int64_t col,
         int64_t rows, int64_t cols)
      : image(image),
        channel(channel),
        row(row),
        col(col),
        rows(rows),
        cols(cols),
        left(least(cols, most(0, -col))),
        right(most(left, least(cols, p.width - col))) {}
  bool inside(const WinogradPlane& p, int64_t r) const {
    return row + r >= 0 && row + r < p.height;
  }
};

// Calls body(offset in the tensor, first lane, lanes) for the pieces in which one pixel's channels
// lie together.
template <class Body>
inline void for_pieces(const WinogradPlane& p, const Window& w, int64_t y, const Body& body) {
  const int64_t blocks = (p.channels + p.block - 1) / p.block;
  for (int64_t lane = 0; lane < kWide;) {
    const int64_t channel = w.channel + lane, inner = channel % p.block;
    const int64_t size = least(kWide - lane, p.block - inner);
    if (channel >= blocks * p.block) break;
    const int64_t plane = (w.image * blocks + channel / p.block) * p.height + y;
    body((plane * p.width + w.col + w.left) * p.block + inner, lane, size);
    lane += size;
  }
}

inline void clear(float* to, int64_t vectors) {
  for (int64_t i = 0; i < vectors; ++i) put(to + i * kWide, Lanes{});
}

// One row of pixels into vectors.
inline void gather_row(const WinogradPlane& p, const Window& w, const float* x, int64_t y,
                       float* to) {
  const int64_t count = w.right - w.left;
  if (p.block == 1) {
    const int64_t plane = (w.image * p.channels + w.channel) * p.height + y;
    rows_to_lanes(x + plane * p.width + w.col + w.left, p.height * p.width,
                  most(0, least(kWide, p.channels - w.channel)), count, to);
    return;
  }
  for_pieces(p, w, y, [&](int64_t from, int64_t lane, int64_t size) {
    for (int64_t i = 0; i < count; ++i) {
      std::memcpy(to + i * kWide + lane, x + from + i * p.block,
                  static_cast<size_t>(size) * sizeof(float));
    }
  });
}

void gather(const WinogradPlane& p, const Window& w, const float* x, float* strip) {
  if (w.channel >= p.channels) return clear(strip, w.rows * w.cols);
  const bool ragged = p.block != 1 && p.channels - w.channel < kWide;
  for (int64_t r = 0; r < w.rows; ++r) {
    float* to = strip + r * w.cols * kWide;
    if (ragged || !w.inside(p, r)) clear(to, w.cols);
    if (!w.inside(p, r)) continue;
    clear(to, w.left);
    gather_row(p, w, x, w.row + r, to + w.left * kWide);
    clear(to + w.right * kWide, w.cols - w.right);
  }
}

void scatter(const WinogradPlane& p, const Window& w, const float* strip, float* y) {
  const int64_t count = w.right - w.left;
  for (int64_t r = 0; r < w.rows && w.inside(p, r); ++r) {
    const float* from = strip + r * w.cols * kWide;
    if (p.block == 1) {
      const int64_t plane = (w.image * p.channels + w.channel) * p.height + w.row + r;
      lanes_to_rows(from, count, y + plane * p.width + w.col, p.height * p.width,
                    least(kWide, p.channels - w.channel));
      continue;
    }
    for_pieces(p, w, w.row + r, [&](int64_t to, int64_t lane, int64_t size) {
      for (int64_t i = 0; i < count; ++i) {
        std::memcpy(y + to + i * p.block, from + i * kWide + lane,
                    static_cast<size_t>(size) * sizeof(float));
      }
    });
  }
}

template <class F>
void input(const WinogradTiles& t, const float* x) {
  const int64_t step = t.point_step;
  for (int64_t block = t.block_begin; block < t.block_end; ++block) {
    float* base = t.points + block * t.rows * kWide;
    for_runs<F>(t, [&](int64_t image, int64_t row, int64_t col, int64_t tiles, int64_t index) {
      const Window w(t.plane, image, block * kWide, row * F::kSide + t.plane.shift,
                     col * F::kSide + t.plane.shift_x, F::kPoints, tiles * F::kSide + F::kTaps - 1);
      gather(t.plane, w, x, t.strip);
      for (int64_t i = 0; i < tiles; ++i) {
        const float* from = t.strip + i * F::kSide * kWide;
        float* to = base + (index + i) * kWide;
        both_ways<F::kPoints, F::kPoints>(
            F::input, [&](int r, int c) { return load(from + (r * w.cols + c) * kWide); },
            [&](int r, int c, Lanes v) { put(to + (r * F::kPoints + c) * step, v); });
      }
    });
  }
}

template <class F>
void output_grad(const WinogradTiles& t, const float* dy) {
  const int64_t step = t.point_step;
  for (int64_t block = t.block_begin; block < t.block_end; ++block) {
    float* base = t.points + block * t.rows * kWide;
    for_runs<F>(t, [&](int64_t image, int64_t row, int64_t col, int64_t tiles, int64_t index) {
      const Window w(t.plane, image, block * kWide, row * F::kSide, col * F::kSide, F::kSide,
                     tiles * F::kSide);
      gather(t.plane, w, dy, t.strip);
      for (int64_t i = 0; i < tiles; ++i) {
        const float* from = t.strip + i * F::kSide * kWide;
        float* to = base + (index + i) * kWide;
        both_ways<F::kSide, F::kPoints>(
            F::output_grad, [&](int r, int c) { return load(from + (r * w.cols + c) * kWide); },
            [&](int r, int c, Lanes v) { put(to + (r * F::kPoints + c) * step, v); });
      }
    });
  }
}

// Lanes beyond the channels have products of zero weights; blocked tensors get zeros there, as
// their order demands, so the bias must not reach them.
inline Lanes bias_of(const float* bias, int64_t channel, int64_t channels) {
  if (!bias || channel >= channels) return Lanes{};
  return load_some(bias + channel, least(kWide, channels - channel));
}

template <class F>
void output(const WinogradTiles& t, const float* bias, bool relu, float* y) {
  const int64_t step = t.point_step;
  for (int64_t block = t.block_begin; block < t.block_end; ++block) {
    const float* base = t.points + block * t.rows * kWide;
    const Lanes add = bias_of(bias, block * kWide, t.plane.channels);
    for_runs<F>(t, [&](int64_t image, int64_t row, int64_t col, int64_t tiles, int64_t index) {
      const Window w(t.plane, image, block * kWide, row * F::kSide, col * F::kSide, F::kSide,
                     tiles * F::kSide);
      for (int64_t i = 0; i < tiles; ++i) {
        const float* from = base + (index + i) * kWide;
        float* to = t.strip + i * F::kSide * kWide;
        both_ways<F::kPoints, F::kSide>(
            F::output, [&](int r, int c) { return load(from + (r * F::kPoints + c) * step); },
            [&](int r, int c, Lanes v) {
              v += add;
              // A NaN stays one, as in the elementwise relu.
              if (relu) v = v < 0.0f ? Lanes{} : v;
              put(to + (r * w.cols + c) * kWide, v);
            });
      }
      scatter(t.plane, w, t.strip, y);
    });
  }
}

template <class F>
void weights(const WinogradWeights& t, const float* w, float* points) {
  constexpr int taps = F::kTaps * F::kTaps;
  for (int64_t block = t.begin; block < t.end; ++block) {
    const int64_t filters = most(0, least(kWide, t.filters - block * kWide));
    for (int64_t d = 0; d < t.depth_padded; ++d) {
      if (d >= t.depth) {
        clear(t.strip, taps);
      } else {
        rows_to_lanes(w + block * kWide * t.filter_step + d * t.depth_step, t.filter_step, filters,
                      taps, t.strip);
      }
      float* to = points + block / 2 * t.block_step + block % 2 * kWide + d * t.row_step;
      both_ways<F::kTaps, F::kPoints>(
          F::weights,
          [&](int r, int c) {
            const int tap = r * F::kTaps + c;
            return load(t.strip + (t.rotate ? taps - 1 - tap : tap) * kWide);
          },
          [&](int r, int c, Lanes v) { put(to + (r * F::kPoints + c) * t.point_step, v); });
    }
  }
}

template <class F>
void weights_grad(const WinogradWeights& t, const float* points, float* dw) {
  constexpr int taps = F::kTaps * F::kTaps;
  for (int64_t block = t.begin; block < t.end; ++block) {
    const int64_t filters = least(kWide, t.filters - block * kWide);
    for (int64_t d = 0; d < t.depth; ++d) {
      const float* from = points + block * t.block_step + d * t.row_step;
      both_ways<F::kPoints, F::kTaps>(
          F::weights_grad,
          [&](int r, int c) { return load(from + (r * F::kPoints + c) * t.point_step); },
          [&](int r, int c, Lanes v) { put(t.strip + (r * F::kTaps + c) * kWide, v); });
      lanes_to_rows(t.strip, taps, dw + block * kWide * t.filter_step + d * t.depth_step,
                    t.filter_step, filters);
    }
  }
}

// Calls body(F<side, taps>{}) for the rule.
template <class Body>
void with_rule(WinogradRule rule, const Body& body) {
  if (rule.taps == 5) return rule.side == 4 ? body(F<4, 5>{}) : body(F<2, 5>{});
  return rule.side == 4 ? body(F<4, 3>{}) : body(F<2, 3>{});
}

}  // namespace

void winograd_input(WinogradRule rule, const WinogradTiles& t, const float* x) {
  with_rule(rule, [&](auto f) { input<decltype(f)>(t, x); });
}
void winograd_output(WinogradRule rule, const WinogradTiles& t, const float* bias, bool relu,
                     float* y) {
  with_rule(rule, [&](auto f) { output<decltype(f)>(t, bias, relu, y); });
}
void winograd_output_grad(WinogradRule rule, const WinogradTiles& t, const float* dy) {
  with_rule(rule, [&](auto f) { output_grad<decltype(f)>(t, dy); });
}
void winograd_weights(WinogradRule rule, const WinogradWeights& t, const float* w, float* points) {
  with_rule(rule, [&](auto f) { weights<decltype(f)>(t, w, points); });
}
void winograd_weights_grad(WinogradRule rule, const WinogradWeights& t, const float* points,
                           float* dw) {
  with_rule(rule, [&](auto f) { weights_grad<decltype(f)>(t, points, dw); });
}

}  // namespace mixflow::kernels::MIXFLOW_ISA
