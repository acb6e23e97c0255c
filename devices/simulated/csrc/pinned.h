// Pinned host memory: a cache of page-locked blocks that copies may read without blocking.

#pragma once

#include <ATen/core/CachingHostAllocator.h>

#include <cstdint>

#include "stream.h"

namespace simulated {

at::HostAllocator* pinned_allocator();
// Whether an address lies inside a live pinned block, anywhere in it.
bool is_pinned(const void* address);
// The block at this address is read or written by work queued on `queue` up to now: it is not handed out again
// before that work is done.
void record_pinned(const void* address, Queue& queue);
// Returns cached blocks to the system.
void empty_pinned_cache();

// Live blocks are "active", live and cached ones together "allocations"; reuses of cached blocks are counted too.
struct PinnedStats {
  at::HostStats host;
  int64_t reuses = 0;
};
PinnedStats pinned_stats();
void reset_pinned_peaks();
void reset_pinned_totals();

}  // namespace simulated
