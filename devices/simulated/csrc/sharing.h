// Memory of another process, and memory that another process can map.

#pragma once

#include <pybind11/pybind11.h>

namespace simulated {

void add_sharing(pybind11::module_& m);

}  // namespace simulated
