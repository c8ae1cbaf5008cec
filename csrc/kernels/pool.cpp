// Pooling without oneDNN, and the modes that oneDNN does not have.
#include "kernels/pool.h"

#include "kernels/dispatch.h"

namespace mixflow::kernels {
namespace {

enum class Direction { forward, grad, take };

PoolMode mode_of(const std::string& name) {
  if (name == "max") return PoolMode::max;
  if (name == "avg") return PoolMode::avg;
  if (name == "sum") return PoolMode::sum;
  check(name == "lp", "[pool] expected mode max, avg, sum or lp, got ", name);
  return PoolMode::lp;
}

}  // namespace

PoolGeometry pool_geometry(const Request& r, const Shape& x, const Shape& y) {
  PoolGeometry g;
  const int spatial = x.ndim() - 2;
  for (int i = 0; i < spatial; ++i) {
    const int axis = 3 - spatial + i;
    g.in[axis] = x[i + 2];
    g.out[axis] = y[i + 2];
    g.kernel[axis] = r.attrs.integers("kernel")[i];
    g.stride[axis] = r.attrs.integers("stride")[i];
    g.pad[axis] = r.attrs.integers("pad")[i];
  }
  g.mode = mode_of(r.attrs.text("mode"));
  g.include_pad = r.attrs.flag("count_include_pad");
  g.power = r.attrs.integer("p_value");
  return g;
}

namespace {

template <class T>
class PoolKernel final : public Kernel {
 public:
  PoolKernel(const Request& r, Direction direction, const PoolGeometry& g, int64_t planes)
      : direction_(direction), geometry_(g), planes_(planes) {
    const double taps = static_cast<double>(g.kernel[0] * g.kernel[1] * g.kernel[2]);
    const double work = static_cast<double>(g.out_size()) * taps + static_cast<double>(g.in_size());
    set_cost(*this, r, static_cast<double>(planes) * work / 2);
  }

  void run(const Buffers& b, const RunContext&) const override {
    const auto* first = static_cast<const T*>(b.in[0]);
    const bool forward = direction_ == Direction::forward;
    const auto* x = static_cast<const T*>(forward ? b.in[0] : b.in[1]);
    auto* result = static_cast<T*>(b.out[0]);
    const int64_t in = geometry_.in_size(), out = geometry_.out_size();
    parallel_for(threads, planes_, 1, [&](int64_t begin, int64_t end) {
      PoolTask<T> task{&geometry_, end - begin, x + begin * in, nullptr, nullptr};
      switch (direction_) {
        case Direction::forward:
          task.result = result + begin * out;
          return pool_forward(task);
        case Direction::grad:
          task.dy = first + begin * out;
          task.result = result + begin * in;
          return pool_grad(task);
        case Direction::take:
          task.dy = first + begin * in;
          task.result = result + begin * out;
          return pool_take(task);
      }
    });
  }

 private:
  Direction direction_;
  PoolGeometry geometry_;
  int64_t planes_;
};

std::unique_ptr<Kernel> prepare(const Request& r, Direction direction) {
  expect_plain(r);
  const Shape& x = r.inputs[direction == Direction::forward ? 0 : 1].shape;
  const Shape& y = direction == Direction::grad ? r.inputs[0].shape : r.outputs[0].shape;
  if (x.ndim() < 3 || x.ndim() > 5) return nullptr;
  const PoolGeometry g = pool_geometry(r, x, y);
  if (g.in_size() > INT32_MAX) return nullptr;
  if (direction == Direction::grad && g.mode == PoolMode::lp) return nullptr;
  const int64_t planes = x[0] * x[1];
  switch (r.outputs[0].dtype) {
    case DType::float32:
      return std::make_unique<PoolKernel<float>>(r, direction, g, planes);
    case DType::float64:
      return std::make_unique<PoolKernel<double>>(r, direction, g, planes);
    default:
      return nullptr;
  }
}

}  // namespace

void register_pool_kernels(Registry& registry) {
  const std::pair<const char*, Direction> entries[] = {
      {"pool", Direction::forward}, {"pool_grad", Direction::grad}, {"pool_take", Direction::take}};
  for (const auto& [name, direction] : entries) {
    registry.add(name, 0, "rows",
                 [direction = direction](const Request& r) { return prepare(r, direction); });
  }
}

}  // namespace mixflow::kernels
