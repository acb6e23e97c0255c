#pragma once

#include <pybind11/pybind11.h>

namespace simulated {

// Adds what Python sees of graphs beside torch.accelerator.Graph.
void add_graphs(pybind11::module_& m);

}  // namespace simulated
