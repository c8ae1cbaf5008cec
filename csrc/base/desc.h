// Desc: everything a kernel may depend on about one tensor, except its bytes.
#pragma once

#include <cstdint>
#include <string>

#include "base/dtype.h"
#include "base/shape.h"

namespace mixflow {

enum class DeviceType : int32_t { cpu = 1, gpu = 2 };

struct Device {
  DeviceType type = DeviceType::cpu;
  int32_t id = 0;
  bool operator==(const Device& o) const { return type == o.type && id == o.id; }
  bool operator!=(const Device& o) const { return !(*this == o); }
};

// The order of a tensor's elements in memory. 0 is plain row-major order; every other id is an
// opaque blocked order that the backend interned. Only a reorder turns one into another.
struct Layout {
  uint32_t id = 0;
  bool plain() const { return id == 0; }
  bool operator==(const Layout& o) const { return id == o.id; }
};

struct Desc {
  DType dtype = DType::float32;
  Shape shape;
  Layout layout;
  Device device;

  int64_t bytes() const { return shape.size() * static_cast<int64_t>(size_of(dtype)); }
  bool operator==(const Desc& o) const {
    return dtype == o.dtype && shape == o.shape && layout == o.layout && device == o.device;
  }
  std::string str() const { return std::string(name_of(dtype)) + shape.str(); }
};

}  // namespace mixflow
