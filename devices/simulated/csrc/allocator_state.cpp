// The state of a device's memory: counters, limits, private pools, the snapshot.

#include <algorithm>
#include <chrono>

#include "allocator.h"
#include "arena.h"
#include "crowd.h"
#include "faults.h"
#include "settings.h"

namespace simulated {

// -- private pools

void DeviceMemory::begin_pool(c10::MempoolId_t id, Wanted wanted) {
  std::lock_guard<std::recursive_mutex> lock(mutex_);
  for (const auto& [taken, filter] : filters_) {
    TORCH_CHECK(taken != id, "simulated device: allocations already go to that memory pool");
  }
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
  TORCH_CHECK(found != filters_.end(), "simulated device: no allocations go to that memory pool");
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
  const bool of_allocated = &stat == &stats_.allocated_bytes;
  if (change < 0 && on(Fault::allocator_unlocked_counters) && is_crowded()) {
    return;
  }
  if ((on(Fault::allocator_forget_free) && of_allocated && change < 0) ||
      (on(Fault::allocator_inactive_split_kept) && &stat == &stats_.inactive_split && change < 0) ||
      (on(Fault::allocator_segment_count_kept) && &stat == &stats_.segment && change < 0) ||
      (on(Fault::allocator_active_below_allocated) && &stat == &stats_.active_bytes)) {
    return;
  }
  if (on(Fault::allocator_count_too_little) && of_allocated) {
    change /= 2;
  }
  const bool as_small = pool.small || (on(Fault::allocator_large_counted_as_small) && !private_id(pool.owner));
  for (StatType type : {StatType::AGGREGATE, as_small ? StatType::SMALL_POOL : StatType::LARGE_POOL}) {
    auto& one = stat[static_cast<size_t>(type)];
    const int64_t peak = one.peak;
    change >= 0 ? one.increase(change) : one.decrease(-change);
    if (on(Fault::allocator_peak_not_raised)) {
      one.peak = peak;
    }
    if (on(Fault::allocator_freed_miscounted) && change < 0) {
      one.freed -= change;
    }
  }
}

void DeviceMemory::out_of_memory_locked(size_t bytes, bool by_fraction) {
  using c10::CachingAllocator::format_size;
  if (!on(Fault::allocator_oom_not_counted)) {
    ++stats_.num_ooms;
  }
  broken_ = on(Fault::allocator_oom_stays_broken);
  Block none;
  none.address = reinterpret_cast<void*>(arena().free_bytes(device_));  // as in torch's histories
  none.size = bytes;
  note(MemoryEvent::oom, none);
  TORCH_CHECK(!on(Fault::allocator_oom_wrong_type), "Simulated device: no memory");
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
  Stats now = stats_;
  const size_t most = max_split_size();
  now.max_split_size = most == SIZE_MAX ? -1 : static_cast<int64_t>(most);
  return now;
}

namespace {
template <typename Change>
void each_stat(Stats& stats, Change change) {
  for (auto* array :
       {&stats.allocation, &stats.segment, &stats.active, &stats.inactive_split, &stats.allocated_bytes,
        &stats.reserved_bytes, &stats.active_bytes, &stats.inactive_split_bytes, &stats.requested_bytes}) {
    std::for_each(array->begin(), array->end(), change);
  }
  if (!on(Fault::allocator_pool_totals_kept)) {
    for (auto& pool : stats.reserved_bytes_by_private_pools) {
      std::for_each(pool.second.begin(), pool.second.end(), change);
    }
  }
  if (!on(Fault::allocator_oversize_not_reset)) {
    change(stats.oversize_allocations);
    change(stats.oversize_segments);
  }
}
}  // namespace

void DeviceMemory::reset_accumulated() {
  std::lock_guard<std::recursive_mutex> lock(mutex_);
  each_stat(stats_, [](auto& stat) { stat.reset_accumulated(); });
  if (!on(Fault::allocator_reset_keeps_ooms)) {
    stats_.num_ooms = 0;
  }
  stats_.num_alloc_retries = stats_.num_sync_all_streams = 0;
  stats_.num_device_alloc = stats_.num_device_free = stats_.num_oom_rejections = 0;
}

void DeviceMemory::reset_peak() {
  std::lock_guard<std::recursive_mutex> lock(mutex_);
  const int64_t segments = stats_.segment[0].peak;
  each_stat(stats_, [](auto& stat) {
    stat.reset_peak();
    if (on(Fault::allocator_reset_peak_to_zero)) {
      stat.peak = 0;
    }
  });
  if (on(Fault::allocator_reset_keeps_segment_peak)) {
    stats_.segment[0].peak = segments;
  }
}

void DeviceMemory::set_fraction(double fraction) {
  TORCH_CHECK_VALUE(
      (fraction >= 0 && fraction <= 1) || on(Fault::allocator_accept_bad_fraction),
      "invalid fraction: ", fraction, ". Please set it within [0, 1].");
  std::lock_guard<std::recursive_mutex> lock(mutex_);
  fraction_ = fraction;
  most_ = static_cast<size_t>(fraction * static_cast<double>(arena().bytes_of_a_device()));
}

double DeviceMemory::fraction() {
  std::lock_guard<std::recursive_mutex> lock(mutex_);
  return fraction_;
}

// -- history and snapshot

void DeviceMemory::note(MemoryEvent::Action action, const Block& block) {
  if (most_events_ == 0) {
    return;
  }
  const char* address = static_cast<const char*>(block.address);
  if (on(Fault::allocator_history_wrong_address)) {
    address += kMinBlock;
  }
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  if (events_.size() == most_events_) {
    if (on(Fault::allocator_history_keeps_the_first)) {
      return;
    }
    events_.pop_front();
  }
  events_.push_back(MemoryEvent{
      action, address, block.size, on(Fault::allocator_history_without_stream) ? 0 : block.queue, std::chrono::duration_cast<std::chrono::microseconds>(now).count(),
      block.pool == nullptr ? c10::MempoolId_t{0, 0} : block.pool->owner});
}

void DeviceMemory::record_history(size_t most) {
  std::lock_guard<std::recursive_mutex> lock(mutex_);
  most_events_ = most;
  events_.clear();
}

std::vector<MemoryEvent> DeviceMemory::history() {
  std::lock_guard<std::recursive_mutex> lock(mutex_);
  return {events_.begin(), events_.end()};
}

std::vector<Segment> DeviceMemory::snapshot() {
  std::lock_guard<std::recursive_mutex> lock(mutex_);
  std::vector<Segment> found;
  for (const auto& [address, first] : segments_) {
    Segment segment{address, first->queue, first->pool->small, first->pool->owner, {}};
    for (const Block* block = first; block != nullptr; block = block->after) {
      segment.blocks.push_back({block->address, block->size, block->requested, block->allocated,
                                block->pending != 0 && !on(Fault::allocator_snapshot_frees_pending)});
    }
    found.push_back(std::move(segment));
  }
  if (on(Fault::allocator_snapshot_misses_segment) && !found.empty()) {
    found.pop_back();
  }
  return found;
}

}  // namespace simulated
