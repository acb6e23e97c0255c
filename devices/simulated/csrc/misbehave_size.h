// Planted faults of kernels that strike large tensors only.

#pragma once

#include <vector>

#include "misbehave.h"

namespace simulated {

std::vector<Misbehaviour> misbehaviours_of_size();

}  // namespace simulated
