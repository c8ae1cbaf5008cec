// Getters of Attrs. Depends on kernel.h alone, because the oneDNN extension compiles it too.
#include "kernels/kernel.h"

namespace mixflow::kernels {
namespace {

const Attr& find(const std::unordered_map<std::string, Attr>& map, const std::string& key) {
  const auto it = map.find(key);
  check(it != map.end(), "[attributes] expected '", key, "', got none");
  return it->second;
}

template <class T>
const T& typed(const std::unordered_map<std::string, Attr>& map, const std::string& key,
               const char* type) {
  const T* value = std::get_if<T>(&find(map, key));
  check(value != nullptr, "[attributes] expected '", key, "' to be ", type, ", got another type");
  return *value;
}

}  // namespace

bool Attrs::flag(const std::string& key) const {
  const Attr& attr = find(map_, key);
  if (const auto* value = std::get_if<int64_t>(&attr)) return *value != 0;
  return typed<bool>(map_, key, "a bool");
}

int64_t Attrs::integer(const std::string& key) const {
  const Attr& attr = find(map_, key);
  if (const auto* value = std::get_if<bool>(&attr)) return *value ? 1 : 0;
  return typed<int64_t>(map_, key, "an int");
}

double Attrs::number(const std::string& key) const {
  const Attr& attr = find(map_, key);
  if (const auto* value = std::get_if<int64_t>(&attr)) return static_cast<double>(*value);
  if (const auto* value = std::get_if<bool>(&attr)) return *value ? 1.0 : 0.0;
  return typed<double>(map_, key, "a float");
}

const std::string& Attrs::text(const std::string& key) const {
  return typed<std::string>(map_, key, "a str");
}

const std::vector<int64_t>& Attrs::integers(const std::string& key) const {
  return typed<std::vector<int64_t>>(map_, key, "a tuple of int");
}

}  // namespace mixflow::kernels
