#include "plan/dispatch.h"

#include <algorithm>

namespace mixflow::plan {
namespace {

void check_out(const CallEntry& entry, const std::vector<Array>& out) {
  check(static_cast<int64_t>(out.size()) == entry.visible, "[", entry.name, "] expected ",
        entry.visible, " arrays in out, got ", out.size());
  for (size_t i = 0; i < out.size(); ++i) {
    const Desc& want = entry.out_descs[i];
    const Desc& got = out[i].desc;
    check(want.dtype == got.dtype && want.shape == got.shape && want.device == got.device, "[",
          entry.name, "] expected ", want.str(), " for out ", i, ", got ", got.str(),
          want.device == got.device ? "" : " on another device");
    for (size_t j = 0; j < i; ++j) {
      check(!out[i].overlaps(out[j]), "[", entry.name, "] expected out arrays in separate memory, ",
            "got ", j, " and ", i, " overlapping");
    }
  }
}

bool needs_temporary(const CallEntry& entry, const std::vector<Array>& inputs, int output,
                     const Array& out) {
  for (size_t i = 0; i < inputs.size(); ++i) {
    if (!out.overlaps(inputs[i])) continue;
    const auto pair = std::make_pair(output, static_cast<int>(i));
    const bool allowed =
        std::find(entry.inplace.begin(), entry.inplace.end(), pair) != entry.inplace.end();
    if (!allowed || !out.same_memory(inputs[i])) return true;
  }
  return false;
}

}  // namespace

CallResult push_call(const CallEntry& entry, Call call) {
  if (!call.out.empty()) check_out(entry, call.out);
  CallResult result;
  result.outputs.reserve(entry.out_descs.size());
  std::vector<size_t> copies;
  for (size_t i = 0; i < entry.out_descs.size(); ++i) {
    const bool given = i < call.out.size();
    if (given && !needs_temporary(entry, call.inputs, static_cast<int>(i), call.out[i])) {
      result.outputs.push_back(call.out[i]);
      continue;
    }
    if (given) copies.push_back(i);
    result.outputs.push_back(empty(entry.out_descs[i]));
  }
  std::vector<Array> args = std::move(call.inputs);
  args.insert(args.end(), result.outputs.begin(), result.outputs.end());
  RunOptions options;
  options.scalars = call.scalars;
  options.num_scalars = call.num_scalars;
  options.site = call.site;
  options.transient = true;
  auto binding = std::make_shared<const Binding>(entry.plan, std::move(args), nullptr, false);
  result.first_draw = push_run(binding, options);
  for (size_t i : copies) {
    push_copy(result.outputs[i], call.out[i], call.site);
    result.outputs[i] = call.out[i];
  }
  return result;
}

}  // namespace mixflow::plan
