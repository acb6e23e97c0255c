// What Python sees of memory: histories, snapshots, private pools, pinned memory.

#pragma once

#include <pybind11/pybind11.h>

namespace simulated {

void add_memory(pybind11::module_& m);

}  // namespace simulated
