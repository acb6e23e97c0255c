// Returning unused segments to the driver.

#include <algorithm>
#include <iterator>

#include "allocator.h"
#include "arena.h"
#include "faults.h"

namespace simulated {

void DeviceMemory::empty_cache(c10::MempoolId_t pool) {
  std::lock_guard<std::recursive_mutex> lock(mutex_);
  collect_passed_locked(/*wait=*/true);
  if (keeps_segments_ && on(Fault::graphs_failure_stops_empty_cache)) {
    return;
  }
  release_segments_locked(private_id(pool) ? &pool : nullptr);
}

void DeviceMemory::release_segments_locked(const c10::MempoolId_t* only) {
  auto release = [this](Pool& pool) {
    std::vector<Block*> whole;
    std::copy_if(pool.free.begin(), pool.free.end(), std::back_inserter(whole), [](Block* block) { return !block->is_split(); });
    if (on(Fault::allocator_empty_cache_keeps_segment) && !whole.empty()) {
      whole.pop_back();
    }
    for (Block* block : whole) {
      release_segment_locked(pool, block);
    }
  };
  if (only == nullptr) {
    release(small_);
    release(large_);
  }
  for (auto it = private_.begin(); it != private_.end();) {
    PrivatePool& pool = *it->second;
    // A pool's segments stay while it has users: a graph's next replay needs the same addresses.
    if (pool.users == 0 && !on(Fault::allocator_pool_never_returned) &&
        (only == nullptr || key_of(*only) == it->first)) {
      release(pool.small);
      release(pool.large);
    }
    if (pool.users != 0 || pool.segments != 0) {
      ++it;
      continue;
    }
    stats_.reserved_bytes_by_private_pools.erase(pool.small.owner);
    it = private_.erase(it);
  }
}

void DeviceMemory::release_segment_locked(Pool& pool, Block* block) {
  pool.free.erase(block);
  segments_.erase(block->address);
  if (block->in_oversize_segment) {
    stats_.oversize_segments.decrease(1);
  }
  note(MemoryEvent::segment_free, *block);
  drain_queues(device_);  // queued work may still use what the host has freed
  arena().give(block->address, block->size);
  ++stats_.num_device_free;
  count(stats_.segment, pool, -1);
  count(stats_.reserved_bytes, pool, -static_cast<int64_t>(block->size));
  if (private_id(pool.owner)) {
    --private_.at(key_of(pool.owner))->segments;
    count(stats_.reserved_bytes_by_private_pools[pool.owner], pool, -static_cast<int64_t>(block->size));
  }
  delete block;
}

}  // namespace simulated
