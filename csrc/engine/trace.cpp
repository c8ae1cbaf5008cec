#include "engine/trace.h"

#include <algorithm>
#include <chrono>
#include <unordered_map>
#include <utility>

namespace mixflow::engine {
namespace {

// What the accesses seen so far demand of the next one to the same tag.
struct TagHistory {
  int64_t writes_over = INT64_MIN;  // latest time at which an earlier write let go
  int64_t all_over = INT64_MIN;     // the same for any earlier access
  uint64_t last_write = 0;
  uint64_t last_access = 0;
};

int64_t let_go(const TraceEvent& event, uint64_t tag) {
  for (const auto& [released, time] : event.released) {
    if (released == tag) return time;
  }
  return event.end_ns;
}

std::string violation(const TraceEvent& event, uint64_t tag, uint64_t earlier) {
  return concat("task ", event.order, " (", event.name, ") started before task ", earlier,
                " had let go of tag ", tag);
}

// A skipped task touches nothing, but its tags pass on in order all the same.
std::string check_access(const TraceEvent& event, uint64_t tag, bool write, TagHistory& history) {
  const int64_t needed = write ? history.all_over : history.writes_over;
  if (event.start_ns < needed) {
    return violation(event, tag, write ? history.last_access : history.last_write);
  }
  const int64_t time = let_go(event, tag);
  if (time > history.all_over) {
    history.all_over = time;
    history.last_access = event.order;
  }
  if (write && time > history.writes_over) {
    history.writes_over = time;
    history.last_write = event.order;
  }
  return "";
}

}  // namespace

int64_t now_ns() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

void TraceRecorder::start() {
  on_ = true;
  events_.clear();
}

std::vector<TraceEvent> TraceRecorder::stop() {
  on_ = false;
  return std::exchange(events_, {});
}

void TraceRecorder::add(TraceEvent event) {
  if (on_) events_.push_back(std::move(event));
}

std::string check_trace(const std::vector<TraceEvent>& events) {
  std::vector<const TraceEvent*> ordered;
  for (const TraceEvent& event : events) ordered.push_back(&event);
  std::sort(ordered.begin(), ordered.end(),
            [](const TraceEvent* a, const TraceEvent* b) { return a->order < b->order; });
  std::unordered_map<uint64_t, TagHistory> tags;
  for (const TraceEvent* event : ordered) {
    if (event->end_ns < event->start_ns) return concat("task ", event->order, " ended too early");
    for (uint64_t tag : event->writes) {
      std::string text = check_access(*event, tag, true, tags[tag]);
      if (!text.empty()) return text;
    }
    for (uint64_t tag : event->reads) {
      const auto& writes = event->writes;
      if (std::find(writes.begin(), writes.end(), tag) != writes.end()) continue;
      std::string text = check_access(*event, tag, false, tags[tag]);
      if (!text.empty()) return text;
    }
  }
  return "";
}

}  // namespace mixflow::engine
