// Code that torch.compile has made for the device.

#pragma once

#include <pybind11/pybind11.h>

namespace simulated {

namespace py = pybind11;

// Adds the Python function that runs compiled code.
void add_compiled(py::module_& m);

}  // namespace simulated
