#include "bind/call_cache.h"

namespace mixflow::bind {
namespace {

uint64_t mix(uint64_t hash, uint64_t value) {
  hash ^= value + 0x9e3779b97f4a7c15ull + (hash << 6) + (hash >> 2);
  return hash;
}

bool same(const Desc& stored, const plan::Array& array) {
  return stored.dtype == array.desc.dtype && stored.shape == array.desc.shape &&
         stored.device == array.desc.device && stored.layout == array.chunk->layout();
}

}  // namespace

bool CallCache::Stored::matches(const Signature& signature) const {
  if (op_id != signature.op_id || training != signature.training || device != signature.device ||
      inputs.size() != signature.inputs.size()) {
    return false;
  }
  for (size_t i = 0; i < inputs.size(); ++i) {
    if (!same(inputs[i], signature.inputs[i])) return false;
  }
  if (params.ptr() == signature.params.ptr()) return true;
  const int equal = PyObject_RichCompareBool(params.ptr(), signature.params.ptr(), Py_EQ);
  if (equal < 0) throw nb::python_error();
  return equal == 1;
}

uint64_t CallCache::hash_of(const Signature& signature) {
  const Py_hash_t params = PyObject_Hash(signature.params.ptr());
  if (params == -1) throw nb::python_error();
  uint64_t hash = mix(static_cast<uint64_t>(signature.op_id), static_cast<uint64_t>(params));
  for (const plan::Array& array : signature.inputs) {
    hash = mix(hash, static_cast<uint64_t>(array.desc.dtype) * 16 + array.desc.shape.ndim());
    for (int64_t dim : array.desc.shape) hash = mix(hash, static_cast<uint64_t>(dim));
  }
  return mix(hash, signature.training);
}

CallCache::EntryRef CallCache::find(const Signature& signature, uint64_t hash) const {
  auto [first, last] = map_.equal_range(hash);
  for (auto it = first; it != last; ++it) {
    if (it->second.matches(signature)) return it->second.entry;
  }
  return nullptr;
}

void CallCache::insert(const Signature& signature, uint64_t hash, EntryRef entry) {
  std::vector<Desc> descs;
  for (const plan::Array& array : signature.inputs) {
    descs.push_back(array.desc);
    descs.back().layout = array.chunk->layout();
  }
  map_.emplace(hash, Stored{signature.op_id, nb::borrow(signature.params), std::move(descs),
                            signature.device, signature.training, std::move(entry)});
}

void CallCache::clear() {
  auto dead = std::move(map_);  // destructors of parameters may run Python code
  map_ = {};
}

}  // namespace mixflow::bind
