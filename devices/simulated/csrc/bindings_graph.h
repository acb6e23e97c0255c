#pragma once

#include <pybind11/pybind11.h>

namespace simulated {

// Adds the Python functions for graphs, beyond torch.accelerator.Graph.
void add_graphs(pybind11::module_& m);

}  // namespace simulated
