// The process group of the device for torch.distributed.

#pragma once

#include <torch/csrc/utils/pybind.h>

namespace simulated {

// Adds make_group(gloo, rank, size) to the module.
void add_group(pybind11::module_& m);

}  // namespace simulated
