// Helpers of the oneDNN kernels: descriptors, element types, the one engine.
#pragma once

#include <dnnl.hpp>
#include <memory>
#include <string>
#include <vector>

#include "kernels/kernel.h"

namespace mixflow::onednn {

using dnnl::memory;
using kernels::Attrs;
using kernels::Kernel;
using kernels::Registry;
using kernels::Request;
using Dims = memory::dims;

// The CPU engine of the process. Thread-safe.
const dnnl::engine& cpu_engine();

// Whether oneDNN computes this element type with the processor's own instructions.
bool serves(DType dtype);
bool serves_all(const Request& request);
// Whether products of bfloat16 run in instructions made for it.
bool has_bfloat16();
memory::data_type type_of(DType dtype);
// The type in which a product reads its operands: float32 tensors among narrow ones are rounded
// when they are reordered; sums run in float32.
memory::data_type computed_type(const Request& request);

Dims dims_of(const Shape& shape);
Dims plain_strides(const Dims& dims);
// Plain row-major, with the dtype of `desc`.
memory::desc plain_desc(const Desc& desc);
memory::desc plain_desc(const Dims& dims, memory::data_type type);
// The same tensor in an order that the primitive may choose.
memory::desc any_desc(const Dims& dims, memory::data_type type);
// Channels last: N, spatial, C.
memory::desc channels_last_desc(const Dims& dims, memory::data_type type);

// Attributes of every primitive: scratch memory comes from the caller.
dnnl::primitive_attr user_scratchpad();

// A reference implementation is slower than our plain kernels; it is never used.
bool is_reference(const std::string& implementation);

// Threads that pay for this many floating-point operations.
int useful_threads(double flops, int threads);
// Short enough to run on the pushing thread.
bool is_cheap(double flops, int threads);

// Sets the threads that OpenMP regions of the calling thread use, and restores the old count.
class ThreadScope {
 public:
  explicit ThreadScope(int threads);
  ~ThreadScope();
  ThreadScope(const ThreadScope&) = delete;
  ThreadScope& operator=(const ThreadScope&) = delete;

 private:
  int previous_;
};

void register_blocked(Registry& registry);
void register_conv(Registry& registry);
void register_matmul(Registry& registry);
void register_pool(Registry& registry);
void register_softmax(Registry& registry);

}  // namespace mixflow::onednn
