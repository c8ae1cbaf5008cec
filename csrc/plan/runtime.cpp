#include "plan/runtime.h"

#include <pthread.h>

#include <atomic>
#include <map>
#include <mutex>
#include <utility>

namespace mixflow::plan {
namespace {

struct Holder {
  std::shared_ptr<engine::Engine> engine = engine::make_threaded_engine();
  std::string kind = "threaded";
  std::atomic<uint64_t> generation{1};
};

// Leaked: see the header.
Holder& holder() {
  static Holder* instance = new Holder();  // NOLINT: must outlive static destruction
  return *instance;
}

struct Generators {
  std::mutex mutex;
  std::map<std::pair<int32_t, int32_t>, RngState> by_device;
  uint64_t default_seed = 0;

  // Holds the mutex over a fork: another thread may be taking draws for a push.
  Generators();

  RngState& at(Device device) {
    auto key = std::make_pair(static_cast<int32_t>(device.type), device.id);
    return by_device.emplace(key, RngState{default_seed, 0}).first->second;
  }
};

Generators& generators() {
  static Generators* instance = new Generators();  // NOLINT: as above
  return *instance;
}

void lock_generators() { generators().mutex.lock(); }
void unlock_generators() { generators().mutex.unlock(); }

Generators::Generators() { pthread_atfork(lock_generators, unlock_generators, unlock_generators); }

}  // namespace

engine::Engine& engine() { return *holder().engine; }
const std::string& engine_kind() { return holder().kind; }
uint64_t engine_generation() { return holder().generation.load(std::memory_order_acquire); }

void set_engine(const std::string& kind) {
  check(kind == "threaded" || kind == "serial",
        "[set_engine] expected 'threaded' or 'serial', got '", kind, "'");
  Holder& h = holder();
  if (kind == h.kind) return;
  std::shared_ptr<engine::Engine> made =
      kind == "serial" ? engine::make_serial_engine() : engine::make_threaded_engine();
  made->set_core_budget(h.engine->core_budget());
  h.engine->close();
  h.engine = std::move(made);
  h.kind = kind;
  h.generation.fetch_add(1, std::memory_order_release);
}

RngState take_draws(Device device, uint64_t count) {
  Generators& g = generators();
  std::lock_guard<std::mutex> lock(g.mutex);
  RngState& state = g.at(device);
  RngState taken = state;
  state.next += count;
  return taken;
}

RngState rng_state(Device device) { return take_draws(device, 0); }

void set_rng_state(Device device, RngState state) {
  Generators& g = generators();
  std::lock_guard<std::mutex> lock(g.mutex);
  g.at(device) = state;
}

void seed(uint64_t value, const Device* device) {
  Generators& g = generators();
  std::lock_guard<std::mutex> lock(g.mutex);
  if (device) {
    g.at(*device) = RngState{value, 0};
    return;
  }
  g.default_seed = value;
  for (auto& item : g.by_device) item.second = RngState{value, 0};
}

}  // namespace mixflow::plan
