#include "onednn/common.h"

#include <omp.h>

#include <algorithm>

namespace mixflow::onednn {
namespace {

// About 15 us of one core: what is longer waits for a lane in any case, and a second thread that is
// awake (as within a plan) saves a third of it.
constexpr double kShortFlops = 1.5e6;

}  // namespace

const dnnl::engine& cpu_engine() {
  static const dnnl::engine engine(dnnl::engine::kind::cpu, 0);
  return engine;
}

bool serves(DType dtype) {
  static const auto isa = static_cast<unsigned>(dnnl::get_effective_cpu_isa());
  const auto has = [](dnnl::cpu_isa wanted) {
    return (isa & static_cast<unsigned>(wanted)) == static_cast<unsigned>(wanted);
  };
  if (dtype == DType::float32) return true;
  if (dtype == DType::bfloat16) return has(dnnl::cpu_isa::avx512_core_bf16);
  if (dtype == DType::float16) return has(dnnl::cpu_isa::avx512_core_fp16);
  return false;
}

bool serves_all(const Request& request) {
  const auto good = [](const Desc& desc) {
    return serves(desc.dtype) && desc.layout.plain() && desc.shape.size() > 0;
  };
  return std::all_of(request.inputs.begin(), request.inputs.end(), good) &&
         std::all_of(request.outputs.begin(), request.outputs.end(), good);
}

memory::data_type type_of(DType dtype) {
  switch (dtype) {
    case DType::float32:
      return memory::data_type::f32;
    case DType::bfloat16:
      return memory::data_type::bf16;
    case DType::float16:
      return memory::data_type::f16;
    default:
      return memory::data_type::undef;
  }
}

bool has_bfloat16() { return serves(DType::bfloat16); }

memory::data_type computed_type(const Request& request) {
  for (const Desc& desc : request.inputs) {
    if (size_of(desc.dtype) == 2) return type_of(desc.dtype);
  }
  return memory::data_type::f32;
}

Dims dims_of(const Shape& shape) { return Dims(shape.begin(), shape.end()); }

Dims plain_strides(const Dims& dims) {
  Dims strides(dims.size(), 1);
  for (size_t i = dims.size(); i-- > 1;) strides[i - 1] = strides[i] * dims[i];
  return strides;
}

memory::desc plain_desc(const Dims& dims, memory::data_type type) {
  return memory::desc(dims, type, plain_strides(dims));
}

memory::desc plain_desc(const Desc& desc) {
  return plain_desc(dims_of(desc.shape), type_of(desc.dtype));
}

memory::desc any_desc(const Dims& dims, memory::data_type type) {
  return memory::desc(dims, type, memory::format_tag::any);
}

memory::desc channels_last_desc(const Dims& dims, memory::data_type type) {
  Dims strides(dims.size(), 1);
  int64_t step = dims[1];
  for (size_t i = dims.size(); i-- > 2; step *= dims[i]) strides[i] = step;
  strides[0] = step;
  return memory::desc(dims, type, strides);
}

dnnl::primitive_attr user_scratchpad() {
  dnnl::primitive_attr attr;
  attr.set_scratchpad_mode(dnnl::scratchpad_mode::user);
  return attr;
}

bool is_reference(const std::string& implementation) {
  return implementation.find("ref") != std::string::npos ||
         implementation.find("simple") != std::string::npos;
}

int useful_threads(double flops, int threads) { return flops < kShortFlops ? 1 : threads; }

bool is_cheap(double flops, int threads) { return threads == 1 && flops < kShortFlops; }

ThreadScope::ThreadScope(int threads) : previous_(omp_get_max_threads()) {
  if (threads != previous_) omp_set_num_threads(threads);
}

ThreadScope::~ThreadScope() {
  if (omp_get_max_threads() != previous_) omp_set_num_threads(previous_);
}

}  // namespace mixflow::onednn
