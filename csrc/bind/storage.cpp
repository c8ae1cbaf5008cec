// Storage statistics and limits; random generators.
#include "storage/storage.h"

#include "bind/modules.h"
#include "bind/waits.h"

namespace mixflow::bind {
namespace {

nb::dict statistics() {
  const Entered scope;
  drain_graveyard();
  const auto now = storage::statistics();
  nb::dict made;
  made["live_bytes"] = now.live_bytes;
  made["peak_bytes"] = now.peak_bytes;
  made["pooled_bytes"] = now.pooled_bytes;
  made["allocations"] = now.allocations;
  made["system_calls"] = now.system_calls;
  made["limit_bytes"] = now.limit_bytes;
  return made;
}

void seed(uint64_t value, nb::handle device) {
  if (device.is_none()) return plan::seed(value, nullptr);
  const Device only = to_device(device);
  plan::seed(value, &only);
}

nb::tuple rng_state(nb::handle device) {
  const auto state = plan::rng_state(to_device(device));
  return nb::make_tuple(state.seed, state.next);
}

nb::tuple take_draws(int64_t count, nb::handle device) {
  check(count >= 0, "[take_draws] expected a count of at least 0, got ", count);
  const auto state = plan::take_draws(to_device(device), static_cast<uint64_t>(count));
  return nb::make_tuple(state.seed, state.next);
}

void set_rng_state(nb::handle state, nb::handle device) {
  plan::set_rng_state(to_device(device), {nb::cast<uint64_t>(nb::object(state[0])),
                                          nb::cast<uint64_t>(nb::object(state[1]))});
}

}  // namespace

void bind_storage(nb::module_& m) {
  m.def("storage_statistics", statistics);
  m.def("reset_peak", storage::reset_peak);
  m.def("set_memory_limit", storage::set_limit, nb::arg("nbytes"));
  m.def("empty_pool", storage::empty_pool);
}

void bind_random(nb::module_& m) {
  m.def("seed", seed, nb::arg("value"), nb::arg("device") = nb::none());
  m.def("rng_state", rng_state, nb::arg("device") = nb::none());
  m.def("take_draws", take_draws, nb::arg("count"), nb::arg("device") = nb::none());
  m.def("set_rng_state", set_rng_state, nb::arg("state"), nb::arg("device") = nb::none());
}

}  // namespace mixflow::bind
