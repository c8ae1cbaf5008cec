#include "kernels/tuner.h"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <exception>
#include <fstream>
#include <system_error>
#include <thread>

#include "engine/worker_team.h"
#include "kernels/isa.h"

namespace mixflow::kernels {
namespace {

std::atomic<bool> fixed_rules{false};

// Memory aligned to 64 bytes, filled with numbers that are neither zero nor denormal.
class Dummy {
 public:
  explicit Dummy(size_t bytes) : memory_(bytes / sizeof(float) + 32) {
    for (size_t i = 0; i < memory_.size(); ++i) {
      memory_[i] = static_cast<float>(i * 2654435761u % 1024) / 512.0f - 1.0f;
    }
  }
  void* data() {
    const auto at = reinterpret_cast<uintptr_t>(memory_.data());
    return reinterpret_cast<void*>((at + 63) / 64 * 64);
  }

 private:
  std::vector<float> memory_;
};

// Room for every blocked order: channels in whole blocks of 16.
size_t room(const Desc& desc) {
  if (desc.layout.plain() || desc.shape.ndim() < 2) return static_cast<size_t>(desc.bytes());
  const int64_t channels = std::max<int64_t>(1, desc.shape[1]);
  return static_cast<size_t>(desc.bytes() / channels * ((channels + 15) / 16 * 16));
}

struct Trial {
  std::string name;
  std::shared_ptr<const Kernel> kernel;
  double seconds = 0;
};

class Bench {
 public:
  explicit Bench(const Request& request) {
    for (const Desc& desc : request.inputs) in_.emplace_back(room(desc));
    for (const Desc& desc : request.outputs) out_.emplace_back(room(desc));
  }

  // One run to warm up, then the least of two or three, the candidates by turns: a noisy neighbour
  // then hits them alike.
  void time(std::vector<Trial>& trials) {
    size_t workspace = 0;
    for (const Trial& t : trials) workspace = std::max(workspace, t.kernel->workspace_bytes);
    Dummy scratch(workspace);
    double slowest = 0;
    for (Trial& t : trials) slowest = std::max(slowest, once(t, scratch));
    const int rounds = slowest > 0.1 ? 2 : 3;
    for (int round = 0; round < rounds; ++round) {
      for (Trial& t : trials) {
        const double seconds = once(t, scratch);
        t.seconds = round == 0 ? seconds : std::min(t.seconds, seconds);
      }
    }
  }

 private:
  double once(const Trial& trial, Dummy& scratch) {
    std::vector<const void*> in;
    std::vector<void*> out;
    for (Dummy& d : in_) in.push_back(d.data());
    for (Dummy& d : out_) out.push_back(d.data());
    RunContext context;
    if (trial.kernel->teamwork) context.team = &engine::summon_team(trial.kernel->threads);
    const auto start = std::chrono::steady_clock::now();
    trial.kernel->run({in.data(), out.data(), scratch.data()}, context);
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  }

  std::vector<Dummy> in_, out_;
};

// On a thread of its own: the caller must not be left with a team of threads, which would not
// survive a fork. False when memory or threads ran out.
bool timed(const Request& request, std::vector<Trial>& trials) {
  bool done = false;
  try {
    std::thread([&] {
      try {
        Bench(request).time(trials);
        done = true;
      } catch (const std::exception&) {
      }
    }).join();
  } catch (const std::system_error&) {
  }
  return done;
}

std::string fastest(const Request& request, const std::vector<Candidate>& candidates) {
  std::vector<Trial> trials;
  for (const Candidate& c : candidates) {
    if (auto kernel = c.prepare()) trials.push_back({c.name, std::move(kernel)});
  }
  if (trials.empty()) return "";
  if (trials.size() > 1 && !timed(request, trials)) return "";
  return std::min_element(trials.begin(), trials.end(),
                          [](const Trial& a, const Trial& b) { return a.seconds < b.seconds; })
      ->name;
}

// The text between a mark and the next quote; moves `at` behind it. Keys and names hold no quotes.
bool quoted(const std::string& line, const std::string& mark, size_t& at, std::string& value) {
  if (line.compare(at, mark.size(), mark) != 0) return false;
  const size_t begin = at + mark.size(), end = line.find('"', begin);
  if (end == std::string::npos) return false;
  value = line.substr(begin, end - begin);
  at = end + 1;
  return true;
}

bool parse(const std::string& line, std::string& key, std::string& choice) {
  size_t at = 0;
  return quoted(line, "{\"key\": \"", at, key) && quoted(line, ", \"choice\": \"", at, choice) &&
         line.substr(at) == "}";
}

std::string processor() {
  std::ifstream info("/proc/cpuinfo");
  std::string text = "isa" + std::to_string(static_cast<int>(best_isa()));
  for (std::string line; std::getline(info, line) && !line.empty();) {
    for (const char* field : {"model name", "cpu family", "model\t", "stepping", "cache size"}) {
      if (line.rfind(field, 0) == 0) text += line;
    }
  }
  return text;
}

// FNV-1a.
std::string hash_of(const std::string& text) {
  uint64_t hash = 14695981039346656037u;
  for (unsigned char c : text) hash = (hash ^ c) * 1099511628211u;
  char name[20];
  std::snprintf(name, sizeof name, "%016llx", static_cast<unsigned long long>(hash));
  return name;
}

void make_folders(const std::string& path) {
  for (size_t at = path.find('/', 1); at != std::string::npos; at = path.find('/', at + 1)) {
    mkdir(path.substr(0, at).c_str(), 0755);
  }
}

std::mutex current_mutex;
std::string folder;  // of the process's file; empty = none
std::shared_ptr<Tuner> current;

}  // namespace

// Lines of other processes come in; choices made here stay.
void Tuner::load() {
  loaded_ = true;
  if (path_.empty()) return;
  std::ifstream file(path_);
  std::string key, choice;
  for (std::string line; std::getline(file, line);) {
    if (parse(line, key, choice)) choices_.emplace(key, choice);
  }
}

// A cache that cannot be written costs time only, so failures are silent.
void Tuner::save() const {
  if (path_.empty()) return;
  make_folders(path_);
  const std::string temporary = path_ + "." + std::to_string(getpid());
  {
    std::ofstream file(temporary, std::ios::trunc);
    for (const auto& [key, choice] : choices_) {
      file << "{\"key\": \"" << key << "\", \"choice\": \"" << choice << "\"}\n";
    }
    file.close();
    if (!file) {
      std::remove(temporary.c_str());
      return;
    }
  }
  if (std::rename(temporary.c_str(), path_.c_str()) != 0) std::remove(temporary.c_str());
}

std::string Tuner::choose(const std::string& key, const Request& request,
                          const std::vector<Candidate>& candidates) {
  std::lock_guard lock(mutex_);
  if (!loaded_) load();
  const auto known = choices_.find(key);
  if (known != choices_.end()) {
    for (const Candidate& c : candidates) {
      if (c.name == known->second) return c.name;
    }
  }
  const std::string name = fastest(request, candidates);
  if (name.empty()) return name;
  load();
  choices_[key] = name;
  save();
  return name;
}

// The name of the file is found on first use: reading about the processor takes a moment.
std::shared_ptr<Tuner> tuner() {
  std::lock_guard lock(current_mutex);
  if (!current) {
    current = std::make_shared<Tuner>(
        folder.empty() ? "" : folder + "/tuning-" + hash_of(processor()) + ".json");
  }
  return current;
}

void set_tuning_folder(const std::string& path) {
  std::lock_guard lock(current_mutex);
  folder = path;
  current = nullptr;
}

void set_tuning_path(const std::string& path) {
  std::lock_guard lock(current_mutex);
  current = std::make_shared<Tuner>(path);
}

bool deterministic() { return fixed_rules; }
void set_deterministic(bool on) { fixed_rules = on; }

}  // namespace mixflow::kernels
