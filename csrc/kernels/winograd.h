// Winograd's minimal filtering F(m x m, r x r) (Lavin and Gray, 2015) on blocks of tiles: tile
// transforms, vectorised over channels, and a matrix product for each of the (m + r - 1)^2 points.
//
// Transformed data of a block of tiles lies as [point][channel block][tile][lane], where a lane is
// a channel of a vector: a product then reads its rows at fixed distances, without packing.
#pragma once

#include <cstdint>

#include "kernels/isa.h"

namespace mixflow::kernels {

// F(side x side, taps x taps). Served: sides 2 and 4, 3 or 5 taps. F(6, 3) has the tile of F(4, 5)
// and twice the error of F(4, 3); measured, it gained 5 % at most, so it is left out.
struct WinogradRule {
  int64_t side = 0;  // of an output tile
  int64_t taps = 0;  // of the filter

  int64_t span() const { return side + taps - 1; }  // side of an input tile
  int64_t points() const { return span() * span(); }
  bool operator==(const WinogradRule& o) const { return side == o.side && taps == o.taps; }
};

// One tensor (images, channels, height, width): plain, or with `block` channels innermost
// (nChw8c, nChw16c), and the grid of tiles over it.
struct WinogradPlane {
  int64_t images = 0, channels = 0, height = 0, width = 0;
  int64_t block = 1;                     // 1 = plain
  int64_t tile_rows = 0, tile_cols = 0;  // tiles of one image
  // Row (column) of a tile's corner = tile row (column) * side + shift (shift_x).
  int64_t shift = 0, shift_x = 0;
};

// A block of tiles between a tensor and its transform. Tiles count over images, rows, columns.
struct WinogradTiles {
  WinogradPlane plane;
  int64_t first = 0, count = 0;            // tiles
  int64_t block_begin = 0, block_end = 0;  // blocks of `lanes` channels
  int64_t rows = 0;                        // tiles for which a channel block has room
  int64_t point_step = 0;                  // elements from one point to the next
  float* points = nullptr;
  float* strip = nullptr;  // kWinogradStrip floats of scratch
};

struct WinogradWeights {
  int64_t filters = 0, depth = 0;           // of the product: vectors run over filters
  int64_t filter_step = 0, depth_step = 0;  // elements between r x r filters
  bool rotate = false;                      // for the data gradient
  int64_t begin = 0, end = 0;               // blocks of `lanes` filters
  int64_t point_step = 0;
  int64_t block_step = 0, row_step = 0;  // elements between blocks of filters, depth rows
  int64_t depth_padded = 0;              // rows to write; zero beyond `depth`
  float* strip = nullptr;  // kWinogradFilterStrip floats of scratch
};

// C[n-block][row][lane] (+)= A B for one point. Forward: rows are tiles and the sum runs over
// channels; weight gradient: rows are channels and the sum runs over tiles.
struct WinogradProduct {
  const float* a = nullptr;
  const float* b = nullptr;
  float* c = nullptr;
  int64_t a_step = 0, b_step = 0, c_step = 0;  // elements from one block of lanes to the next
  int64_t rows = 0;    // forward: tiles, a multiple of the tile; gradient: channels
  int64_t depth = 0;   // forward: channels; gradient: tiles
  int64_t panels = 0;  // pairs of blocks of columns
  bool accumulate = false;
};

struct WinogradIsa {
  int64_t lanes;      // channels of a vector
  int64_t tile_rows;  // tiles that a product computes at a time
};

constexpr int64_t kWinogradColumns = 48;  // of a strip at most
constexpr int64_t kWinogradStrip = 8 * kWinogradColumns * 16;
constexpr int64_t kWinogradFilterStrip = 5 * 5 * 16;

#define MIXFLOW_DECLARE_WINOGRAD                                                              \
  WinogradIsa winograd_isa();                                                                 \
  void winograd_input(WinogradRule, const WinogradTiles&, const float* x);                    \
  void winograd_output(WinogradRule, const WinogradTiles&, const float* bias, bool relu,      \
                       float* y);                                                             \
  void winograd_output_grad(WinogradRule, const WinogradTiles&, const float* dy);             \
  void winograd_weights(WinogradRule, const WinogradWeights&, const float* w, float* points); \
  void winograd_weights_grad(WinogradRule, const WinogradWeights&, const float* points,       \
                             float* dw);                                                      \
  void winograd_product(const WinogradProduct&);                                              \
  void winograd_product_grad(const WinogradProduct&);
namespace isa_baseline {
MIXFLOW_DECLARE_WINOGRAD
}
namespace isa_avx2 {
MIXFLOW_DECLARE_WINOGRAD
}
namespace isa_avx512 {
MIXFLOW_DECLARE_WINOGRAD
}
#undef MIXFLOW_DECLARE_WINOGRAD

}  // namespace mixflow::kernels
