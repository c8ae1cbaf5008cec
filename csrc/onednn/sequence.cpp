#include "onednn/sequence.h"

#include <algorithm>

namespace mixflow::onednn {
namespace {

size_t aligned(size_t bytes) { return (bytes + 63) / 64 * 64; }

}  // namespace

// The memory objects and argument lists of one run.
struct SequenceKernel::Objects {
  dnnl::stream stream{cpu_engine()};
  std::vector<memory> memories;                         // one per slot
  std::vector<std::vector<dnnl_exec_arg_t>> arguments;  // one list per step
};

SequenceKernel::SequenceKernel() = default;
SequenceKernel::~SequenceKernel() = default;

SequenceKernel::Slot SequenceKernel::add(Place place, size_t position, const memory::desc& desc) {
  slots_.push_back({place, position, desc});
  return static_cast<Slot>(slots_.size()) - 1;
}

SequenceKernel::Slot SequenceKernel::scratch(const memory::desc& desc) {
  const size_t offset = scratch_bytes_;
  scratch_bytes_ += aligned(desc.get_size());
  return add(Place::workspace, offset, desc);
}

SequenceKernel::Slot SequenceKernel::read_as(Slot slot, const memory::desc& wanted) {
  if (slots_[slot].desc == wanted) return slot;
  const Slot copy = scratch(wanted);
  reorder(slot, copy);
  return copy;
}

SequenceKernel::Slot SequenceKernel::read_weights(Slot slot, const memory::desc& wanted) {
  const size_t first = steps_.size(), scratchpads = scratchpads_.size();
  const Slot copy = read_as(slot, wanted);
  if (copy == slot || scratchpads_.size() != scratchpads) return copy;
  weights_ = slot;
  weights_copy_ = copy;
  weights_begin_ = first;
  weights_end_ = steps_.size();
  prepared_bytes = aligned(wanted.get_size());
  return copy;
}

SequenceKernel::Slot SequenceKernel::write_as(Slot slot, const memory::desc& wanted) {
  return slots_[slot].desc == wanted ? slot : scratch(wanted);
}

void SequenceKernel::store(Slot from, Slot to) {
  if (from != to) reorder(from, to);
}

void SequenceKernel::reorder(Slot from, Slot to) {
  const dnnl::reorder::primitive_desc desc(cpu_engine(), slots_[from].desc, cpu_engine(),
                                           slots_[to].desc, user_scratchpad());
  step(dnnl::reorder(desc), desc.scratchpad_desc(), {{DNNL_ARG_FROM, from}, {DNNL_ARG_TO, to}});
}

void SequenceKernel::step(const dnnl::primitive& primitive, const memory::desc& scratchpad,
                          Arguments arguments) {
  if (scratchpad.get_size() > 0) {
    scratchpads_.emplace_back(static_cast<int>(steps_.size()), scratchpad);
  }
  steps_.push_back({primitive, std::move(arguments)});
}

void SequenceKernel::finish(const std::string& name, int thread_count, double flops) {
  size_t largest = 0;
  for (const auto& [step, desc] : scratchpads_) {
    // Steps run one after the other, so that their scratchpads share bytes.
    const Slot slot = add(Place::workspace, scratch_bytes_, desc);
    steps_[step].arguments.emplace_back(DNNL_ARG_SCRATCHPAD, slot);
    largest = std::max(largest, desc.get_size());
  }
  workspace_bytes = scratch_bytes_ + aligned(largest);
  threads = thread_count;
  cheap = is_cheap(flops, thread_count);
  implementation = "onednn:" + name;
  give_back(make_objects());
}

std::unique_ptr<SequenceKernel::Objects> SequenceKernel::make_objects() const {
  auto objects = std::make_unique<Objects>();
  for (const SlotInfo& slot : slots_) {
    objects->memories.emplace_back(slot.desc, cpu_engine(), static_cast<void*>(nullptr));
  }
  for (const Step& step : steps_) {
    auto& list = objects->arguments.emplace_back();
    for (const auto& [arg, slot] : step.arguments) {
      list.push_back({arg, objects->memories[slot].get()});
    }
  }
  return objects;
}

std::unique_ptr<SequenceKernel::Objects> SequenceKernel::take() const {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (!free_.empty()) {
      auto objects = std::move(free_.back());
      free_.pop_back();
      return objects;
    }
  }
  return make_objects();
}

void SequenceKernel::give_back(std::unique_ptr<Objects> objects) const {
  const std::lock_guard<std::mutex> lock(mutex_);
  free_.push_back(std::move(objects));
}

void SequenceKernel::run(const kernels::Buffers& buffers, const kernels::RunContext&) const {
  const ThreadScope scope(threads);
  auto objects = take();
  for (size_t i = 0; i < slots_.size(); ++i) {
    const SlotInfo& slot = slots_[i];
    void* data = slot.place == Place::input ? const_cast<void*>(buffers.in[slot.position])
                 : slot.place == Place::output
                     ? buffers.out[slot.position]
                     : static_cast<char*>(buffers.workspace) + slot.position;
    dnnl_memory_set_data_handle(objects->memories[i].get(), data);
  }
  size_t first = 0;
  if (buffers.prepared && weights_copy_ >= 0) {
    dnnl_memory_set_data_handle(objects->memories[weights_copy_].get(),
                                const_cast<void*>(buffers.prepared));
    execute(0, weights_begin_, *objects);
    first = weights_end_;
  }
  execute(first, steps_.size(), *objects);
  give_back(std::move(objects));
}

void SequenceKernel::prepare_weights(const void* weights, void* prepared) const {
  const ThreadScope scope(threads);
  auto objects = take();
  dnnl_memory_set_data_handle(objects->memories[weights_].get(), const_cast<void*>(weights));
  dnnl_memory_set_data_handle(objects->memories[weights_copy_].get(), prepared);
  execute(weights_begin_, weights_end_, *objects);
  give_back(std::move(objects));
}

void SequenceKernel::execute(size_t first, size_t last, Objects& objects) const {
  dnnl_status_t status = dnnl_success;
  for (size_t i = first; i < last && status == dnnl_success; ++i) {
    const auto& list = objects.arguments[i];
    status = dnnl_primitive_execute(steps_[i].primitive.get(), objects.stream.get(),
                                    static_cast<int>(list.size()), list.data());
  }
  check(status == dnnl_success, "[", implementation, "] expected success, got oneDNN status ",
        static_cast<int>(status));
}

}  // namespace mixflow::onednn
