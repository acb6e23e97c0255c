// Planted faults of kernels that are not about layouts: gradients, random fills, errors, what training calls.

#pragma once

#include <vector>

#include "misbehave.h"

namespace simulated {

std::vector<Misbehaviour> misbehaviours_of_calls();

}  // namespace simulated
