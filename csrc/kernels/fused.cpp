// Elementwise kernels: a program run block by block, so that temporaries stay in the L1 cache.
//
// Hazard: outputs may be exactly the memory of inputs. A block of an output is written only after
// every read of that block (fused_code.cpp orders this), and blocks are disjoint.
#include <cstring>

#include "kernels/dispatch.h"
#include "kernels/fused_code.h"
#include "kernels/whole.h"

namespace mixflow::kernels {
namespace {

constexpr int64_t kBlockBytes = 4096;
constexpr int kStackRegisters = 8;
constexpr int kMaxSlots = 192;
constexpr int kMaxWhole = 8;  // inputs, or outputs, of a program that is compiled whole
constexpr int64_t kShortRow = 256;  // rows below this are packed into blocks of several rows

struct Slot {
  const void* data;
  bool scalar;
};

enum class Access : uint8_t { full, scalar, row, expanded };

struct InputPlan {
  Access access = Access::full;
  int64_t size = 4;              // bytes of one element
  int expansion = -1;            // scratch register of an expanded input
  bool periodic = false;         // the expansion is the same for every block
  std::vector<int64_t> strides;  // elements, per collapsed dimension
};

// The output's index space after dimensions were merged, cut into units of one block each.
struct Space {
  std::vector<int64_t> dims;
  int64_t total = 1;
  int64_t inner = 1;
  bool packed = false;
  int64_t block = 0;           // elements of a unit, except the last (of a row or of all)
  int64_t units_per_row = 1;
  int64_t units = 0;
};

Shape broadcast_shape(const Request& r) {
  Shape result = r.inputs.empty() ? r.outputs[0].shape : Shape{};
  for (const Desc& input : r.inputs) {
    const Shape& a = result;
    const Shape& b = input.shape;
    const int ndim = std::max(a.ndim(), b.ndim());
    std::vector<int64_t> dims(ndim);
    for (int i = 0; i < ndim; ++i) {
      const int ia = i - (ndim - a.ndim());
      const int ib = i - (ndim - b.ndim());
      const int64_t da = ia < 0 ? 1 : a[ia];
      const int64_t db = ib < 0 ? 1 : b[ib];
      check(da == db || da == 1 || db == 1, "[", r.primitive,
            "] expected shapes that broadcast, got ", a.str(), " and ", b.str());
      dims[i] = da == 1 ? db : da;
    }
    result = Shape(dims.begin(), dims.end());
  }
  return result;
}

std::vector<int64_t> broadcast_strides(const Shape& shape, const Shape& full) {
  std::vector<int64_t> strides(full.ndim(), 0);
  int64_t stride = 1;
  for (int i = shape.ndim() - 1; i >= 0; --i) {
    strides[full.ndim() - shape.ndim() + i] = shape[i] == 1 ? 0 : stride;
    stride *= shape[i];
  }
  return strides;
}

class FusedKernel final : public Kernel {
 public:
  FusedKernel(const Request& r, const Program& program)
      : code_(compile_program(program, static_cast<int>(r.inputs.size()))),
        whole_(find_whole(normal_form(program, &whole_literals_))) {
    const Shape shape = broadcast_shape(r);
    for (const Desc& output : r.outputs) expect_shape(r, "outputs", output.shape, shape);
    check(code_.slots() <= kMaxSlots, "[", r.primitive, "] expected at most ", kMaxSlots,
          " inputs, outputs and temporaries, got ", code_.slots());
    space_.total = shape.size();
    for (const Desc& output : r.outputs) output_sizes_.push_back(size_of(output.dtype));
    collapse(r, shape);
    choose_blocks();
    if (space_.total > 0) {
      for (InputPlan& input : inputs_) choose_access(input);
    }
    scratch_ = code_.registers + expansions_;
    set_cost(*this, r, code_.cost * static_cast<double>(space_.total) / 1000.0);
    if (scratch_ > kStackRegisters) workspace_bytes = size_t(threads) * scratch_ * kBlockBytes;
    allow_inplace(r, shape);
    implementation = whole_ ? "fused:whole" : "fused";
  }

  void run(const Buffers& buffers, const RunContext& context) const override {
    if (space_.total == 0) return;
    if (context.team && space_.total >= context.share_from && scratch_ <= kStackRegisters) {
      return run_shared(buffers, *context.team);
    }
    const int parts = threads;
    parallel_for(parts, parts, 1, [&](int64_t first, int64_t last) {
      for (int64_t part = first; part < last; ++part) {
        run_part(buffers, part, space_.units * part / parts, space_.units * (part + 1) / parts);
      }
    });
  }

 private:
  // Helpers that are awake take a part: of a parameter's update, the rows whose gradient they made.
  void run_shared(const Buffers& buffers, Team& team) const {
    const int pieces = static_cast<int>(std::min<int64_t>(2 * team.size(), space_.units));
    team.run(pieces, [&](int piece) {
      run_part(buffers, 0, space_.units * piece / pieces, space_.units * (piece + 1) / pieces);
    });
  }

  void collapse(const Request& r, const Shape& shape) {
    std::vector<std::vector<int64_t>> strides;
    for (const Desc& input : r.inputs) strides.push_back(broadcast_strides(input.shape, shape));
    inputs_.resize(r.inputs.size());
    for (size_t i = 0; i < inputs_.size(); ++i) inputs_[i].size = size_of(r.inputs[i].dtype);
    for (int d = 0; d < shape.ndim(); ++d) {
      if (shape[d] == 1) continue;
      const bool merge = !space_.dims.empty() && continues(strides, d, shape[d]);
      if (merge) {
        space_.dims.back() *= shape[d];
      } else {
        space_.dims.push_back(shape[d]);
      }
      for (size_t i = 0; i < inputs_.size(); ++i) {
        if (merge) inputs_[i].strides.pop_back();
        inputs_[i].strides.push_back(strides[i][d]);
      }
    }
    space_.inner = space_.dims.empty() ? 1 : space_.dims.back();
  }

  bool continues(const std::vector<std::vector<int64_t>>& strides, int d, int64_t dim) const {
    for (size_t i = 0; i < inputs_.size(); ++i) {
      if (inputs_[i].strides.back() != strides[i][d] * dim) return false;
    }
    return true;
  }

  void choose_blocks() {
    const int64_t most = kBlockBytes / (code_.wide ? 8 : 4);
    Space& s = space_;
    if (s.total == 0) return;
    s.packed = s.dims.size() > 1 && s.inner < kShortRow;
    if (s.packed) {
      s.block = packed_block(most);
      s.units = (s.total + s.block - 1) / s.block;
      return;
    }
    s.block = std::min(most, s.inner);
    s.units_per_row = (s.inner + s.block - 1) / s.block;
    s.units = s.total / s.inner * s.units_per_row;
  }

  // A multiple of the longest run of trailing dimensions that fits: broadcast inputs that only
  // vary within it then look the same in every block.
  int64_t packed_block(int64_t most) const {
    int64_t period = 1;
    for (auto it = space_.dims.rbegin(); it != space_.dims.rend(); ++it) {
      if (period * *it > most) break;
      period *= *it;
    }
    return most / period * period;
  }

  void choose_access(InputPlan& input) {
    int64_t period = space_.total;
    int64_t expected = 1;
    bool full = true;
    bool scalar = true;
    for (int d = static_cast<int>(space_.dims.size()) - 1; d >= 0; --d) {
      full &= input.strides[d] == expected;
      scalar &= input.strides[d] == 0;
      expected *= space_.dims[d];
    }
    for (size_t d = 0; d < space_.dims.size() && input.strides[d] == 0; ++d) {
      period /= space_.dims[d];
    }
    input.access = scalar          ? Access::scalar
                   : full          ? Access::full
                   : space_.packed ? Access::expanded
                                   : Access::row;
    if (input.access != Access::expanded) return;
    input.periodic = space_.block % period == 0;
    input.expansion = expansions_++;
  }

  void allow_inplace(const Request& r, const Shape& shape) {
    for (size_t o = 0; o < r.outputs.size(); ++o) {
      for (size_t i = 0; i < r.inputs.size(); ++i) {
        const bool same = r.inputs[i].shape == shape &&
                          size_of(r.inputs[i].dtype) == size_of(r.outputs[o].dtype);
        if (same) inplace.emplace_back(static_cast<int>(o), static_cast<int>(i));
      }
    }
  }

  void run_part(const Buffers& buffers, int64_t part, int64_t begin, int64_t end) const {
    if (scratch_ <= kStackRegisters) {
      alignas(64) char stack[kStackRegisters * kBlockBytes];
      run_units(buffers, stack, begin, end);
    } else {
      char* scratch = static_cast<char*>(buffers.workspace) + part * scratch_ * kBlockBytes;
      run_units(buffers, scratch, begin, end);
    }
  }

  void run_units(const Buffers& buffers, char* scratch, int64_t begin, int64_t end) const {
    Slot slots[kMaxSlots];
    for (size_t i = 0; i < code_.literals.size(); ++i) {
      slots[code_.literal_slot(static_cast<int>(i))] = {code_.literals[i].data(), true};
    }
    for (int i = 0; i < code_.registers; ++i) {
      slots[code_.register_slot(i)] = {scratch + i * kBlockBytes, false};
    }
    char* expansions = scratch + code_.registers * kBlockBytes;
    for (int64_t unit = begin; unit < end; ++unit) {
      const int64_t n = place(buffers, unit, unit == begin, expansions, slots);
      if (whole_ && run_whole(slots, n)) continue;
      for (const Step& step : code_.steps) run_step(step, slots, n);
    }
  }

  // False when an input is a single value where the program has one per element, or the reverse.
  bool run_whole(const Slot* slots, int64_t n) const {
    const float* in[kMaxWhole];
    float* out[kMaxWhole];
    for (int i = 0; i < code_.inputs; ++i) {
      if (slots[i].scalar != (whole_->inputs[i] == 's')) return false;
      in[i] = static_cast<const float*>(slots[i].data);
    }
    for (int k = 0; k < code_.outputs; ++k) {
      out[k] = static_cast<float*>(const_cast<void*>(slots[code_.output_slot(k)].data));
    }
    whole_->run(in, out, whole_literals_.data(), n);
    return true;
  }

  static void run_step(const Step& step, const Slot* slots, int64_t n) {
    const void* args[3] = {nullptr, nullptr, nullptr};
    int scalars = 0;
    for (int k = 0; k < step.arity; ++k) {
      const Slot& slot = slots[step.args[k]];
      args[k] = slot.data;
      scalars |= static_cast<int>(slot.scalar) << k;
    }
    void* target = const_cast<void*>(slots[step.target].data);
    step.loops.by_scalars[scalars](args[0], args[1], args[2], target, n);
  }

  // Points the slots of inputs and outputs at one unit; returns its number of elements.
  int64_t place(const Buffers& buffers, int64_t unit, bool first, char* expansions,
                Slot* slots) const {
    const Space& s = space_;
    const int64_t row = s.packed ? 0 : unit / s.units_per_row;
    const int64_t column = s.packed ? 0 : (unit - row * s.units_per_row) * s.block;
    const int64_t start = s.packed ? unit * s.block : row * s.inner + column;
    const int64_t n = std::min(s.block, s.packed ? s.total - start : s.inner - column);
    for (size_t i = 0; i < inputs_.size(); ++i) {
      const InputPlan& input = inputs_[i];
      const char* base = static_cast<const char*>(buffers.in[i]);
      switch (input.access) {
        case Access::full:
          slots[i] = {base + start * input.size, false};
          break;
        case Access::scalar:
          slots[i] = {base, true};
          break;
        case Access::row: {
          const int64_t step = input.strides.back();
          slots[i] = {base + (row_offset(input, row) + column * step) * input.size, step == 0};
          break;
        }
        case Access::expanded: {
          char* target = expansions + input.expansion * kBlockBytes;
          if (first || !input.periodic) expand(input, base, start / s.inner, n / s.inner, target);
          slots[i] = {target, false};
        }
      }
    }
    for (int k = 0; k < code_.outputs; ++k) {
      char* base = static_cast<char*>(buffers.out[k]);
      slots[code_.output_slot(k)] = {base + start * output_sizes_[k], false};
    }
    return n;
  }

  int64_t row_offset(const InputPlan& input, int64_t row) const {
    int64_t offset = 0;
    for (int d = static_cast<int>(space_.dims.size()) - 2; d >= 0; --d) {
      offset += row % space_.dims[d] * input.strides[d];
      row /= space_.dims[d];
    }
    return offset;
  }

  void expand(const InputPlan& input, const char* base, int64_t row, int64_t rows,
              char* target) const {
    with_size(input.size, [&](auto tag) {
      using T = typename decltype(tag)::type;
      const T* from = reinterpret_cast<const T*>(base);
      T* to = reinterpret_cast<T*>(target);
      const bool varies = input.strides.back() != 0;
      for (int64_t r = row; r < row + rows; ++r, to += space_.inner) {
        const T* source = from + row_offset(input, r);
        for (int64_t i = 0; i < space_.inner; ++i) to[i] = source[varies ? i : 0];
      }
    });
  }

  Code code_;
  std::vector<float> whole_literals_;
  const WholeProgram* whole_;  // null: instruction by instruction
  Space space_;
  std::vector<InputPlan> inputs_;
  std::vector<int64_t> output_sizes_;
  int expansions_ = 0;
  int scratch_ = 0;
};

std::vector<DType> dtypes_of(const std::vector<Desc>& descs) {
  std::vector<DType> dtypes;
  for (const Desc& desc : descs) dtypes.push_back(desc.dtype);
  return dtypes;
}

std::unique_ptr<Kernel> make_fused(const Request& r) {
  expect_plain(r);
  check(!r.outputs.empty(), "[fused] expected outputs, got none");
  const Program program =
      parse_program(r.attrs.text("program"), dtypes_of(r.inputs), dtypes_of(r.outputs));
  return std::make_unique<FusedKernel>(r, program);
}

std::unique_ptr<Kernel> make_single(const OpInfo& info, const Request& r) {
  expect_plain(r);
  expect_counts(r, info.arity, 1);
  const Program program = single_program(info, dtypes_of(r.inputs), r.outputs[0].dtype);
  return std::make_unique<FusedKernel>(r, program);
}

}  // namespace

void register_fused_kernels(Registry& registry) {
  registry.add("fused", 0, "fused", make_fused);
  for (const OpInfo& info : all_ops()) {
    registry.add(info.name, 0, "fused",
                 [&info](const Request& request) { return make_single(info, request); });
  }
}

}  // namespace mixflow::kernels
