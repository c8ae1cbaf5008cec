// SequenceKernel: a kernel that is a short list of oneDNN primitives (reorders included) over the
// caller's buffers and one planned workspace.
#pragma once

#include <mutex>
#include <utility>

#include "onednn/common.h"

namespace mixflow::onednn {

// Hazard: a dnnl::memory holds its data pointer, so sharing one between concurrent runs is a race.
// Every run takes a private set of memory objects from a free list and puts it back; the list is
// as long as the largest number of runs that ever overlapped.
//
// Build order: slots, then steps, then finish(). Immutable afterwards; run() is thread-safe.
class SequenceKernel : public Kernel {
 public:
  using Slot = int;
  using Arguments = std::vector<std::pair<int, Slot>>;

  Slot input(int index, const memory::desc& desc) { return add(Place::input, index, desc); }
  Slot output(int index, const memory::desc& desc) { return add(Place::output, index, desc); }
  Slot scratch(const memory::desc& desc);

  // `slot` in the order `wanted`: itself, or a scratch copy that a reorder fills.
  Slot read_as(Slot slot, const memory::desc& wanted);
  // The same for input 1, the weights, whose copy a caller may keep (Kernel::prepare_weights).
  Slot read_weights(Slot slot, const memory::desc& wanted);
  // Where a primitive that writes `wanted` puts what `slot` gets: itself or a scratch tensor.
  // Call store() after that primitive's step.
  Slot write_as(Slot slot, const memory::desc& wanted);
  void store(Slot from, Slot to);

  void step(const dnnl::primitive& primitive, const memory::desc& scratchpad, Arguments arguments);
  void finish(const std::string& name, int thread_count, double flops);

  void run(const kernels::Buffers& buffers, const kernels::RunContext& context) const override;
  void prepare_weights(const void* weights, void* prepared) const override;
  SequenceKernel();
  ~SequenceKernel() override;

 private:
  enum class Place { input, output, workspace };
  struct SlotInfo {
    Place place;
    size_t position;  // index of the buffer, or offset in the workspace
    memory::desc desc;
  };
  struct Step {
    dnnl::primitive primitive;
    Arguments arguments;
  };
  struct Objects;

  Slot add(Place place, size_t position, const memory::desc& desc);
  void reorder(Slot from, Slot to);
  void execute(size_t first, size_t last, Objects& objects) const;
  std::unique_ptr<Objects> take() const;
  std::unique_ptr<Objects> make_objects() const;
  void give_back(std::unique_ptr<Objects> objects) const;

  std::vector<SlotInfo> slots_;
  std::vector<Step> steps_;
  std::vector<std::pair<int, memory::desc>> scratchpads_;  // of steps, placed by finish()
  size_t scratch_bytes_ = 0;
  // Weights and their copy, made by the steps [weights_begin_, weights_end_); -1 = no copy.
  Slot weights_ = -1, weights_copy_ = -1;
  size_t weights_begin_ = 0, weights_end_ = 0;
  mutable std::mutex mutex_;
  mutable std::vector<std::unique_ptr<Objects>> free_;
};

}  // namespace mixflow::onednn
