// Planted faults of graphs that concern the arguments or results of captured calls.

#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/stack.h>

#include "capture.h"

namespace simulated {

// Replaces arguments that are only read by copies of what they hold now.
void hold_inputs(torch::jit::Stack& call, const std::vector<bool>& written);
// Each replay moves the tensor to other memory, with the same values.
void move_at_replay(Capture& capture, const at::Tensor& result);

}  // namespace simulated
