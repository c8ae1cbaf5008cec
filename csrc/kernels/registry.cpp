// The registry of factories, and the list of the families of plain kernels.
#include <algorithm>
#include <limits>
#include <mutex>
#include <shared_mutex>

#include "kernels/kernel.h"

namespace mixflow::kernels {

void register_fused_kernels(Registry&);
void register_reduce_kernels(Registry&);
void register_arg_reduce_kernels(Registry&);
void register_copy_kernels(Registry&);
void register_pad_kernels(Registry&);
void register_index_kernels(Registry&);
void register_index_nd_kernels(Registry&);
void register_sort_kernels(Registry&);
void register_random_kernels(Registry&);
void register_conv_kernels(Registry&);
void register_few_kernels(Registry&);
void register_winograd_kernels(Registry&);
void register_pool_kernels(Registry&);
void register_matmul_kernels(Registry&);
void register_gemv_kernels(Registry&);
void register_softmax_kernels(Registry&);
void register_norm_kernels(Registry&);
void register_blocked_kernels(Registry&);
void register_narrow_kernels(Registry&);

namespace {

struct Entry {
  int rank;
  std::string implementation;
  Factory factory;
};

// Thread-safe. Entries of one primitive are sorted by falling rank, then by age.
class RegistryImpl final : public Registry {
 public:
  void add(const std::string& primitive, int rank, const std::string& implementation,
           Factory factory) override {
    std::unique_lock lock(mutex_);
    std::vector<Entry>& list = entries_[primitive];
    const auto place =
        std::find_if(list.begin(), list.end(), [rank](const Entry& e) { return e.rank < rank; });
    list.insert(place, Entry{rank, implementation, std::move(factory)});
  }

  KernelRef prepare(const Request& request) const override {
    return prepare_below(request, std::numeric_limits<int>::max());
  }

  KernelRef prepare_below(const Request& request, int rank) const override {
    for (const Entry& entry : entries_of(request.primitive)) {
      if (entry.rank >= rank) continue;
      std::unique_ptr<Kernel> kernel = entry.factory(request);
      if (!kernel) continue;
      if (kernel->implementation.empty()) kernel->implementation = entry.implementation;
      return kernel;
    }
    return nullptr;
  }

  std::string implementations(const std::string& primitive) const override {
    std::string names;
    for (const Entry& entry : entries_of(primitive)) {
      names += (names.empty() ? "" : ",") + entry.implementation;
    }
    return names;
  }

 private:
  // A copy: a factory may ask the registry for other kernels, so none runs under the lock.
  std::vector<Entry> entries_of(const std::string& primitive) const {
    std::shared_lock lock(mutex_);
    const auto it = entries_.find(primitive);
    return it == entries_.end() ? std::vector<Entry>{} : it->second;
  }

  mutable std::shared_mutex mutex_;
  std::unordered_map<std::string, std::vector<Entry>> entries_;
};

}  // namespace

Registry& registry() {
  static RegistryImpl instance;
  return instance;
}

void register_plain_kernels(Registry& target) {
  static std::once_flag once;
  std::call_once(once, [&target] {
    register_fused_kernels(target);
    register_reduce_kernels(target);
    register_arg_reduce_kernels(target);
    register_copy_kernels(target);
    register_pad_kernels(target);
    register_index_kernels(target);
    register_index_nd_kernels(target);
    register_sort_kernels(target);
    register_random_kernels(target);
    register_conv_kernels(target);
    register_few_kernels(target);
    register_winograd_kernels(target);
    register_pool_kernels(target);
    register_matmul_kernels(target);
    register_gemv_kernels(target);
    register_softmax_kernels(target);
    register_norm_kernels(target);
    register_blocked_kernels(target);
    register_narrow_kernels(target);
  });
}

}  // namespace mixflow::kernels
