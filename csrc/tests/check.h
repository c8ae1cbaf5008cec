// What the plain C++ tests share: a check that names its line, and tasks made of a function.
#pragma once

#include <cstdio>
#include <cstdlib>
#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "engine/engine.h"

// Read by the sanitizers' run-times: a refused request comes back as null, as the system's own
// allocator does it, and a forked child may start threads.
extern "C" inline __attribute__((used, visibility("default"))) const char*
__asan_default_options() {
  return "allocator_may_return_null=1";
}
extern "C" inline __attribute__((used, visibility("default"))) const char*
__tsan_default_options() {
  return "allocator_may_return_null=1:die_after_fork=0";
}

namespace mixflow::testing {

inline int failures = 0;

inline void expect(bool condition, const char* text, const char* file, int line) {
  if (condition) return;
  ++failures;
  std::fprintf(stderr, "%s:%d: failed: %s\n", file, line, text);
}
#define EXPECT(condition) ::mixflow::testing::expect((condition), #condition, __FILE__, __LINE__)

inline long count_argument(int argc, char** argv, long fallback) {
  return argc > 1 ? std::atol(argv[1]) : fallback;
}

// Text of the Error that the function throws; "" when it throws none.
inline std::string error_of(const std::function<void()>& function) {
  try {
    function();
  } catch (const Error& e) {
    return e.what();
  }
  return "";
}

inline bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

class FunctionTask : public engine::Task {
 public:
  using Function = std::function<void(engine::TaskContext&)>;
  FunctionTask(std::string name, Function function)
      : name_(std::move(name)), function_(std::move(function)) {}
  void run(engine::TaskContext& context) override { function_(context); }
  std::string describe() const override { return name_; }

 private:
  const std::string name_;
  const Function function_;
};

using Tags = std::vector<engine::TagRef>;

inline std::unique_ptr<engine::Task> make_task(std::string name, Tags reads, Tags writes,
                                               FunctionTask::Function function,
                                               engine::LaneKind lane = engine::LaneKind::compute) {
  auto task = std::make_unique<FunctionTask>(std::move(name), std::move(function));
  task->reads = std::move(reads);
  task->writes = std::move(writes);
  task->lane.kind = lane;
  return task;
}

inline int result(const char* name) {
  std::printf("%s: %s\n", name, failures ? "FAILED" : "ok");
  return failures ? 1 : 0;
}

}  // namespace mixflow::testing
