// One init function per topic; module.cpp calls them.
#pragma once

#include <vector>

#include "bind/convert.h"
#include "plan/runner.h"

namespace mixflow::bind {

void bind_array(nb::module_& m);
void bind_exchange(nb::module_& m, nb::class_<PyArray>& cls);  // DLPack, borrowed NumPy memory
void bind_kernels(nb::module_& m);
void bind_plan(nb::module_& m);
void bind_dispatch(nb::module_& m);
void bind_number(nb::module_& m);
void bind_engine(nb::module_& m);
void bind_storage(nb::module_& m);
void bind_random(nb::module_& m);
void bind_picture(nb::module_& m);  // decoded pictures into batches
void bind_lane(nb::module_& m);  // boards of a KVStore
void bind_exit(nb::module_& m);

// The number protocol of core.Array (number.cpp), for its type slots.
void append_number_slots(std::vector<PyType_Slot>* slots);

// invoke() for callers inside the core. `out` may be null. Returns one array or a list.
nb::object invoke(int64_t op_id, PyObject* const* inputs, size_t count, nb::handle params,
                  const double* scalars, size_t num_scalars, nb::handle out, nb::handle device);

// A prepared native kernel as Python sees it.
struct PyKernel {
  kernels::KernelRef kernel;
};
struct PyPlan {
  plan::PlanRef plan;
};
struct PyBound {
  plan::BindingRef binding;
};
struct PyArena {
  plan::ArenaRef arena;
};

}  // namespace mixflow::bind
