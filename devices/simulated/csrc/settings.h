// The allocator's settings, as PYTORCH_ALLOC_CONF and torch.simulated.memory._set_allocator_settings give them.

#pragma once

#include <cstddef>

namespace simulated {

// Makes torch refuse unknown keys, and keys without effect here; `on` false undoes that.
void register_settings(bool on);

// In bytes: larger blocks are not split. SIZE_MAX if all are split.
size_t max_split_size();
// The number of steps between two powers of two to which a size is rounded up; 0 or 1: not rounded.
size_t roundup_divisions(size_t bytes);

}  // namespace simulated
