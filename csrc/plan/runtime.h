// The process's engine and its random generators: what every push needs.
//
// Tags belong to the engine that made them. When the engine is replaced (all work has ended then),
// the generation grows and chunks make themselves a new tag at their next use.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "base/desc.h"
#include "engine/engine.h"

namespace mixflow::plan {

// The current engine. Never null; it outlives static destruction on purpose, because worker
// threads may outlive main() when the exit deadline passes. Thread-safe.
engine::Engine& engine();
const std::string& engine_kind();
uint64_t engine_generation();

// Replaces the engine ("threaded" or "serial") and closes the old one. The caller has waited for
// all work and no other thread pushes meanwhile.
void set_engine(const std::string& kind);

// The counter-based generator of one device: a key and the number of the next draw.
struct RngState {
  uint64_t seed = 0;
  uint64_t next = 0;
};

// Takes `count` draw numbers; the returned state's `next` is the first of them. Thread-safe.
RngState take_draws(Device device, uint64_t count);
RngState rng_state(Device device);
void set_rng_state(Device device, RngState state);
// Seeds one device, or every one seen so far and later (null).
void seed(uint64_t value, const Device* device);

}  // namespace mixflow::plan
