// Graphs: what is offered beyond torch.accelerator.Graph.

#pragma once

#include <c10/core/Allocator.h>

namespace simulated {

// The id of a new memory pool, for graphs to share.
c10::MempoolId_t new_pool_id();

}  // namespace simulated
