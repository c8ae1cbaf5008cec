// The happens-before oracle finds each kind of violation in traces made by hand.
#include "engine/trace.h"
#include "tests/check.h"

using namespace mixflow;
using namespace mixflow::engine;
using namespace mixflow::testing;

namespace {

using Numbers = std::vector<uint64_t>;

TraceEvent event(uint64_t order, int64_t start, int64_t end, Numbers reads, Numbers writes) {
  TraceEvent made;
  made.order = order;
  made.name = "t" + std::to_string(order);
  made.start_ns = start;
  made.end_ns = end;
  made.reads = std::move(reads);
  made.writes = std::move(writes);
  return made;
}

void test_good_traces() {
  EXPECT(check_trace({}) == "");
  EXPECT(check_trace({event(1, 0, 10, {}, {1}), event(2, 10, 20, {1}, {}),
                      event(3, 12, 30, {1}, {2}), event(4, 30, 31, {}, {1})}) == "");
  // Independent tags may overlap, and pushed order says nothing about them.
  EXPECT(check_trace({event(1, 5, 10, {}, {1}), event(2, 0, 20, {}, {2})}) == "");
  TraceEvent early = event(1, 0, 100, {}, {1, 2});
  early.released = {{1, 20}};
  EXPECT(check_trace({early, event(2, 20, 30, {1}, {})}) == "");
}

void test_bad_traces() {
  EXPECT(contains(check_trace({event(1, 0, 10, {}, {1}), event(2, 9, 20, {1}, {})}), "task 2"));
  EXPECT(contains(check_trace({event(1, 0, 10, {1}, {}), event(2, 9, 20, {}, {1})}), "tag 1"));
  EXPECT(contains(check_trace({event(1, 0, 10, {}, {1}), event(2, 9, 20, {}, {1})}), "task 1"));
  // The order of the list does not matter, the order of the pushes does.
  EXPECT(check_trace({event(2, 0, 5, {}, {1}), event(1, 5, 9, {}, {1})}) != "");
  // A short write after a long read, then a read that starts before the long read's end is fine,
  // but a write must wait for it.
  EXPECT(check_trace({event(1, 0, 50, {1}, {}), event(2, 1, 60, {1}, {}),
                      event(3, 55, 70, {}, {1})}) != "");
  TraceEvent early = event(1, 0, 100, {}, {1, 2});
  early.released = {{1, 20}};
  EXPECT(check_trace({early, event(2, 19, 30, {1}, {})}) != "");
  EXPECT(check_trace({early, event(2, 20, 30, {2}, {})}) != "");
  EXPECT(contains(check_trace({event(1, 5, 4, {}, {})}), "ended too early"));
}

}  // namespace

int main() {
  test_good_traces();
  test_bad_traces();
  return result("engine_trace");
}
