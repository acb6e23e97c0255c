#include "allocator.h"

#include <algorithm>
#include <bit>
#include <chrono>
#include <cstring>
#include <thread>

#include "arena.h"
#include "crowd.h"
#include "capture.h"
#include "faults.h"
#include "settings.h"
#include "runtime.h"

namespace simulated {

namespace {

size_t block_size(size_t bytes) {
  if (on(Fault::allocator_exact_sizes_rounded_up) && roundup_divisions(bytes) > 1) {
    ++bytes;
  }
  // roundup_power2_divisions: sizes between two powers of two are rounded up to one of this many steps.
  const size_t divisions = roundup_divisions(bytes);
  if (divisions > 1 && bytes > kMinBlock * divisions) {
    const size_t step = std::bit_floor(bytes) / divisions;
    bytes = (bytes + step - 1) / step * step;
  }
  return std::max(kMinBlock, (bytes + kMinBlock - 1) / kMinBlock * kMinBlock);
}

size_t segment_size(size_t size) {
  if (size <= kSmallRequest) {
    return kSmallSegment;
  }
  if (size < kLargeRequest) {
    return kLargeSegment;
  }
  return (size + kRoundSegment - 1) / kRoundSegment * kRoundSegment;
}

}  // namespace

// -- what is handed out

Block* DeviceMemory::allocate(size_t bytes, Queue& queue) {
  const Crowd crowd(inside_);
  std::lock_guard<std::recursive_mutex> lock(mutex_);
  collect_passed_locked(/*wait=*/false);
  if (bytes > kOneExabyte || (on(Fault::allocator_oom_stays_broken) && broken_)) {
    out_of_memory_locked(bytes, false);
  }
  const size_t size = block_size(bytes);
  Pool& pool = pool_for_locked(size, queue);
  Block* block = find_locked(pool, size, queue.id());
  if (block == nullptr) {
    if (!queue.capturing()) {
      refuse_driver_request(device_);
    }
    block = new_segment_locked(pool, size, queue.id(), bytes);
  }
  block = split_locked(block, size);
  block->allocated = true;
  block->requested = on(Fault::allocator_requested_counts_rounded) ? block->size : bytes;
  count(stats_.allocation, pool, 1);
  count(stats_.allocated_bytes, pool, static_cast<int64_t>(block->size));
  count(stats_.active, pool, 1);
  count(stats_.active_bytes, pool, static_cast<int64_t>(block->size));
  count(stats_.requested_bytes, pool, static_cast<int64_t>(block->requested));
  block->oversize = block->size > max_split_size();
  if (block->oversize) {
    stats_.oversize_allocations.increase(1);
  }
  note(MemoryEvent::alloc, *block);
  return block;
}

void DeviceMemory::free(Block* block) {
  const Crowd crowd(inside_);
  std::lock_guard<std::recursive_mutex> lock(mutex_);
  block->allocated = false;
  if (on(Fault::allocator_freed_to_current_stream)) {
    block->queue = current_queue(device_).id();
  }
  note(MemoryEvent::free_requested, *block);
  if (block->oversize) {
    stats_.oversize_allocations.decrease(1);
  }
  count(stats_.allocation, *block->pool, -1);
  count(stats_.allocated_bytes, *block->pool, -static_cast<int64_t>(block->size));
  count(stats_.requested_bytes, *block->pool, -static_cast<int64_t>(block->requested));
  for (Queue* other : block->used_on) {
    auto mark = std::make_shared<Mark>();
    if (const auto capture = other->capture()) {
      if (on(Fault::graphs_marked_block_lost)) {
        ++block->pending;  // forever
        continue;
      }
      mark = capture->over();  // nothing of what is recorded there has run
    } else {
      other->mark(mark);
    }
    if (!mark->done()) {
      ++block->pending;
      pending_.emplace_back(mark, block);
    }
  }
  if (!on(Fault::allocator_marks_outlive_blocks)) {
    block->used_on.clear();
  }
  if (on(Fault::allocator_unlocked_free_list) && is_crowded()) {
    ++block->pending;  // forever: the block is lost
    return;
  }
  if (block->pending == 0) {
    put_back_locked(block);
  }
}

void DeviceMemory::record_stream(Block* block, Queue& queue) {
  std::lock_guard<std::recursive_mutex> lock(mutex_);
  if ((queue.id() != block->queue || queue.device() != device_) && !on(Fault::allocator_ignore_record_stream)) {
    if (on(Fault::allocator_last_record_stream_only)) {
      block->used_on.clear();
    }
    block->used_on.insert(&queue);
  }
}

Pool& DeviceMemory::pool_for_locked(size_t size, Queue& queue) {
  const bool small = size <= kSmallRequest;
  // Of nested pools, the one that was begun last is the innermost.
  const auto wants = [&](const auto& filter) { return filter.second(queue); };
  auto found = std::find_if(filters_.rbegin(), filters_.rend(), wants);
  if (found == filters_.rend()) {
    return small ? small_ : large_;
  }
  const c10::MempoolId_t id =
      on(Fault::allocator_outer_pool_serves) ? std::find_if(filters_.begin(), filters_.end(), wants)->first : found->first;
  PrivatePool& pool = *private_.at(key_of(id));
  return small ? pool.small : pool.large;
}

Block* DeviceMemory::find_locked(Pool& pool, size_t size, QueueId queue) {
  if (on(Fault::allocator_never_reuse)) {
    return nullptr;
  }
  if (on(Fault::allocator_reuse_across_streams)) {
    for (auto it = pool.free.begin(); it != pool.free.end(); ++it) {
      if ((*it)->size >= size) {
        Block* block = *it;
        pool.free.erase(it);
        return block;
      }
    }
  }
  const bool leaks = on(Fault::allocator_pool_leaks_to_default), given_away = on(Fault::graphs_pool_block_given_away);
  if ((leaks || given_away) && !private_id(pool.owner)) {
    for (auto& [key, other] : private_) {
      if (!leaks && other->users == 0) {
        continue;
      }
      if (Block* block = find_locked(pool.small ? other->small : other->large, size, queue)) {
        return block;
      }
    }
  }
  Block key;
  key.queue = queue;
  key.size = size;
  auto found = pool.free.lower_bound(&key);
  if (found == pool.free.end() || (*found)->queue != queue) {
    return nullptr;
  }
  Block* block = *found;
  if (block->size > max_split_size() &&
      (size <= max_split_size() || on(Fault::allocator_oversize_never_reused))) {
    return nullptr;  // it would have to be split
  }
  pool.free.erase(found);
  return block;
}

Block* DeviceMemory::new_segment_locked(Pool& pool, size_t size, QueueId queue, size_t request) {
  const size_t bytes = segment_size(size);
  auto fits = [&] {
    const size_t most = on(Fault::allocator_ignore_fraction) ? SIZE_MAX : most_;
    return stats_.reserved_bytes[0].current + static_cast<int64_t>(bytes) <=
        static_cast<int64_t>(std::min<size_t>(most, INT64_MAX));
  };
  void* address = fits() ? arena().take(device_, bytes) : nullptr;
  if (address == nullptr) {
    ++stats_.num_alloc_retries;
    collect_passed_locked(/*wait=*/!on(Fault::allocator_retry_forgets_pending));
    release_segments_locked(nullptr);
    Block* found = on(Fault::allocator_retry_searches_once) ? nullptr : find_locked(pool, size, queue);
    if (found != nullptr) {
      return found;  // of a live pool, whose segments stay
    }
    address = fits() ? arena().take(device_, bytes) : nullptr;
  }
  if (address == nullptr) {
    out_of_memory_locked(request, !fits());
  }
  if (!on(Fault::allocator_device_calls_not_counted)) {
    ++stats_.num_device_alloc;
  }
  auto* block = new Block;
  block->address = address;
  block->size = bytes;
  block->queue = queue;
  block->pool = &pool;
  block->in_oversize_segment = bytes > max_split_size();
  if (block->in_oversize_segment) {
    stats_.oversize_segments.increase(1);
  }
  segments_[address] = block;
  note(MemoryEvent::segment_alloc, *block);
  count(stats_.segment, pool, 1);
  count(stats_.reserved_bytes, pool, static_cast<int64_t>(bytes));
  if (private_id(pool.owner)) {
    ++private_.at(key_of(pool.owner))->segments;
    count(stats_.reserved_bytes_by_private_pools[pool.owner], pool, static_cast<int64_t>(bytes));
  }
  return block;
}

Block* DeviceMemory::split_locked(Block* block, size_t size) {
  const size_t rest = block->size - size;
  const bool was_split = block->is_split();
  const bool forbidden = max_split_size() != SIZE_MAX && on(Fault::allocator_limit_stops_all_splits);
  if (rest < kMinBlock || forbidden || block->size > max_split_size() ||
      (!block->pool->small && rest <= kSmallRequest)) {
    if (was_split) {
      count(stats_.inactive_split, *block->pool, -1);
      count(stats_.inactive_split_bytes, *block->pool, -static_cast<int64_t>(block->size));
    }
    return block;
  }
  auto* remaining = new Block;
  remaining->address = static_cast<char*>(block->address) + size;
  remaining->size = rest;
  remaining->queue = block->queue;
  remaining->pool = block->pool;
  remaining->before = block;
  remaining->after = block->after;
  if (block->after != nullptr && !on(Fault::allocator_split_forgets_next)) {
    block->after->before = remaining;
  }
  block->after = remaining;
  block->size = size;
  if (on(Fault::allocator_scribble_on_split) && block->before != nullptr && block->before->allocated) {
    std::memset(arena().on_device_side(block->before->address), 0xA5, 8);
  }
  if (on(Fault::allocator_hand_out_overlap) && size > kMinBlock) {
    remaining->address = static_cast<char*>(remaining->address) - kMinBlock;
  }
  if (on(Fault::allocator_leak_on_split)) {
    remaining->allocated = true;  // owned by no tensor
    return block;
  }
  block->pool->free.insert(remaining);
  if (was_split) {
    count(stats_.inactive_split_bytes, *block->pool, -static_cast<int64_t>(size));
  } else {
    count(stats_.inactive_split, *block->pool, 1);
    count(stats_.inactive_split_bytes, *block->pool, static_cast<int64_t>(rest));
  }
  return block;
}

// -- what comes back

void DeviceMemory::put_back_locked(Block* block) {
  Pool& pool = *block->pool;
  if (!on(Fault::allocator_history_drops_free)) {
    note(MemoryEvent::free_completed, *block);
  }
  count(stats_.active, pool, -1);
  count(stats_.active_bytes, pool, -static_cast<int64_t>(block->size));
  // Neighbours that are joined were counted as split and inactive; the joined block counts once if it is still split.
  for (Block* neighbour : {block->before, block->after}) {
    if (neighbour != nullptr && !(on(Fault::allocator_joins_backwards_only) && neighbour == block->after)) {
      const auto size = static_cast<int64_t>(neighbour->size);
      if (join_locked(block, neighbour)) {
        count(stats_.inactive_split, pool, -1);
        count(stats_.inactive_split_bytes, pool, -size);
      }
    }
  }
  pool.free.insert(block);
  if (block->is_split()) {
    count(stats_.inactive_split, pool, 1);
    count(stats_.inactive_split_bytes, pool, static_cast<int64_t>(block->size));
  }
}

bool DeviceMemory::join_locked(Block* block, Block* neighbour) {
  if (neighbour->allocated || neighbour->pending != 0) {
    return false;
  }
  block->pool->free.erase(neighbour);
  if (block->before == neighbour) {
    if (neighbour->before == nullptr) {
      segments_[neighbour->address] = block;
    }
    block->address = neighbour->address;
    block->before = neighbour->before;
    if (block->before != nullptr) {
      block->before->after = block;
    }
  } else {
    block->after = neighbour->after;
    if (block->after != nullptr) {
      block->after->before = block;
    }
  }
  block->size += neighbour->size;
  block->in_oversize_segment = block->in_oversize_segment || neighbour->in_oversize_segment;
  delete neighbour;
  return true;
}

void DeviceMemory::collect_passed_locked(bool wait) {
  if ((wait && !pending_.empty()) || on(Fault::allocator_every_request_counts_as_wait)) {
    ++stats_.num_sync_all_streams;
  }
  for (auto it = pending_.begin(); it != pending_.end();) {
    if (wait && !it->first->of_capture) {
      it->first->wait();
    }
    if (!it->first->done()) {
      if (on(Fault::allocator_pending_in_a_queue)) {
        return;  // what stands behind it waits, too
      }
      ++it;
      continue;
    }
    Block* block = it->second;
    it = pending_.erase(it);
    if (--block->pending == 0) {
      put_back_locked(block);
    }
  }
}

}  // namespace simulated
