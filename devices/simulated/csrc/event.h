// Events: marks in a queue, for waiting, querying and measuring time.

#pragma once

#include "stream.h"

namespace simulated {

// An event is made by its first record. Each record leaves a new mark; waiting takes the mark of the call.
void record_event(void** event, Queue& queue, int device, bool timed);
void wait_event(void* event, Queue& queue);
bool query_event(void* event);
void synchronize_event(void* event);
void destroy_event(void* event) noexcept;
// Milliseconds between two records.
double elapsed(void* start, void* end);

}  // namespace simulated
