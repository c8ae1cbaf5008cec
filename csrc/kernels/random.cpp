// random_bits, random_uniform, random_normal: counter-based, so a draw does not depend on threads.
#include <cstring>

#include "kernels/dispatch.h"
#include "kernels/random_loops.h"

namespace mixflow::kernels {
namespace {

constexpr int64_t kBlock = 512;  // elements made at a time; a multiple of 4

enum class Draw { bits, uniform, normal };

// a + b * (standard draw)
struct Affine {
  double a = 0.0;
  double b = 1.0;
};

class RandomKernel final : public Kernel {
 public:
  RandomKernel(const Request& r, Draw draw, Affine affine)
      : draw_(draw),
        affine_(affine),
        dtype_(r.outputs[0].dtype),
        count_(r.outputs[0].shape.size()) {
    has_draw_ = r.attrs.has("draw");
    if (has_draw_) recorded_ = static_cast<uint64_t>(r.attrs.integer("draw"));
    random = !has_draw_;
    set_cost(*this, r, (draw == Draw::normal ? 3.0 : 1.5) * static_cast<double>(count_));
  }

  void run(const Buffers& buffers, const RunContext& context) const override {
    const PhiloxKey key{context.seed, has_draw_ ? recorded_ : context.draw};
    parallel_for(threads, count_, kBlock, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; i += kBlock) {
        block(key, i, std::min(kBlock, end - i), buffers.out[0]);
      }
    });
  }

 private:
  void block(const PhiloxKey& key, int64_t begin, int64_t n, void* out) const {
    if (dtype_ == DType::float64) {
      wide(key, begin, n, static_cast<double*>(out) + begin);
      return;
    }
    uint32_t words[kBlock];
    random_table().words(key, begin / 4, (n + 3) / 4, words);
    if (draw_ == Draw::bits) {
      std::memcpy(static_cast<uint32_t*>(out) + begin, words, size_t(n) * sizeof(uint32_t));
      return;
    }
    float values[kBlock];
    if (draw_ == Draw::uniform) {
      for (int64_t i = 0; i < n; ++i) {
        values[i] = static_cast<float>(static_cast<int32_t>(words[i] >> 8)) * (1.0f / 16777216.0f);
      }
    } else {
      random_table().normal32(words, (n + 1) / 2, values);
    }
    with_dtype(dtype_, [&](auto tag) {
      using T = typename decltype(tag)::type;
      T* to = static_cast<T*>(out) + begin;
      const auto a = static_cast<float>(affine_.a);
      const auto b = static_cast<float>(affine_.b);
      for (int64_t i = 0; i < n; ++i) to[i] = store<T>(a + b * values[i]);
    });
  }

  void wide(const PhiloxKey& key, int64_t begin, int64_t n, double* out) const {
    uint32_t words[2 * kBlock];
    double values[kBlock];
    if (draw_ == Draw::uniform) {
      random_table().words(key, begin / 2, (2 * n + 3) / 4, words);
      for (int64_t i = 0; i < n; ++i) {
        const double high = words[2 * i] >> 5;
        const double low = words[2 * i + 1] >> 6;
        values[i] = (high * 67108864.0 + low) * (1.0 / 9007199254740992.0);
      }
    } else {
      random_table().words(key, begin / 4, (n + 3) / 4, words);
      random_table().normal64(words, (n + 1) / 2, values);
    }
    for (int64_t i = 0; i < n; ++i) out[i] = affine_.a + affine_.b * values[i];
  }

  Draw draw_;
  Affine affine_;
  DType dtype_;
  int64_t count_;
  bool has_draw_ = false;
  uint64_t recorded_ = 0;
};

std::unique_ptr<Kernel> make_bits(const Request& r) {
  expect_plain(r);
  expect_counts(r, 0, 1);
  expect_dtype(r, "an output", r.outputs[0].dtype, DType::int32);
  return std::make_unique<RandomKernel>(r, Draw::bits, Affine{});
}

std::unique_ptr<Kernel> make_float(const Request& r, Draw draw, Affine affine) {
  expect_plain(r);
  expect_counts(r, 0, 1);
  if (!is_floating(r.outputs[0].dtype)) return nullptr;
  return std::make_unique<RandomKernel>(r, draw, affine);
}

}  // namespace

void register_random_kernels(Registry& registry) {
  registry.add("random_bits", 0, "philox", make_bits);
  registry.add("random_uniform", 0, "philox", [](const Request& r) {
    const double low = r.attrs.number("low");
    return make_float(r, Draw::uniform, {low, r.attrs.number("high") - low});
  });
  registry.add("random_normal", 0, "philox", [](const Request& r) {
    return make_float(r, Draw::normal, {r.attrs.number("loc"), r.attrs.number("scale")});
  });
}

}  // namespace mixflow::kernels
