// An allocator of the user's own, in place of the caching one.

#pragma once

#include <c10/core/Allocator.h>

#include <functional>

#include "stream.h"

namespace simulated {

struct PluggedAllocator {
  // An address of the device for so many bytes on a device, for the stream of this native handle; nullptr: none left.
  std::function<uintptr_t(size_t bytes, int device, uintptr_t stream)> take;
  std::function<void(uintptr_t address, size_t bytes, int device, uintptr_t stream)> give;
};

// Throws c10::Error where memory was handed out already.
void plug_in(PluggedAllocator allocator);
// Notes that memory was handed out: from now on the allocator stays.
void note_allocation();
bool is_plugged();
// Of the plugged allocator. Throws c10::OutOfMemoryError where it has none left.
c10::DataPtr allocate_plugged(size_t bytes, int device, Queue& queue);

}  // namespace simulated
