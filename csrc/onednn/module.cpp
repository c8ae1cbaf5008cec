// The extension _onednn: registers oneDNN's kernels with the registry of _core.
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>

#include <cstring>

#include "onednn/common.h"

namespace nb = nanobind;

namespace {

constexpr const char* kRegistryName = "mixflow.kernels.Registry";

void register_kernels(const nb::capsule& capsule) {
  if (capsule.name() == nullptr || std::strcmp(capsule.name(), kRegistryName) != 0) {
    throw nb::type_error("[register] expected the capsule of _core.kernel_registry()");
  }
  auto& registry = *static_cast<mixflow::kernels::Registry*>(capsule.data());
  mixflow::onednn::register_conv(registry);
  mixflow::onednn::register_blocked(registry);
  mixflow::onednn::register_matmul(registry);
  mixflow::onednn::register_pool(registry);
  mixflow::onednn::register_softmax(registry);
}

std::string version() {
  const dnnl_version_t* v = dnnl_version();
  return mixflow::concat(v->major, ".", v->minor, ".", v->patch);
}

// Channels of a block that fill a vector register of this processor.
int block_size() {
  const auto isa = static_cast<unsigned>(dnnl::get_effective_cpu_isa());
  const auto wide = static_cast<unsigned>(dnnl::cpu_isa::avx512_core);
  return (isa & wide) == wide ? 16 : 8;
}

}  // namespace

NB_MODULE(_onednn, m) {
  m.doc() = "oneDNN kernels of mixflow";
  m.def("register", &register_kernels, nb::arg("registry"),
        "Adds the kernels to the registry in the capsule of _core.kernel_registry().");
  m.def("block_size", &block_size, "Channels of a block of activations that serves best here.");
  m.def("has_bfloat16", &mixflow::onednn::has_bfloat16,
        "Whether this processor multiplies bfloat16 in instructions made for it.");
  m.def("version", &version, "Version of the oneDNN library that is loaded.");
}
