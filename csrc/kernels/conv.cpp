// Convolution without oneDNN: windows unfolded into columns, block by block, and matrix products.
#include <cstring>

#include "kernels/dispatch.h"
#include "kernels/gemm.h"
#include "kernels/unfold.h"

namespace mixflow::kernels {
namespace {

enum class Direction { forward, data_grad, weight_grad };

struct Problem {
  Windows windows;                  // of one group
  int64_t images, groups, filters;  // filters of one group
  int64_t block;                    // windows unfolded at a time

  int64_t image_size() const { return windows.channels * windows.plane(); }
  int64_t result_size() const { return filters * windows.positions(); }
  int64_t weight_size() const { return filters * windows.rows(); }
};

Problem problem_of(const Request& r, const Shape& x, const Shape& w, const Shape& y) {
  const int spatial = x.ndim() - 2;
  Problem p;
  p.images = x[0];
  p.groups = r.attrs.integer("groups");
  p.filters = w[0] / p.groups;
  p.windows.channels = w[1];
  for (int i = 0; i < spatial; ++i) {
    const int axis = 3 - spatial + i;
    p.windows.in[axis] = x[i + 2];
    p.windows.out[axis] = y[i + 2];
    p.windows.kernel[axis] = w[i + 2];
    p.windows.stride[axis] = r.attrs.integers("stride")[i];
    p.windows.dilate[axis] = r.attrs.integers("dilate")[i];
    p.windows.pad[axis] = r.attrs.integers("pad")[i];
  }
  // About half a megabyte of columns at a time, in whole tiles.
  const int64_t fitting = 131072 / std::max<int64_t>(1, p.windows.rows()) / 64 * 64;
  p.block = std::min(p.windows.positions(), std::max<int64_t>(64, fitting));
  return p;
}

Problem problem_of(const Request& r, Direction direction) {
  const Shape& first = r.inputs[0].shape;
  const Shape& second = r.inputs[1].shape;
  const Shape& out = r.outputs[0].shape;
  if (direction == Direction::forward) return problem_of(r, first, second, out);
  if (direction == Direction::data_grad) return problem_of(r, out, second, first);
  return problem_of(r, second, out, first);
}

// Work is split by (image, group), or by blocks of images for the weight gradient.
template <class T>
class ConvKernel : public Kernel {
 public:
  ConvKernel(const Request& r, const Problem& p) : p_(p) {
    const double products = static_cast<double>(p.images * p.groups * p.result_size()) *
                            static_cast<double>(p.windows.rows());
    set_cost(*this, r, products / 20);
    columns_ = (p.windows.rows() * p.block + 15) / 16 * 16;
    slice_ = columns_ + gemm_workspace(std::max(p.filters, p.windows.rows()),
                                       std::max(p.block, p.windows.rows()),
                                       std::max({p.block, p.windows.rows(), p.filters}));
    slice_ = (slice_ + 15) / 16 * 16;
  }

 protected:
  const T* in(const Buffers& b, int i) const { return static_cast<const T*>(b.in[i]); }
  T* out(const Buffers& b) const { return static_cast<T*>(b.out[0]); }
  T* columns(const Buffers& b, int64_t part) const {
    return static_cast<T*>(b.workspace) + part * slice_;
  }
  T* scratch(const Buffers& b, int64_t part) const { return columns(b, part) + columns_; }

  // Calls body(index, part) for every index; part names the thread's slice of the workspace.
  template <class Body>
  void split(int64_t count, const Body& body) const {
    const int64_t per_part = (count + threads - 1) / threads;
    parallel_for(threads, threads, 1, [&](int64_t begin, int64_t end) {
      for (int64_t part = begin; part < end; ++part) {
        const int64_t last = std::min(count, (part + 1) * per_part);
        for (int64_t i = part * per_part; i < last; ++i) body(i, part);
      }
    });
  }

  // Calls body(first window, number of windows).
  template <class Body>
  void for_blocks(const Body& body) const {
    const int64_t positions = p_.windows.positions();
    for (int64_t first = 0; first < positions; first += p_.block) {
      body(first, std::min(p_.block, positions - first));
    }
  }

  Problem p_;
  int64_t columns_ = 0;  // elements of the column block
  int64_t slice_ = 0;    // workspace elements of one thread
};

template <class T>
class ForwardKernel final : public ConvKernel<T> {
 public:
  ForwardKernel(const Request& r, const Problem& p) : ConvKernel<T>(r, p) {
    bias_ = r.inputs.size() > 2;
    this->workspace_bytes = static_cast<size_t>(this->slice_ * this->threads) * sizeof(T);
  }

  void run(const Buffers& b, const RunContext&) const override {
    const Problem& p = this->p_;
    this->split(p.images * p.groups,
                [&](int64_t i, int64_t part) { image(b, i, i % p.groups, part); });
  }

 private:
  void image(const Buffers& b, int64_t index, int64_t group, int64_t part) const {
    const Problem& p = this->p_;
    const int64_t positions = p.windows.positions();
    T* y = this->out(b) + index * p.result_size();
    if (bias_) {
      const T* bias = this->in(b, 2) + group * p.filters;
      for (int64_t f = 0; f < p.filters; ++f) {
        std::fill(y + f * positions, y + (f + 1) * positions, bias[f]);
      }
    }
    this->for_blocks([&](int64_t first, int64_t count) {
      T* columns = this->columns(b, part);
      unfold(p.windows, this->in(b, 0) + index * p.image_size(), first, count, columns);
      GemmTask<T> task{p.filters, count, p.windows.rows()};
      task.a = this->in(b, 1) + group * p.weight_size();
      task.a_row = task.k;
      task.a_col = 1;
      task.b = columns;
      task.b_row = count;
      task.b_col = 1;
      task.c = y + first;
      task.c_row = positions;
      task.accumulate = bias_;
      task.workspace = this->scratch(b, part);
      gemm(task);
    });
  }

  bool bias_;
};

template <class T>
class DataGradKernel final : public ConvKernel<T> {
 public:
  DataGradKernel(const Request& r, const Problem& p) : ConvKernel<T>(r, p) {
    this->workspace_bytes = static_cast<size_t>(this->slice_ * this->threads) * sizeof(T);
  }

  void run(const Buffers& b, const RunContext&) const override {
    const Problem& p = this->p_;
    this->split(p.images * p.groups,
                [&](int64_t i, int64_t part) { image(b, i, i % p.groups, part); });
  }

 private:
  void image(const Buffers& b, int64_t index, int64_t group, int64_t part) const {
    const Problem& p = this->p_;
    T* dx = this->out(b) + index * p.image_size();
    std::fill(dx, dx + p.image_size(), T(0));
    this->for_blocks([&](int64_t first, int64_t count) {
      GemmTask<T> task{p.windows.rows(), count, p.filters};
      task.a = this->in(b, 1) + group * p.weight_size();
      task.a_row = 1;
      task.a_col = task.m;
      task.b = this->in(b, 0) + index * p.result_size() + first;
      task.b_row = p.windows.positions();
      task.b_col = 1;
      task.c = this->columns(b, part);
      task.c_row = count;
      task.workspace = this->scratch(b, part);
      gemm(task);
      fold_add(p.windows, task.c, first, count, dx);
    });
  }
};

// Each thread sums the images of its share into weights of its own; then the shares are added in
// the order of the threads, so that equal thread counts give equal bits.
template <class T>
class WeightGradKernel final : public ConvKernel<T> {
 public:
  WeightGradKernel(const Request& r, const Problem& p) : ConvKernel<T>(r, p) {
    weights_ = (p.groups * p.weight_size() + 15) / 16 * 16;
    this->workspace_bytes =
        static_cast<size_t>((this->slice_ + weights_) * this->threads) * sizeof(T);
  }

  void run(const Buffers& b, const RunContext&) const override {
    const int64_t images = this->p_.images;
    const int64_t per_part = (images + this->threads - 1) / this->threads;
    this->split(this->threads, [&](int64_t share, int64_t part) {
      std::fill(sums(b, share), sums(b, share) + weights_, T(0));
      const int64_t last = std::min(images, (share + 1) * per_part);
      for (int64_t i = share * per_part; i < last; ++i) image(b, i, share, part);
    });
    add_shares(b);
  }

 private:
  T* sums(const Buffers& b, int64_t share) const {
    return static_cast<T*>(b.workspace) + this->slice_ * this->threads + share * weights_;
  }

  void image(const Buffers& b, int64_t image, int64_t share, int64_t part) const {
    const Problem& p = this->p_;
    for (int64_t group = 0; group < p.groups; ++group) {
      const int64_t index = image * p.groups + group;
      this->for_blocks([&](int64_t first, int64_t count) {
        T* columns = this->columns(b, part);
        unfold(p.windows, this->in(b, 1) + index * p.image_size(), first, count, columns);
        GemmTask<T> task{p.filters, p.windows.rows(), count};
        task.a = this->in(b, 0) + index * p.result_size() + first;
        task.a_row = p.windows.positions();
        task.a_col = 1;
        task.b = columns;
        task.b_row = 1;
        task.b_col = count;
        task.c = sums(b, share) + group * p.weight_size();
        task.c_row = p.windows.rows();
        task.accumulate = true;
        task.workspace = this->scratch(b, part);
        gemm(task);
      });
    }
  }

  void add_shares(const Buffers& b) const {
    T* dw = this->out(b);
    const int64_t size = this->p_.groups * this->p_.weight_size();
    std::copy(sums(b, 0), sums(b, 0) + size, dw);
    for (int64_t share = 1; share < this->threads; ++share) {
      const T* more = sums(b, share);
      for (int64_t i = 0; i < size; ++i) dw[i] += more[i];
    }
  }

  int64_t weights_;
};

template <class T>
std::unique_ptr<Kernel> make(const Request& r, Direction direction) {
  const Problem p = problem_of(r, direction);
  switch (direction) {
    case Direction::forward:
      return std::make_unique<ForwardKernel<T>>(r, p);
    case Direction::data_grad:
      return std::make_unique<DataGradKernel<T>>(r, p);
    case Direction::weight_grad:
      break;
  }
  return std::make_unique<WeightGradKernel<T>>(r, p);
}

std::unique_ptr<Kernel> prepare(const Request& r, Direction direction) {
  expect_plain(r);
  const int ndim = r.inputs[0].shape.ndim();
  if (ndim < 3 || ndim > 5) return nullptr;
  if (all_of_dtype(r, DType::float32)) return make<float>(r, direction);
  if (all_of_dtype(r, DType::float64)) return make<double>(r, direction);
  return nullptr;
}

}  // namespace

void register_conv_kernels(Registry& registry) {
  const std::pair<const char*, Direction> entries[] = {
      {"conv", Direction::forward},
      {"conv_data_grad", Direction::data_grad},
      {"conv_weight_grad", Direction::weight_grad}};
  for (const auto& [name, direction] : entries) {
    registry.add(name, 0, "im2col",
                 [direction = direction](const Request& r) { return prepare(r, direction); });
  }
}

}  // namespace mixflow::kernels
