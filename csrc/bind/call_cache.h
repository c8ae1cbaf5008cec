// The dispatch cache: from the signature of an imperative call to its prepared plan. Guarded by
// the GIL.
#pragma once

#include <cstdint>
#include <memory>
#include <unordered_map>
#include <vector>

#include "bind/convert.h"
#include "plan/dispatch.h"

namespace mixflow::bind {

// A signature that borrows what it names, for look-ups.
struct Signature {
  int64_t op_id;
  nb::handle params;
  const std::vector<plan::Array>& inputs;
  Device device;
  bool training;
};

class CallCache {
 public:
  using EntryRef = std::shared_ptr<const plan::CallEntry>;

  // Null when the signature is new.
  EntryRef find(const Signature& signature, uint64_t hash) const;
  void insert(const Signature& signature, uint64_t hash, EntryRef entry);
  void clear();
  // Throws the Python error of an unhashable parameter.
  static uint64_t hash_of(const Signature& signature);

 private:
  struct Stored {
    int64_t op_id;
    nb::object params;
    std::vector<Desc> inputs;
    Device device;
    bool training;
    EntryRef entry;
    bool matches(const Signature& signature) const;
  };
  std::unordered_multimap<uint64_t, Stored> map_;
};

}  // namespace mixflow::bind
