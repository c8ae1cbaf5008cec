#include "kvstore/board.h"

#include <algorithm>
#include <chrono>
#include <utility>

namespace mixflow::kvstore {
namespace {

size_t rounded(size_t bytes, size_t unit) { return (bytes + unit - 1) / unit * unit; }

}  // namespace

Layout::Layout(std::vector<size_t> bytes, size_t columns)
    : bytes_(std::move(bytes)), columns_(columns) {
  size_t at = kLine * (1 + slices());
  at += rounded(slices() * columns_ * kLine, kPage);
  for (size_t size : bytes_) {
    // Big ones begin with a page: nobody shares one with another process's writes.
    at = rounded(at, size < kPage ? kLine : kPage);
    values_.push_back(at);
    at += rounded(size, size < kPage ? kLine : kPage) * (1 + columns_);
  }
  total_ = rounded(at, kPage);
}

size_t Layout::mine_at(size_t slice, size_t column) const {
  return kLine * (1 + slices() + slice * columns_ + column);
}

size_t Layout::gradient_at(size_t slice, size_t column) const {
  const size_t size = bytes_[slice];
  return values_[slice] + rounded(size, size < kPage ? kLine : kPage) * (1 + column);
}

bool Board::complete(size_t s) const {
  // A step of an own board may be applied, and not to be read yet.
  const Slice& words = slice(s);
  const int64_t closed = (own ? words.durable : words.version).load(std::memory_order_relaxed);
  for (size_t column = 0; column < layout.columns(); ++column) {
    if (staged(s, column).load(std::memory_order_seq_cst) <= closed) return false;
  }
  return true;
}

bool Board::wants(size_t s) const {
  return complete(s) ||
         (own && asked(s, 0).load(std::memory_order_seq_cst) > slice(s).served.load());
}

int64_t now_ms() {
  const auto now = std::chrono::steady_clock::now().time_since_epoch();
  return std::chrono::duration_cast<std::chrono::milliseconds>(now).count();
}

}  // namespace mixflow::kvstore
