// An allocator of the user's own, in place of the caching one.

#pragma once

#include <c10/core/Allocator.h>

#include <functional>

#include "stream.h"

namespace simulated {

struct PluggedAllocator {
  // The address of `bytes` bytes on a device, for the stream with this native handle; nullptr if none are left.
  std::function<uintptr_t(size_t bytes, int device, uintptr_t stream)> take;
  std::function<void(uintptr_t address, size_t bytes, int device, uintptr_t stream)> give;
};

// Throws c10::Error if memory was already handed out.
void plug_in(PluggedAllocator allocator);
// Notes that memory was handed out: the allocator can no longer be changed.
void note_allocation();
bool is_plugged();
// Memory from the plugged allocator. Throws c10::OutOfMemoryError if it has none left.
c10::DataPtr allocate_plugged(size_t bytes, int device, Queue& queue);

}  // namespace simulated
