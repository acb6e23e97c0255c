// Events that order work across processes: two counters in memory that processes share by a file's name.

#pragma once

#include <cstdint>
#include <string>

#include "stream.h"

namespace simulated {

// Maps the counters in a file, which is created if `create` is set. The mapping stays until the process ends.
// Throws std::system_error.
uintptr_t open_shared_event(const std::string& path, bool create);
// Records the point that a queue has reached with what is queued now.
void record_shared_event(uintptr_t event, Queue& queue);
// Work queued from now on runs after the latest record, no matter which process made it.
void wait_shared_event(uintptr_t event, Queue& queue);
// Whether the latest record is done; true if there is none.
bool shared_event_done(uintptr_t event);
void synchronize_shared_event(uintptr_t event);

}  // namespace simulated
