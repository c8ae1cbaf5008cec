// A copy between two strided views of one shape: what permute, broadcast, slices, reverse and
// concatenation all are.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace mixflow::kernels {

// Immutable after construction; run() is thread-safe and allocates nothing. Strides count elements
// and may be 0 (source only) or negative.
class StridedCopy {
 public:
  StridedCopy() = default;
  StridedCopy(const std::vector<int64_t>& dims, const std::vector<int64_t>& source,
              const std::vector<int64_t>& target, size_t element);

  // The pointers are those of the views' first elements. Views that overlap are allowed only when
  // the copy is contiguous and exact.
  void run(const void* source, void* target, int threads) const;
  int64_t total() const { return total_; }
  double cost() const;  // nanoseconds on one thread, roughly

 private:
  enum class Form { empty, flat, rows, fill, transpose, gather };
  struct Dim {
    int64_t size;
    int64_t source;
    int64_t target;
  };

  void choose_form();
  void run_flat(const char* source, char* target, int threads) const;
  template <class T>
  void run_typed(const T* source, T* target, int threads) const;
  template <class T>
  void line(const T* source, T* target) const;
  template <class T>
  void transpose_tiles(const T* source, T* target, int64_t begin) const;

  std::vector<Dim> dims_;  // the inner dimensions of the form are last
  size_t element_ = 4;
  int64_t total_ = 0;
  Form form_ = Form::empty;
  int inner_ = 1;  // number of dimensions that the form handles itself
};

// Row-major strides of a shape.
std::vector<int64_t> plain_strides(const std::vector<int64_t>& dims);

}  // namespace mixflow::kernels
