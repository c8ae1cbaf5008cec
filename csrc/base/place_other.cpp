#include "base/place.h"

namespace mixflow {

ThreadNumber this_thread_number() { return 0; }
int current_cpu() { return -1; }
void PlaceKeeper::move_away(ThreadNumber, int) {}

}  // namespace mixflow
