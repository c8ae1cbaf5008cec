// A matrix product as oneDNN's kernels see it.
#pragma once

#include "onednn/common.h"

namespace mixflow::onednn {

// y (batch, m, n) = a (batch_a, m, k) b (batch_b, k, n); a batch of 1 is one matrix for all.
struct Product {
  int64_t batch_a, batch_b, batch, m, n, k;
  bool transpose_a, transpose_b;  // stored as (k, m), as (n, k)

  double flops() const {
    return 2.0 * static_cast<double>(batch * m) * static_cast<double>(n * k);
  }
};

Product product_of(const Request& request);

// A product of float32 that takes some ten to hundreds of microseconds, cut into pieces for a team.
// Null where that does not serve.
std::unique_ptr<Kernel> matmul_in_pieces(const Request& request, const Product& p, int threads);

}  // namespace mixflow::onednn
