#include "allocator.h"

#include <algorithm>
#include <thread>

#include "arena.h"
#include "faults.h"
#include "runtime.h"

namespace simulated {

namespace {

size_t block_size(size_t bytes) {
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

uint64_t key_of(c10::MempoolId_t id) {
  return (static_cast<uint64_t>(id.first) << 32) ^ id.second;
}

bool private_id(c10::MempoolId_t id) {
  return id.first != 0 || id.second != 0;
}

}  // namespace

// -- what is handed out

Block* DeviceMemory::allocate(size_t bytes, Queue& queue) {
  std::lock_guard<std::recursive_mutex> lock(mutex_);
  collect_passed_locked(/*wait=*/false);
  if (bytes > arena().bytes_of_a_device()) {
    out_of_memory_locked(bytes, false);
  }
  const size_t size = block_size(bytes);
  c10::MempoolId_t owner{0, 0};
  Pool& pool = pool_for_locked(size, owner);
  Block* block = find_locked(pool, size, queue.id());
  if (block == nullptr) {
    block = new_segment_locked(pool, size, queue.id(), bytes);
  }
  block = split_locked(block, size);
  block->allocated = true;
  block->requested = bytes;
  count(stats_.allocation, pool, 1);
  count(stats_.allocated_bytes, pool, static_cast<int64_t>(block->size));
  count(stats_.active, pool, 1);
  count(stats_.active_bytes, pool, static_cast<int64_t>(block->size));
  count(stats_.requested_bytes, pool, static_cast<int64_t>(bytes));
  return block;
}

void DeviceMemory::free(Block* block) {
  std::lock_guard<std::recursive_mutex> lock(mutex_);
  block->allocated = false;
  count(stats_.allocation, *block->pool, -1);
  count(stats_.allocated_bytes, *block->pool, -static_cast<int64_t>(block->size));
  count(stats_.requested_bytes, *block->pool, -static_cast<int64_t>(block->requested));
  for (Queue* other : block->used_on) {
    auto mark = std::make_shared<Mark>();
    other->mark(mark);
    if (!mark->done()) {
      ++block->pending;
      pending_.emplace_back(mark, block);
    }
  }
  block->used_on.clear();
  if (block->pending == 0) {
    put_back_locked(block);
  }
}

void DeviceMemory::record_stream(Block* block, Queue& queue) {
  std::lock_guard<std::recursive_mutex> lock(mutex_);
  if (queue.id() != block->queue || queue.device() != device_) {
    block->used_on.insert(&queue);
  }
}

Pool& DeviceMemory::pool_for_locked(size_t size, c10::MempoolId_t& owner) {
  const bool small = size <= kSmallRequest;
  for (auto& [id, wanted] : filters_) {
    if (wanted()) {
      owner = id;
      PrivatePool& pool = *private_.at(key_of(id));
      return small ? pool.small : pool.large;
    }
  }
  return small ? small_ : large_;
}

Block* DeviceMemory::find_locked(Pool& pool, size_t size, QueueId queue) {
  Block key;
  key.queue = queue;
  key.size = size;
  auto found = pool.free.lower_bound(&key);
  if (found == pool.free.end() || (*found)->queue != queue) {
    return nullptr;
  }
  Block* block = *found;
  pool.free.erase(found);
  return block;
}

Block* DeviceMemory::new_segment_locked(Pool& pool, size_t size, QueueId queue, size_t request) {
  const size_t bytes = segment_size(size);
  auto fits = [&] { return stats_.reserved_bytes[0].current + static_cast<int64_t>(bytes) <= static_cast<int64_t>(std::min<size_t>(most_, INT64_MAX)); };
  void* address = fits() ? arena().take(device_, bytes) : nullptr;
  if (address == nullptr) {
    ++stats_.num_alloc_retries;
    collect_passed_locked(/*wait=*/true);
    release_segments_locked(nullptr);
    if (Block* found = find_locked(pool, size, queue)) {
      return found;  // of a live pool, whose segments stay
    }
    address = fits() ? arena().take(device_, bytes) : nullptr;
  }
  if (address == nullptr) {
    out_of_memory_locked(request, !fits());
  }
  ++stats_.num_device_alloc;
  auto* block = new Block;
  block->address = address;
  block->size = bytes;
  block->queue = queue;
  block->pool = &pool;
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
  if (rest < kMinBlock || (!block->pool->small && rest <= kSmallRequest)) {
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
  if (block->after != nullptr) {
    block->after->before = remaining;
  }
  block->after = remaining;
  block->size = size;
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
  count(stats_.active, pool, -1);
  count(stats_.active_bytes, pool, -static_cast<int64_t>(block->size));
  // Neighbours that join had counted as split and inactive; the whole counts once, if it is still a part.
  for (Block* neighbour : {block->before, block->after}) {
    if (neighbour != nullptr) {
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
  delete neighbour;
  return true;
}

void DeviceMemory::collect_passed_locked(bool wait) {
  if (wait && !pending_.empty()) {
    ++stats_.num_sync_all_streams;
  }
  for (auto it = pending_.begin(); it != pending_.end();) {
    if (wait) {
      it->first->wait();
    }
    if (!it->first->done()) {
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

void DeviceMemory::empty_cache(c10::MempoolId_t pool) {
  std::lock_guard<std::recursive_mutex> lock(mutex_);
  collect_passed_locked(/*wait=*/true);
  release_segments_locked(private_id(pool) ? &pool : nullptr);
}

void DeviceMemory::release_segments_locked(const c10::MempoolId_t* only) {
  auto release = [this](Pool& pool) {
    std::vector<Block*> whole;
    std::copy_if(pool.free.begin(), pool.free.end(), std::back_inserter(whole), [](Block* block) { return !block->is_split(); });
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
    if (pool.users == 0 && (only == nullptr || key_of(*only) == it->first)) {
      release(pool.small);
      release(pool.large);
    }
    it = pool.users == 0 && pool.segments == 0 ? private_.erase(it) : std::next(it);
  }
}

void DeviceMemory::release_segment_locked(Pool& pool, Block* block) {
  pool.free.erase(block);
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

// -- private pools

void DeviceMemory::begin_pool(c10::MempoolId_t id, std::function<bool()> wanted) {
  std::lock_guard<std::recursive_mutex> lock(mutex_);
  auto& pool = private_[key_of(id)];
  if (!pool) {
    pool = std::make_unique<PrivatePool>(id);
  }
  ++pool->users;
  filters_.emplace_back(id, std::move(wanted));
}

void DeviceMemory::end_pool(c10::MempoolId_t id) {
  std::lock_guard<std::recursive_mutex> lock(mutex_);
  auto found = std::find_if(filters_.begin(), filters_.end(), [&](auto& filter) { return filter.first == id; });
  TORCH_CHECK(found != filters_.end(), "simulated device: no allocations are going to that memory pool");
  filters_.erase(found);
}

void DeviceMemory::release_pool(c10::MempoolId_t id) {
  std::lock_guard<std::recursive_mutex> lock(mutex_);
  auto found = private_.find(key_of(id));
  TORCH_CHECK(found != private_.end() && found->second->users > 0, "simulated device: that memory pool has no user");
  --found->second->users;
}

// -- counting

void DeviceMemory::count(c10::CachingAllocator::StatArray& stat, const Pool& pool, int64_t change) {
  for (StatType type : {StatType::AGGREGATE, pool.small ? StatType::SMALL_POOL : StatType::LARGE_POOL}) {
    auto& one = stat[static_cast<size_t>(type)];
    change >= 0 ? one.increase(change) : one.decrease(-change);
  }
}

void DeviceMemory::out_of_memory_locked(size_t bytes, bool by_fraction) {
  using c10::CachingAllocator::format_size;
  ++stats_.num_ooms;
  const std::string limit = by_fraction
      ? " This process may reserve " + format_size(most_) + " (a memory fraction of " + std::to_string(fraction_) + ")."
      : "";
  TORCH_CHECK_WITH(
      OutOfMemoryError, false, "Simulated device out of memory. Tried to allocate ", format_size(bytes), ". Device ",
      device_, " has a total capacity of ", format_size(arena().bytes_of_a_device()), " of which ",
      format_size(arena().free_bytes(device_)), " is free.", limit, " Of the reserved memory ",
      format_size(stats_.allocated_bytes[0].current), " is allocated, and ",
      format_size(stats_.reserved_bytes[0].current - stats_.allocated_bytes[0].current),
      " is reserved by PyTorch but unallocated.");
}

Stats DeviceMemory::stats() {
  std::lock_guard<std::recursive_mutex> lock(mutex_);
  return stats_;
}

namespace {
template <typename Change>
void each_stat(Stats& stats, Change change) {
  for (auto* array :
       {&stats.allocation, &stats.segment, &stats.active, &stats.inactive_split, &stats.allocated_bytes,
        &stats.reserved_bytes, &stats.active_bytes, &stats.inactive_split_bytes, &stats.requested_bytes}) {
    std::for_each(array->begin(), array->end(), change);
  }
  for (auto& pool : stats.reserved_bytes_by_private_pools) {
    std::for_each(pool.second.begin(), pool.second.end(), change);
  }
  change(stats.oversize_allocations);
  change(stats.oversize_segments);
}
}  // namespace

void DeviceMemory::reset_accumulated() {
  std::lock_guard<std::recursive_mutex> lock(mutex_);
  each_stat(stats_, [](auto& stat) { stat.reset_accumulated(); });
  stats_.num_alloc_retries = stats_.num_ooms = stats_.num_sync_all_streams = 0;
  stats_.num_device_alloc = stats_.num_device_free = stats_.num_oom_rejections = 0;
}

void DeviceMemory::reset_peak() {
  std::lock_guard<std::recursive_mutex> lock(mutex_);
  each_stat(stats_, [](auto& stat) { stat.reset_peak(); });
}

void DeviceMemory::set_fraction(double fraction) {
  TORCH_CHECK_VALUE(fraction >= 0 && fraction <= 1, "invalid fraction: ", fraction, ". Please set it within [0, 1].");
  std::lock_guard<std::recursive_mutex> lock(mutex_);
  fraction_ = fraction;
  most_ = static_cast<size_t>(fraction * static_cast<double>(arena().bytes_of_a_device()));
}

double DeviceMemory::fraction() {
  std::lock_guard<std::recursive_mutex> lock(mutex_);
  return fraction_;
}

}  // namespace simulated
