#include "engine/engine.h"
namespace mixflow::engine {
std::unique_ptr<Engine> make_threaded_engine() { return make_serial_engine(); }
}  // namespace mixflow::engine
