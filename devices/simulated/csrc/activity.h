// What ran on the device, where and when, for torch's profiler: a child profiler of Kineto.

#pragma once

#include <atomic>
#include <cstdint>

#include "stream.h"

namespace simulated {

// Whether launches are noted at present.
extern std::atomic<bool> noting_activity;

// Copies have this name; everything else is a kernel.
constexpr const char* kCopyName = "copy";

// The task, which also notes its own times, under the op of the calling thread that launches it.
Task noted(Task task, const char* name, const Queue& queue);

// Memory that is handed out (bytes > 0) or comes back (bytes < 0), for a profile that asked for it.
void report_memory(void* address, int64_t bytes, int device);

void register_activity();

}  // namespace simulated
