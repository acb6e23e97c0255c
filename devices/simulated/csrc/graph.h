// Graphs: what of them is offered beside torch.accelerator.Graph.

#pragma once

#include <c10/core/Allocator.h>

namespace simulated {

// The id of a memory pool that no graph has, for graphs to share.
c10::MempoolId_t new_pool_id();

}  // namespace simulated
