// What Winograd's kernels compute, and the kernels themselves, without the choice among them.
#pragma once

#include <memory>
#include <string>

#include "kernels/kernel.h"
#include "kernels/winograd.h"

namespace mixflow::kernels {

enum class WinogradDirection { forward, data_grad, weight_grad };

struct WinogradProblem {
  WinogradDirection direction;
  int64_t images, channels, filters;  // of the forward convolution
  int64_t height, width;              // of x
  int64_t out_height, out_width;      // of y
  int64_t taps;                       // side of a filter
  int64_t pad_y, pad_x;
  int64_t x_block, y_block;
  double flops;  // of the direct convolution
};

// Channels in a block of an activation order; 0 = not served.
int64_t winograd_block(Layout layout);
// The request must be one that Winograd can compute at all (`eligible` in winograd.cpp).
WinogradProblem winograd_problem(const Request& request, WinogradDirection direction);
std::string winograd_name(WinogradRule rule);
std::unique_ptr<Kernel> make_winograd(const Request& request, const WinogradProblem& problem,
                                      WinogradRule rule);

}  // namespace mixflow::kernels
