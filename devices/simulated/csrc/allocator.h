// The caching, stream-ordered allocator of device memory.
//
// Segments come from the arena, as from a driver; blocks are split from them, handed out to a queue and kept for
// that queue when they are freed. A block that other queues used (record_stream) comes back once they have passed
// the point of the free.

#pragma once

#include <c10/core/CachingDeviceAllocator.h>

#include <atomic>
#include <deque>
#include <map>
#include <mutex>
#include <set>
#include <unordered_map>
#include <vector>

#include "stream.h"

namespace simulated {

using Stats = c10::CachingDeviceAllocator::DeviceStats;
using c10::CachingAllocator::StatType;

constexpr size_t kMinBlock = 512;           // bytes: alignment and granularity of blocks
constexpr size_t kSmallRequest = 1u << 20;  // bytes: requests up to this come from small segments
constexpr size_t kSmallSegment = 2u << 20;
constexpr size_t kLargeRequest = 4u << 20;  // bytes: larger requests get segments of their own size
constexpr size_t kLargeSegment = 8u << 20;
constexpr size_t kRoundSegment = 2u << 20;
constexpr size_t kOneExabyte = size_t{1} << 60;  // larger requests are refused at once, as in CUDACachingAllocator

struct Pool;

// The key of a private pool in a map.
inline uint64_t key_of(c10::MempoolId_t id) {
  return (static_cast<uint64_t>(id.first) << 32) ^ id.second;
}
inline bool private_id(c10::MempoolId_t id) {
  return id.first != 0 || id.second != 0;
}

struct Block {
  void* address = nullptr;  // as tensors carry it
  size_t size = 0;
  size_t requested = 0;  // bytes that the caller asked for
  QueueId queue = 0;     // that allocated it; the block is handed out again to this queue only
  Pool* pool = nullptr;
  bool allocated = false;
  bool oversize = false, in_oversize_segment = false;  // above max_split_size when it was made
  int pending = 0;  // marks that must be passed before it is free
  Block* before = nullptr;  // neighbours in the segment
  Block* after = nullptr;
  std::set<Queue*> used_on;  // other queues, named by record_stream

  bool is_split() const { return before != nullptr || after != nullptr; }
};

struct SmallerFirst {
  bool operator()(const Block* a, const Block* b) const {
    if (a->queue != b->queue) return a->queue < b->queue;
    if (a->size != b->size) return a->size < b->size;
    return a->address < b->address;
  }
};

// An event in the memory history, with the names that torch uses.
struct MemoryEvent {
  enum Action { alloc, free_requested, free_completed, segment_alloc, segment_free, oom };
  Action action;
  const void* address;
  size_t size;
  QueueId queue;
  int64_t microseconds;  // since the epoch
  c10::MempoolId_t pool;
};

// One block in a snapshot.
struct BlockState {
  const void* address;
  size_t size, requested;
  bool allocated, pending;
};

struct Segment {
  const void* address;
  QueueId queue;
  bool small;
  c10::MempoolId_t pool;
  std::vector<BlockState> blocks;
};

// Free blocks of one kind: small or large, of the common pool or of a private pool.
struct Pool {
  bool small = false;
  c10::MempoolId_t owner{0, 0};
  std::set<Block*, SmallerFirst> free;
};

// A private pool: its two kinds of blocks, and the number of users that keep it alive.
struct PrivatePool {
  explicit PrivatePool(c10::MempoolId_t id) {
    small.small = true;
    small.owner = large.owner = id;
  }
  Pool small, large;
  int users = 0;
  int segments = 0;
};

// One device's memory.
class DeviceMemory {
 public:
  explicit DeviceMemory(int device) : device_(device) { small_.small = true; }

  // Throws c10::OutOfMemoryError.
  Block* allocate(size_t bytes, Queue& queue);
  void free(Block* block);
  void record_stream(Block* block, Queue& queue);
  // For a planted fault: the cache is not emptied any more.
  void stop_emptying() { keeps_segments_ = true; }
  void empty_cache(c10::MempoolId_t pool);

  Stats stats();
  void reset_accumulated();
  void reset_peak();
  void set_fraction(double fraction);
  double fraction();

  // Keeps the last `most` events from now on; 0 stops and forgets them.
  void record_history(size_t most);
  std::vector<MemoryEvent> history();
  // Every segment with its blocks, in the order of their addresses.
  std::vector<Segment> snapshot();

  // Requests for which `wanted` is true come from the pool, which lives until its last release. Throws c10::Error
  // if requests of others are being served from it.
  using Wanted = std::function<bool(Queue&)>;
  void begin_pool(c10::MempoolId_t pool, Wanted wanted);
  void end_pool(c10::MempoolId_t pool);
  void release_pool(c10::MempoolId_t pool);

 private:
  Pool& pool_for_locked(size_t bytes, Queue& queue);
  Block* find_locked(Pool& pool, size_t size, QueueId queue);
  Block* new_segment_locked(Pool& pool, size_t size, QueueId queue, size_t request);
  Block* split_locked(Block* block, size_t size);
  void put_back_locked(Block* block);
  bool join_locked(Block* block, Block* neighbour);
  void collect_passed_locked(bool wait);
  void release_segments_locked(const c10::MempoolId_t* only);
  void release_segment_locked(Pool& pool, Block* block);
  void note(MemoryEvent::Action action, const Block& block);
  void count(c10::CachingAllocator::StatArray& stat, const Pool& pool, int64_t change);
  [[noreturn]] void out_of_memory_locked(size_t bytes, bool by_fraction);

  const int device_;
  std::recursive_mutex mutex_;
  Pool small_, large_;
  std::unordered_map<uint64_t, std::unique_ptr<PrivatePool>> private_;
  std::vector<std::pair<c10::MempoolId_t, Wanted>> filters_;
  std::deque<std::pair<MarkPtr, Block*>> pending_;
  Stats stats_;
  size_t most_ = SIZE_MAX;  // bytes that may be reserved
  double fraction_ = 1.0;
  std::map<const void*, Block*> segments_;  // first block of each
  size_t most_events_ = 0;
  std::deque<MemoryEvent> events_;
  bool broken_ = false;  // by a planted fault
  std::atomic<bool> keeps_segments_{false};  // by another one
  std::atomic<int> inside_{0};  // threads in allocate() or free(): counted for planted faults only
};

DeviceMemory& device_memory(int device);
// The live block that starts at an address; nullptr if there is none.
Block* block_at(const void* address);

// Gives the allocator to torch, as that of the PrivateUse1 backend.
void register_allocator();
c10::DeviceAllocator* allocator();

}  // namespace simulated
