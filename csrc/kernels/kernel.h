// A backend turns (primitive, parameters, descriptors) into a prepared kernel. Prepared kernels
// are immutable, shared by imperative calls and plans, allocate nothing when they run, and state
// their workspace so that it can be planned.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <unordered_map>
#include <variant>
#include <vector>

#include "base/desc.h"
#include "base/team.h"

namespace mixflow::kernels {

using Attr = std::variant<bool, int64_t, double, std::string, std::vector<int64_t>,
                          std::vector<double>>;

// Typed parameters of a primitive. The getters throw Error naming the key when it is missing or of
// another type (an int64 serves where a double is asked for).
class Attrs {
 public:
  void set(const std::string& key, Attr value) { map_[key] = std::move(value); }
  bool has(const std::string& key) const { return map_.count(key) != 0; }
  bool flag(const std::string& key) const;
  int64_t integer(const std::string& key) const;
  double number(const std::string& key) const;
  const std::string& text(const std::string& key) const;
  const std::vector<int64_t>& integers(const std::string& key) const;
  const std::unordered_map<std::string, Attr>& items() const { return map_; }

 private:
  std::unordered_map<std::string, Attr> map_;
};

struct Buffers {
  const void* const* in = nullptr;  // one pointer per input descriptor
  void* const* out = nullptr;       // one pointer per output descriptor
  void* workspace = nullptr;        // Kernel::workspace_bytes, aligned to 64
  // What Kernel::prepare_weights made of the weights of this run; null = made at each run.
  const void* prepared = nullptr;
};

// What changes from run to run besides the buffers.
struct RunContext {
  uint64_t seed = 0;  // key of the random generator of the context
  uint64_t draw = 0;  // number of this draw (random kernels only)
  // Helpers of the running thread, for kernels with `teamwork`; null = the thread is alone.
  Team* team = nullptr;
  // Elements from which elementwise kernels share their work with the team. Few where the data lies
  // in the caches of the helpers, as gradients of weights do.
  int64_t share_from = 1 << 16;
};

// Thread-safe: run may be called from several threads at once with different buffers.
class Kernel {
 public:
  virtual ~Kernel() = default;
  virtual void run(const Buffers& buffers, const RunContext& context) const = 0;

  // Makes the form in which the kernel reads its weights, for a caller that keeps it as long as the
  // weights' version lasts (prediction). Only where prepared_bytes > 0.
  virtual void prepare_weights(const void* /*weights*/, void* /*prepared*/) const {}

  size_t workspace_bytes = 0;
  size_t prepared_bytes = 0;  // size of prepared weights, aligned to 64; 0 = no such form
  int threads = 1;         // threads that run() uses: the lease it needs
  bool cheap = false;      // short enough to run on the pushing thread (about 20 us)
  bool random = false;     // takes a draw number
  bool teamwork = false;   // its threads are those of RunContext::team, not of OpenMP
  // (output, input) pairs that may be the same memory.
  std::vector<std::pair<int, int>> inplace;
  std::string implementation;  // "fused", "onednn:brgemm", ... for profiles
};
using KernelRef = std::shared_ptr<const Kernel>;

struct Request {
  std::string primitive;
  Attrs attrs;
  std::vector<Desc> inputs;
  std::vector<Desc> outputs;
  int threads = 1;
};

// Returns null when the factory does not serve this request (a dtype, a rank): the next is asked.
using Factory = std::function<std::unique_ptr<Kernel>(const Request&)>;

// Virtual, so that an extension module can register itself without linking to the core.
class Registry {
 public:
  virtual ~Registry() = default;
  // Higher rank is asked first. Plain kernels use 0, oneDNN 10.
  virtual void add(const std::string& primitive, int rank, const std::string& implementation,
                   Factory factory) = 0;
  // Null when nobody serves the request. Not cached: the caller caches by signature.
  virtual KernelRef prepare(const Request& request) const = 0;
  // The same among factories of a lower rank: what a factory would leave the request to.
  virtual KernelRef prepare_below(const Request& request, int rank) const = 0;
  // Names of the implementations of a primitive, best first, with commas between.
  virtual std::string implementations(const std::string& primitive) const = 0;
};

Registry& registry();
// Registers every plain native kernel, once.
void register_plain_kernels(Registry& registry);

}  // namespace mixflow::kernels
