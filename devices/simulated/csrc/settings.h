// The allocator's settings, as PYTORCH_ALLOC_CONF and torch.simulated.memory._set_allocator_settings give them.

#pragma once

#include <cstddef>

namespace simulated {

// Makes torch refuse keys that nobody knows, and those that have no effect here. `on` false undoes it.
void register_settings(bool on);

// In bytes: larger blocks are not split. SIZE_MAX where all are.
size_t max_split_size();
// The number of steps between two powers of two that a size is rounded up to; 0 or 1: it is not.
size_t roundup_divisions(size_t bytes);

}  // namespace simulated
