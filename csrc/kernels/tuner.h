// Picks among kernels that serve the same request by timing each once, and remembers the choice on
// disk. With `deterministic` nothing is timed: callers use a fixed rule instead.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "kernels/kernel.h"

namespace mixflow::kernels {

// Prepares a kernel, or returns null when it does not serve the request.
struct Candidate {
  std::string name;
  std::function<std::shared_ptr<const Kernel>()> prepare;
};

// Thread-safe; one timing at a time. The file holds one JSON object per line. What cannot be read
// is ignored, and the next choice rewrites the file under a temporary name and renames it.
class Tuner {
 public:
  // An empty path keeps the choices in memory only.
  explicit Tuner(std::string path) : path_(std::move(path)) {}

  // The name of the fastest candidate; empty when none serves or none could be timed. Blocks while
  // it times them on dummy data of the request's shapes, unless the key is known.
  std::string choose(const std::string& key, const Request& request,
                     const std::vector<Candidate>& candidates);
  const std::string& path() const { return path_; }

 private:
  void load();
  void save() const;

  const std::string path_;
  std::mutex mutex_;
  bool loaded_ = false;
  std::map<std::string, std::string> choices_;
};

// The tuner of the process. Its file is named after the processor; until a folder is set, choices
// stay in memory.
std::shared_ptr<Tuner> tuner();
void set_tuning_folder(const std::string& folder);
// For tests: another file.
void set_tuning_path(const std::string& path);

// Whether kernels are chosen by fixed rules, so that runs repeat bit by bit. Holds for kernels
// prepared afterwards.
bool deterministic();
void set_deterministic(bool on);

}  // namespace mixflow::kernels
