// Call sites: which line of the user's program made a task. Interned, so that a task carries a
// number and no Python object; the text is made once per line, under the GIL.
#include <mutex>
#include <string>
#include <unordered_map>
#include <vector>

#include "bind/python.h"
#include "engine/engine.h"

namespace mixflow::bind {
namespace {

struct Position {
  PyCodeObject* code;
  int instruction;
  bool operator==(const Position& o) const {
    return code == o.code && instruction == o.instruction;
  }
};

struct PositionHash {
  size_t operator()(const Position& p) const {
    return std::hash<void*>()(p.code) * 31 + static_cast<size_t>(p.instruction);
  }
};

// A program that makes code objects without end must not grow this without end.
constexpr size_t kMostSites = 1 << 16;

struct Sites {
  std::string package;                             // directory of mixflow, with the separator
  std::unordered_map<PyCodeObject*, bool> inside;  // GIL; keys are referenced for ever
  std::unordered_map<Position, uint32_t, PositionHash> ids;  // GIL
  std::mutex mutex;
  std::vector<std::string> texts{""};
};

Sites& sites() {
  static Sites* instance = new Sites();  // NOLINT: workers may ask at exit
  return *instance;
}

bool inside_package(PyCodeObject* code) {
  Sites& s = sites();
  auto found = s.inside.find(code);
  if (found != s.inside.end()) return found->second;
  const char* file = PyUnicode_AsUTF8(code->co_filename);
  if (!file) PyErr_Clear();
  const bool inside = file && s.package.size() > 1 &&
                      std::string(file).compare(0, s.package.size(), s.package) == 0;
  if (s.inside.size() < kMostSites) {
    Py_INCREF(code);  // the address stays this code's
    s.inside.emplace(code, inside);
  }
  return inside;
}

uint32_t intern(PyFrameObject* frame, PyCodeObject* code) {
  Sites& s = sites();
  const Position position{code, PyFrame_GetLasti(frame)};
  auto found = s.ids.find(position);
  if (found != s.ids.end()) return found->second;
  if (s.ids.size() >= kMostSites || s.inside.count(code) == 0) return 0;
  const char* file = PyUnicode_AsUTF8(code->co_filename);
  if (!file) PyErr_Clear();
  std::string text = file ? file : "?";
  text = text.substr(text.find_last_of("/\\") + 1);
  text += ":" + std::to_string(PyFrame_GetLineNumber(frame));
  std::lock_guard<std::mutex> lock(s.mutex);
  s.texts.push_back(text);
  const auto id = static_cast<uint32_t>(s.texts.size() - 1);
  s.ids.emplace(position, id);
  return id;
}

}  // namespace

uint32_t current_site() {
  PyFrameObject* frame = PyThreadState_GetFrame(PyThreadState_Get());
  uint32_t site = 0;
  while (frame) {
    PyCodeObject* code = PyFrame_GetCode(frame);
    const bool inside = inside_package(code);
    if (!inside) site = intern(frame, code);
    Py_DECREF(code);
    PyFrameObject* back = inside ? PyFrame_GetBack(frame) : nullptr;
    Py_DECREF(frame);
    frame = back;
  }
  return site;
}

std::string site_text(uint32_t site) {
  Sites& s = sites();
  std::lock_guard<std::mutex> lock(s.mutex);
  return site < s.texts.size() ? s.texts[site] : "";
}

void install_sites() {
  const std::string file =
      nb::cast<std::string>(nb::module_::import_("mixflow.errors").attr("__file__"));
  sites().package = file.substr(0, file.find_last_of("/\\") + 1);
  engine::set_site_resolver(site_text);
}

}  // namespace mixflow::bind
