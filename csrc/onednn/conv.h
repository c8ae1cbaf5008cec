// Convolution kernels with the order of their activations as a parameter, for choice and benchmark.
#pragma once

#include "onednn/sequence.h"

namespace mixflow::onednn {

enum class Direction { forward, data_grad, weight_grad };
enum class Order { plain, channels_last, blocked };
// Orders in which the convolution itself sees its input and output (or their gradients).
struct Orders {
  Order x, y;
};

// Null when oneDNN has no tuned implementation for these orders.
std::unique_ptr<Kernel> make_conv(const Request& request, Direction direction, Orders orders);
// With the orders that a rule picks.
std::unique_ptr<Kernel> prepare_conv(const Request& request, Direction direction);

}  // namespace mixflow::onednn
