// The kernels of Winograd's convolution: stride 1, one group, float32. The data gradient is the
// forward convolution of dy with rotated, transposed weights; the weight gradient is the transposed
// chain.
#include "kernels/winograd_kernels.h"

#include <atomic>

#include "kernels/dispatch.h"

namespace mixflow::kernels {
namespace {

// Channels in a block of an activation order; 0 = not served.
int64_t block_of(Layout layout) { return layout.id == 0 ? 1 : layout.id <= 2 ? 8 * layout.id : 0; }

// An activation as the transforms see it: (N, C, H, W) in some order, or the shape of the blocked
// primitives, (N, C / b, H, W, b).
struct Activation {
  int64_t images, channels, height, width, block;

  explicit Activation(const Desc& d)
      : images(d.shape[0]), channels(d.shape[1]), height(d.shape[2]), width(d.shape[3]),
        block(block_of(d.layout)) {
    if (d.shape.ndim() != 5) return;
    block = d.shape[4];
    channels *= block;
  }
};

WinogradProblem problem_of(const Attrs& attrs, WinogradDirection direction, const Desc& x_desc,
                           const Desc& w, const Desc& y_desc) {
  const Activation x(x_desc), y(y_desc);
  WinogradProblem p;
  p.direction = direction;
  p.images = x.images;
  p.channels = x.channels;
  p.filters = w.shape[0];
  p.height = x.height;
  p.width = x.width;
  p.out_height = y.height;
  p.out_width = y.width;
  p.pad_y = attrs.integers("pad")[0];
  p.pad_x = attrs.integers("pad")[1];
  p.x_block = x.block;
  p.y_block = y.block;
  p.taps = w.shape[2];
  p.flops = 2.0 * static_cast<double>(y_desc.shape.size()) *
            static_cast<double>(p.channels * p.taps * p.taps);
  return p;
}

int64_t round_up(int64_t size, int64_t unit) { return (size + unit - 1) / unit * unit; }
int64_t divide_up(int64_t size, int64_t unit) { return (size + unit - 1) / unit; }

// Points lie this far apart: a distance that is a multiple of 4096 bytes would send all points of
// a tile to one set of the L1 cache.
int64_t skewed(int64_t floats) {
  const int64_t lines = divide_up(floats, 16);
  return (lines + (5 - lines % 64 + 64) % 64) * 16;
}

// Tiles computed at a time by one thread. Small channel counts profit when the transformed data
// stays in the L2 cache; large ones when each pass over the weights (or the sums) serves many
// tiles: `large`.
int64_t block_tiles(int64_t tiles, int64_t threads, int64_t channels, int64_t points, int64_t unit,
                    int64_t large) {
  const int64_t fitting = 600 * 1024 / (points * channels * static_cast<int64_t>(sizeof(float)));
  const int64_t wanted = std::max<int64_t>(unit, (fitting >= 28 ? fitting : large) / unit * unit);
  const int64_t blocks = round_up(divide_up(tiles, wanted), threads);
  return round_up(divide_up(tiles, blocks), unit);
}

WinogradPlane plane_of(const WinogradProblem& p, WinogradRule rule, int64_t channels,
                       int64_t height, int64_t width, int64_t block, int64_t rows, int64_t cols) {
  WinogradPlane plane;
  plane.images = p.images;
  plane.channels = channels;
  plane.height = height;
  plane.width = width;
  plane.block = block;
  plane.tile_rows = divide_up(rows, rule.side);
  plane.tile_cols = divide_up(cols, rule.side);
  return plane;
}

class WinogradKernel : public Kernel {
 protected:
  WinogradKernel(const Request& r, const WinogradProblem& p, WinogradRule rule) : rule_(rule) {
    set_cost(*this, r, p.flops / 100);
    implementation = winograd_name(rule);
    points_ = rule.points();
    isa_ = MIXFLOW_PICK(winograd_isa)();
  }
  int64_t blocks_of(int64_t channels) const { return divide_up(channels, isa_.lanes); }
  // Products take pairs of blocks.
  int64_t paired_blocks(int64_t channels) const { return round_up(blocks_of(channels), 2); }
  static float* scratch(const Buffers& b) { return static_cast<float*>(b.workspace); }

  WinogradRule rule_;
  WinogradIsa isa_;
  int64_t points_;
};

// Forward and data gradient. Workspace: transformed weights, then for each thread the transformed
// tiles, their products and a strip. Threads take blocks of tiles as they come; each result has one
// order of summation whoever computes it.
class ForwardKernel final : public WinogradKernel {
 public:
  ForwardKernel(const Request& r, const WinogradProblem& p, WinogradRule rule)
      : WinogradKernel(r, p, rule) {
    const bool grad = p.direction == WinogradDirection::data_grad;
    bias_ = r.inputs.size() > 2;
    relu_ = r.attrs.has("relu") && r.attrs.flag("relu");
    if (grad) {
      from_ = plane_of(p, rule, p.filters, p.out_height, p.out_width, p.y_block, p.height, p.width);
      to_ = plane_of(p, rule, p.channels, p.height, p.width, p.x_block, p.height, p.width);
    } else {
      from_ =
          plane_of(p, rule, p.channels, p.height, p.width, p.x_block, p.out_height, p.out_width);
      to_ = plane_of(p, rule, p.filters, p.out_height, p.out_width, p.y_block, p.out_height,
                     p.out_width);
    }
    from_.shift = grad ? p.pad_y - rule.taps + 1 : -p.pad_y;
    from_.shift_x = grad ? p.pad_x - rule.taps + 1 : -p.pad_x;
    plan_weights(p, grad);
    plan_tiles();
  }

  void run(const Buffers& b, const RunContext&) const override {
    float* own = scratch(b);
    const float* weights = static_cast<const float*>(b.prepared);
    if (!weights) {
      transform_weights(static_cast<const float*>(b.in[1]), own);
      weights = own;
    }
    std::atomic<int64_t> next{0};
    parallel_for(threads, threads, 1, [&](int64_t begin, int64_t end) {
      for (int64_t part = begin; part < end; ++part) {
        for (int64_t i = next++; i < blocks_; i = next++) {
          block(b, weights, i * rows_, own + weight_size_ + part * slice_);
        }
      }
    });
  }

  void prepare_weights(const void* w, void* prepared) const override {
    transform_weights(static_cast<const float*>(w), static_cast<float*>(prepared));
  }

 private:
  void plan_weights(const WinogradProblem& p, bool grad) {
    from_blocks_ = blocks_of(from_.channels);
    to_blocks_ = paired_blocks(to_.channels);
    weights_.filters = to_.channels;
    weights_.depth = from_.channels;
    const int64_t taps = rule_.taps * rule_.taps;
    weights_.filter_step = grad ? taps : p.channels * taps;
    weights_.depth_step = grad ? p.channels * taps : taps;
    weights_.rotate = grad;
    weights_.depth_padded = from_blocks_ * isa_.lanes;
    weights_.row_step = 2 * isa_.lanes;
    weights_.block_step = weights_.row_step * weights_.depth_padded;
    weights_.point_step = skewed(to_blocks_ / 2 * weights_.block_step);
    weight_size_ = points_ * weights_.point_step;
    prepared_bytes = static_cast<size_t>(weight_size_) * sizeof(float);
  }

  void plan_tiles() {
    tiles_ = from_.images * from_.tile_rows * from_.tile_cols;
    rows_ = block_tiles(tiles_, threads, (from_blocks_ + to_blocks_) * isa_.lanes, points_,
                        isa_.tile_rows, 112);
    blocks_ = divide_up(tiles_, rows_);
    from_step_ = skewed(from_blocks_ * rows_ * isa_.lanes);
    to_step_ = skewed(to_blocks_ * rows_ * isa_.lanes);
    slice_ = points_ * (from_step_ + to_step_) + kWinogradStrip;
    workspace_bytes = static_cast<size_t>(weight_size_ + threads * slice_) * sizeof(float);
  }

  void transform_weights(const float* w, float* to) const {
    parallel_for(threads, to_blocks_, 1, [&](int64_t begin, int64_t end) {
      alignas(64) float strip[kWinogradFilterStrip];
      WinogradWeights task = weights_;
      task.begin = begin;
      task.end = end;
      task.strip = strip;
      MIXFLOW_PICK(winograd_weights)(rule_, task, w, to);
    });
  }

  void block(const Buffers& b, const float* weights, int64_t first, float* slice) const {
    WinogradTiles in, out;
    in.first = out.first = first;
    in.count = out.count = std::min(rows_, tiles_ - first);
    in.rows = out.rows = rows_;
    in.plane = from_;
    in.block_end = from_blocks_;
    in.points = slice;
    in.point_step = from_step_;
    out.plane = to_;
    out.block_end = blocks_of(to_.channels);
    out.points = slice + points_ * from_step_;
    out.point_step = to_step_;
    in.strip = out.strip = out.points + points_ * to_step_;
    MIXFLOW_PICK(winograd_input)(rule_, in, static_cast<const float*>(b.in[0]));
    products(in, out, weights);
    const float* bias = bias_ ? static_cast<const float*>(b.in[2]) : nullptr;
    MIXFLOW_PICK(winograd_output)(rule_, out, bias, relu_, static_cast<float*>(b.out[0]));
  }

  void products(const WinogradTiles& in, const WinogradTiles& out, const float* weights) const {
    WinogradProduct product;
    product.a_step = product.c_step = rows_ * isa_.lanes;
    product.rows = round_up(in.count, isa_.tile_rows);
    product.depth = from_.channels;
    product.panels = to_blocks_ / 2;
    for (int64_t point = 0; point < points_; ++point) {
      product.a = in.points + point * from_step_;
      product.b = weights + point * weights_.point_step;
      product.c = out.points + point * to_step_;
      MIXFLOW_PICK(winograd_product)(product);
    }
  }

  WinogradPlane from_, to_;
  WinogradWeights weights_;
  bool bias_, relu_;
  int64_t from_blocks_, to_blocks_;  // blocks of channels
  int64_t tiles_, rows_, blocks_;    // tiles in all, in a block, blocks of tiles
  int64_t from_step_, to_step_;      // elements between points
  int64_t weight_size_, slice_;
};

// When each thread of the weight gradient has sums of its own: where they are small, or where each
// thread has so many tiles that adding the sums up costs little, and memory allows.
constexpr int64_t kSmallSums = 3 << 20, kMostSums = 128 << 20;
constexpr int64_t kManyTiles = 512;

// Weight gradient. Threads with sums of their own take a share of the tiles each, and the sums are
// added in the order of the threads. Else all threads work on one block of tiles after the other:
// on channel blocks while it is transformed, on points while it is multiplied.
class WeightGradKernel final : public WinogradKernel {
 public:
  WeightGradKernel(const Request& r, const WinogradProblem& p, WinogradRule rule)
      : WinogradKernel(r, p, rule) {
    x_ = plane_of(p, rule, p.channels, p.height, p.width, p.x_block, p.out_height, p.out_width);
    y_ = plane_of(p, rule, p.filters, p.out_height, p.out_width, p.y_block, p.out_height,
                  p.out_width);
    x_.shift = -p.pad_y;
    x_.shift_x = -p.pad_x;
    x_blocks_ = blocks_of(p.channels);
    y_blocks_ = paired_blocks(p.filters);
    tiles_ = p.images * x_.tile_rows * x_.tile_cols;
    weights_.filters = p.filters;
    weights_.depth = p.channels;
    weights_.depth_step = rule.taps * rule.taps;
    weights_.filter_step = p.channels * weights_.depth_step;
    weights_.row_step = isa_.lanes;
    weights_.block_step = x_blocks_ * isa_.lanes * isa_.lanes;
    weights_.point_step = skewed(y_blocks_ * weights_.block_step);
    plan_work();
  }

  void run(const Buffers& b, const RunContext&) const override {
    const int64_t per_group = divide_up(tiles_, groups_);
    parallel_for(static_cast<int>(groups_), groups_, 1, [&](int64_t begin, int64_t end) {
      for (int64_t g = begin; g < end; ++g) {
        const int64_t last = std::min(tiles_, (g + 1) * per_group);
        for (int64_t first = g * per_group; first < last; first += rows_) {
          block(b, g, first, std::min(rows_, last - first), first > g * per_group);
        }
      }
    });
    add_groups(b);
    finish(b);
  }

 private:
  void plan_work() {
    const int64_t channels = (x_blocks_ + y_blocks_) * isa_.lanes;
    sums_ = points_ * weights_.point_step;
    const int64_t bytes = sums_ * static_cast<int64_t>(sizeof(float));
    const bool own_sums =
        bytes <= kSmallSums || (tiles_ >= threads * kManyTiles && bytes * threads <= kMostSums);
    groups_ = own_sums ? std::min<int64_t>(threads, tiles_) : 1;
    team_ = own_sums ? 1 : threads;
    rows_ = block_tiles(divide_up(tiles_, groups_), 1, channels, points_, 14, 168);
    x_step_ = skewed(x_blocks_ * rows_ * isa_.lanes);
    y_step_ = skewed(y_blocks_ * rows_ * isa_.lanes);
    slice_ = sums_ + points_ * (x_step_ + y_step_) + team_ * kWinogradStrip;
    workspace_bytes = static_cast<size_t>(groups_ * slice_) * sizeof(float);
  }

  void block(const Buffers& b, int64_t group, int64_t first, int64_t count, bool more) const {
    float* sums = scratch(b) + group * slice_;
    WinogradTiles x, y;
    x.first = y.first = first;
    x.count = y.count = count;
    x.rows = y.rows = rows_;
    x.plane = x_;
    x.points = sums + sums_;
    x.point_step = x_step_;
    y.plane = y_;
    y.points = x.points + points_ * x_step_;
    y.point_step = y_step_;
    transform(b, x, y);
    parallel_for(team_, points_, 1,
                 [&](int64_t begin, int64_t end) { products(x, y, begin, end, sums, more); });
  }

  // Blocks of channels of x come first, then those of dy.
  void transform(const Buffers& b, const WinogradTiles& x, const WinogradTiles& y) const {
    float* strips = y.points + points_ * y_step_;
    const int64_t work = x_blocks_ + y_blocks_;
    const int64_t per_part = divide_up(work, team_);
    parallel_for(team_, team_, 1, [&](int64_t part, int64_t) {
      const int64_t begin = part * per_part, end = std::min(work, begin + per_part);
      WinogradTiles task = x;
      task.strip = strips + part * kWinogradStrip;
      task.block_begin = begin;
      task.block_end = std::min(end, x_blocks_);
      MIXFLOW_PICK(winograd_input)(rule_, task, static_cast<const float*>(b.in[1]));
      const float* strip = task.strip;
      task = y;
      task.strip = const_cast<float*>(strip);
      task.block_begin = std::max<int64_t>(0, begin - x_blocks_);
      task.block_end = end - x_blocks_;
      MIXFLOW_PICK(winograd_output_grad)(rule_, task, static_cast<const float*>(b.in[0]));
    });
  }

  void products(const WinogradTiles& x, const WinogradTiles& y, int64_t begin, int64_t end,
                float* sums, bool more) const {
    WinogradProduct product;
    product.a_step = product.b_step = rows_ * isa_.lanes;
    product.c_step = weights_.block_step;
    product.rows = weights_.depth;
    product.depth = x.count;
    product.panels = y_blocks_ / 2;
    product.accumulate = more;
    for (int64_t point = begin; point < end; ++point) {
      product.a = x.points + point * x_step_;
      product.b = y.points + point * y_step_;
      product.c = sums + point * weights_.point_step;
      MIXFLOW_PICK(winograd_product_grad)(product);
    }
  }

  void add_groups(const Buffers& b) const {
    if (groups_ == 1) return;
    parallel_for(threads, sums_, 4096, [&](int64_t begin, int64_t end) {
      float* total = scratch(b);
      for (int64_t g = 1; g < groups_; ++g) {
        const float* sums = scratch(b) + g * slice_;
        for (int64_t i = begin; i < end; ++i) total[i] += sums[i];
      }
    });
  }

  void finish(const Buffers& b) const {
    parallel_for(threads, blocks_of(weights_.filters), 1, [&](int64_t begin, int64_t end) {
      alignas(64) float strip[kWinogradFilterStrip];
      WinogradWeights task = weights_;
      task.begin = begin;
      task.end = end;
      task.strip = strip;
      MIXFLOW_PICK(winograd_weights_grad)(rule_, task, scratch(b), static_cast<float*>(b.out[0]));
    });
  }

  WinogradPlane x_, y_;
  WinogradWeights weights_;
  int64_t x_blocks_, y_blocks_;  // blocks of channels
  int64_t tiles_, rows_;         // tiles in all, in a block
  int64_t groups_;               // sets of sums
  int team_ = 1;                 // threads that share one
  int64_t x_step_, y_step_;
  int64_t sums_, slice_;
};

// A weight gradient, and the sum of dy (N, C / b, H, W, b) over all but channels.
class BiasGradKernel final : public Kernel {
 public:
  BiasGradKernel(std::unique_ptr<Kernel> weights, const WinogradProblem& p)
      : weights_(std::move(weights)), p_(p) {
    threads = weights_->threads;
    cheap = weights_->cheap;
    workspace_bytes = weights_->workspace_bytes;
    implementation = weights_->implementation;
  }

  void run(const Buffers& b, const RunContext& context) const override {
    weights_->run(b, context);
    const int64_t places = p_.out_height * p_.out_width, blocks = p_.filters / p_.y_block;
    parallel_for(threads, blocks, 1, [&](int64_t begin, int64_t end) {
      for (int64_t block = begin; block < end; ++block) {
        double sums[16] = {};
        for (int64_t n = 0; n < p_.images; ++n) {
          const float* dy = static_cast<const float*>(b.in[0]);
          add(dy + (n * blocks + block) * places * p_.y_block, places, sums);
        }
        float* db = static_cast<float*>(b.out[1]) + block * p_.y_block;
        for (int64_t c = 0; c < p_.y_block; ++c) db[c] = static_cast<float>(sums[c]);
      }
    });
  }

 private:
  // Runs of places in float, then in double.
  void add(const float* dy, int64_t places, double* sums) const {
    constexpr int64_t kRun = 256;
    const int64_t size = p_.y_block;
    for (int64_t first = 0; first < places; first += kRun) {
      float run[16] = {};
      const int64_t last = std::min(places, first + kRun);
      for (int64_t i = first; i < last; ++i) {
        for (int64_t c = 0; c < size; ++c) run[c] += dy[i * size + c];
      }
      for (int64_t c = 0; c < size; ++c) sums[c] += static_cast<double>(run[c]);
    }
  }

  std::unique_ptr<Kernel> weights_;
  WinogradProblem p_;
};

}  // namespace

int64_t winograd_block(Layout layout) { return block_of(layout); }

std::string winograd_name(WinogradRule rule) {
  return concat("winograd:f", rule.side, rule.taps == 5 ? "k5" : "");
}

WinogradProblem winograd_problem(const Request& r, WinogradDirection direction) {
  const Desc& out = r.outputs[0];
  if (direction == WinogradDirection::forward) {
    return problem_of(r.attrs, direction, r.inputs[0], r.inputs[1], out);
  }
  if (direction == WinogradDirection::data_grad) {
    return problem_of(r.attrs, direction, out, r.inputs[1], r.inputs[0]);
  }
  return problem_of(r.attrs, direction, r.inputs[1], out, r.inputs[0]);
}

std::unique_ptr<Kernel> make_winograd(const Request& r, const WinogradProblem& p,
                                      WinogradRule rule) {
  if (p.direction == WinogradDirection::weight_grad) {
    auto weights = std::make_unique<WeightGradKernel>(r, p, rule);
    if (r.outputs.size() == 1) return weights;
    return std::make_unique<BiasGradKernel>(std::move(weights), p);
  }
  return std::make_unique<ForwardKernel>(r, p, rule);
}

}  // namespace mixflow::kernels
