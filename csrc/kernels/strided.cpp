#include "kernels/strided.h"

#include <cstring>

#include "base/stream.h"
#include "kernels/dispatch.h"

namespace mixflow::kernels {

namespace {

constexpr int64_t kTile = 32;
constexpr int64_t kFlatGrain = 65536;

}  // namespace

std::vector<int64_t> plain_strides(const std::vector<int64_t>& dims) {
  std::vector<int64_t> strides(dims.size(), 1);
  for (size_t i = dims.size(); i-- > 1;) strides[i - 1] = strides[i] * dims[i];
  return strides;
}

StridedCopy::StridedCopy(const std::vector<int64_t>& dims, const std::vector<int64_t>& source,
                         const std::vector<int64_t>& target, size_t element)
    : element_(element), total_(1) {
  for (int64_t dim : dims) total_ *= dim;
  for (size_t i = 0; i < dims.size() && total_ > 0; ++i) {
    if (dims[i] == 1) continue;
    const bool merge = !dims_.empty() && dims_.back().source == source[i] * dims[i] &&
                       dims_.back().target == target[i] * dims[i];
    if (merge) {
      dims_.back() = {dims_.back().size * dims[i], source[i], target[i]};
    } else {
      dims_.push_back({dims[i], source[i], target[i]});
    }
  }
  if (dims_.empty()) dims_.push_back({1, 1, 1});
  if (total_ > 0) choose_form();
}

void StridedCopy::choose_form() {
  const Dim last = dims_.back();
  if (last.target == 1 && last.source == 1) {
    form_ = dims_.size() == 1 ? Form::flat : Form::rows;
    return;
  }
  if (last.target == 1 && last.source == 0) {
    form_ = Form::fill;
    return;
  }
  form_ = Form::gather;
  if (last.target != 1 || last.size < 4) return;
  for (size_t i = dims_.size() - 1; i-- > 0;) {
    if (dims_[i].source != 1 || dims_[i].size < 4) continue;
    // The source's own inner dimension comes second last: tiles span both.
    const Dim other = dims_[i];
    dims_.erase(dims_.begin() + static_cast<std::ptrdiff_t>(i));
    dims_.insert(dims_.end() - 1, other);
    form_ = Form::transpose;
    inner_ = 2;
    return;
  }
}

double StridedCopy::cost() const {
  const double bytes = static_cast<double>(total_) * static_cast<double>(element_);
  if (form_ == Form::flat) return bytes * 0.03;
  if (form_ == Form::rows || form_ == Form::fill) {
    const int64_t lines = total_ / std::max<int64_t>(1, dims_.back().size);
    return bytes * 0.04 + 3.0 * static_cast<double>(lines);
  }
  return static_cast<double>(total_) * 0.7;
}

void StridedCopy::run_flat(const char* source, char* target, int threads) const {
  if (source == target) return;
  const auto bytes = static_cast<int64_t>(element_) * total_;
  parallel_for(threads, bytes, kFlatGrain, [&](int64_t begin, int64_t end) {
    copy_bytes(target + begin, source + begin, static_cast<size_t>(end - begin),
               static_cast<size_t>(bytes));
  });
}

template <class T>
void StridedCopy::line(const T* source, T* target) const {
  const Dim d = dims_.back();
  if (form_ == Form::rows) {
    if (d.size >= 16) {
      std::memcpy(target, source, static_cast<size_t>(d.size) * sizeof(T));
    } else {
      for (int64_t i = 0; i < d.size; ++i) target[i] = source[i];
    }
  } else if (form_ == Form::fill) {
    std::fill_n(target, d.size, *source);
  } else {
    for (int64_t i = 0; i < d.size; ++i) target[i * d.target] = source[i * d.source];
  }
}

// One strip of kTile source columns. Each tile goes through a small buffer, so that both sides
// touch whole cache lines even where strides are powers of two.
template <class T>
void StridedCopy::transpose_tiles(const T* source, T* target, int64_t begin) const {
  const Dim a = dims_[dims_.size() - 2];  // contiguous in the source
  const Dim b = dims_.back();             // contiguous in the target
  const int64_t na = std::min(kTile, a.size - begin);
  T tile[kTile * (kTile + 1)];
  for (int64_t j = 0; j < b.size; j += kTile) {
    const int64_t nb = std::min(kTile, b.size - j);
    for (int64_t y = 0; y < nb; ++y) {
      const T* from = source + (j + y) * b.source + begin;
      for (int64_t x = 0; x < na; ++x) tile[x * (kTile + 1) + y] = from[x];
    }
    for (int64_t x = 0; x < na; ++x) {
      std::memcpy(target + (begin + x) * a.target + j, tile + x * (kTile + 1),
                  static_cast<size_t>(nb) * sizeof(T));
    }
  }
}

template <class T>
void StridedCopy::run_typed(const T* source, T* target, int threads) const {
  const int outer = static_cast<int>(dims_.size()) - inner_;
  const bool tiles = form_ == Form::transpose;
  const int64_t strips = tiles ? (dims_[outer].size + kTile - 1) / kTile : 1;
  int64_t units = strips;
  for (int d = 0; d < outer; ++d) units *= dims_[d].size;
  parallel_for(threads, units, 1, [&](int64_t begin, int64_t end) {
    int64_t index[16];
    int64_t s = 0;
    int64_t t = 0;
    int64_t rest = begin / strips;
    for (int d = outer - 1; d >= 0; --d) {
      index[d] = rest % dims_[d].size;
      rest /= dims_[d].size;
      s += index[d] * dims_[d].source;
      t += index[d] * dims_[d].target;
    }
    int64_t strip = begin % strips;
    for (int64_t unit = begin; unit < end; ++unit) {
      if (tiles) {
        transpose_tiles(source + s, target + t, strip * kTile);
      } else {
        line(source + s, target + t);
      }
      if (++strip < strips) continue;
      strip = 0;
      for (int d = outer - 1; d >= 0; --d) {
        s += dims_[d].source;
        t += dims_[d].target;
        if (++index[d] < dims_[d].size) break;
        s -= index[d] * dims_[d].source;
        t -= index[d] * dims_[d].target;
        index[d] = 0;
      }
    }
  });
}

void StridedCopy::run(const void* source, void* target, int threads) const {
  if (total_ == 0) return;
  if (form_ == Form::flat) {
    run_flat(static_cast<const char*>(source), static_cast<char*>(target), threads);
    return;
  }
  with_size(element_, [&](auto tag) {
    using T = typename decltype(tag)::type;
    run_typed(static_cast<const T*>(source), static_cast<T*>(target), threads);
  });
}

}  // namespace mixflow::kernels
