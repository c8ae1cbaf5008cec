// Shape: a value type of at most kMaxDims dimensions, stored inline so that it never allocates.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <initializer_list>
#include <string>

#include "base/error.h"

namespace mixflow {

class Shape {
 public:
  static constexpr int kMaxDims = 12;

  Shape() = default;
  Shape(std::initializer_list<int64_t> dims) { assign(dims.begin(), dims.end()); }
  template <class It>
  Shape(It first, It last) {
    assign(first, last);
  }

  int ndim() const { return ndim_; }
  int64_t operator[](int axis) const { return dims_[axis]; }
  int64_t& operator[](int axis) { return dims_[axis]; }
  const int64_t* begin() const { return dims_.data(); }
  const int64_t* end() const { return dims_.data() + ndim_; }

  // Number of elements; 1 for a scalar.
  int64_t size() const {
    int64_t total = 1;
    for (int64_t dim : *this) total *= dim;
    return total;
  }

  bool operator==(const Shape& other) const {
    return ndim_ == other.ndim_ && std::equal(begin(), end(), other.begin());
  }
  bool operator!=(const Shape& other) const { return !(*this == other); }

  std::string str() const {
    std::string text = "(";
    for (int i = 0; i < ndim_; ++i) text += (i ? ", " : "") + std::to_string(dims_[i]);
    return text + (ndim_ == 1 ? ",)" : ")");
  }

 private:
  template <class It>
  void assign(It first, It last) {
    for (; first != last; ++first) {
      check(ndim_ < kMaxDims, "[shape] expected at most ", kMaxDims, " dimensions");
      dims_[ndim_++] = *first;
    }
  }

  int ndim_ = 0;
  std::array<int64_t, kMaxDims> dims_{};
};

}  // namespace mixflow
