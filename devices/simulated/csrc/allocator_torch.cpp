// The allocator as torch sees it: a c10::DeviceAllocator over the memory of every device.

#include <c10/core/impl/DeviceGuardImplInterface.h>

#include <cstring>

#include "activity.h"
#include "allocator.h"
#include "arena.h"
#include "faults.h"
#include "pluggable.h"
#include "runtime.h"

namespace simulated {

namespace {

// Live blocks by address, under a lock of their own: a free knows only the address.
struct Live {
  std::mutex mutex;
  std::unordered_map<const void*, Block*> blocks;
};

Live& live() {
  static Live* all = new Live;  // leaked: tensors may outlive static objects
  return *all;
}

void give_back(void* address) {
  if (address == nullptr || in_bad_fork()) {
    return;  // a forked child does not have the memory
  }
  Block* block = nullptr;
  {
    std::lock_guard<std::mutex> lock(live().mutex);
    auto found = live().blocks.find(address);
    TORCH_INTERNAL_ASSERT(found != live().blocks.end(), "simulated device: no block starts at ", address);
    block = found->second;
    live().blocks.erase(found);
  }
  const auto bytes = static_cast<int64_t>(block->size);
  const int device = arena().device_of(address);
  device_memory(device).free(block);
  report_memory(address, -bytes, device);
}

class Allocator final : public c10::DeviceAllocator {
 public:
  c10::DataPtr allocate(size_t bytes) override {
    first_use();
    const int device = current_device();
    const c10::Device where(c10::DeviceType::PrivateUse1, static_cast<c10::DeviceIndex>(device));
    if (bytes == 0) {
      return {nullptr, nullptr, &give_back, where};
    }
    if (is_plugged()) {
      note_allocation();
      return allocate_plugged(bytes, device, current_queue(device));
    }
    note_allocation();
    const size_t shift = on(Fault::allocator_misalign_pointer) ? 8 : 0;
    const int lies_on = on(Fault::device_storage_on_other_index) ? (device + 1) % arena().devices() : device;
    Block* block = device_memory(lies_on).allocate(bytes + shift, current_queue(lies_on));
    {
      std::lock_guard<std::mutex> lock(live().mutex);
      live().blocks.emplace(block->address, block);
    }
    report_memory(block->address, static_cast<int64_t>(block->size), lies_on);
    return {static_cast<char*>(block->address) + shift, block->address, &give_back, where};
  }

  c10::DeleterFnPtr raw_deleter() const override { return &give_back; }

  void copy_data(void* to, const void* from, size_t bytes) const override {
    auto& memory = arena();
    current_queue(current_device()).run_here([&] {
      std::memcpy(memory.on_device_side(to), memory.on_device_side(from), bytes);
    }, kCopyName);
  }

  bool initialized() override { return was_used(); }

  void emptyCache(c10::MempoolId_t pool) override {
    if (on(Fault::allocator_empty_cache_frees_live)) {
      std::lock_guard<std::mutex> lock(live().mutex);
      const int device = current_device();
      for (const auto& [address, block] : live().blocks) {
        if (arena().device_of(address) != device || block->queue != current_queue(device).id()) {
          continue;
        }
        std::memset(arena().on_device_side(address), 0xA5, 8);
      }
    }
    for (int device = 0; device < arena().devices(); ++device) {
      if (device == current_device() || !on(Fault::allocator_empty_cache_of_current_index)) {
        device_memory(device).empty_cache(pool);
      }
    }
  }

  void recordStream(const c10::DataPtr& data, c10::Stream stream) override {
    if (Block* block = block_at(data.get_context())) {
      device_memory(arena().device_of(block->address)).record_stream(block, queue(stream.device_index(), stream.id()));
    }
  }

  Stats getDeviceStats(c10::DeviceIndex device) override {
    const int index = checked_device(device);
    return device_memory(on(Fault::allocator_count_on_wrong_index) ? 0 : index).stats();
  }
  void resetAccumulatedStats(c10::DeviceIndex device) override { device_memory(checked_device(device)).reset_accumulated(); }
  void resetPeakStats(c10::DeviceIndex device) override { device_memory(checked_device(device)).reset_peak(); }
  std::pair<size_t, size_t> getMemoryInfo(c10::DeviceIndex device) override {
    size_t free = arena().free_bytes(checked_device(device)), total = arena().bytes_of_a_device();
    if (on(Fault::allocator_memory_info_counts_cached)) {
      const Stats stats = device_memory(device).stats();
      free += static_cast<size_t>(stats.reserved_bytes[0].current - stats.allocated_bytes[0].current);
    }
    return {
        on(Fault::allocator_memory_info_free_constant) ? total : free,
        on(Fault::allocator_memory_info_total_wrong) ? free : total};
  }
};

}  // namespace

Block* block_at(const void* address) {
  std::lock_guard<std::mutex> lock(live().mutex);
  auto found = live().blocks.find(address);
  return found == live().blocks.end() ? nullptr : found->second;
}

DeviceMemory& device_memory(int device) {
  // Leaked, as the arena: tensors may outlive static objects.
  static auto* all = [] {
    auto* made = new std::vector<std::unique_ptr<DeviceMemory>>;
    for (int each = 0; each < arena().devices(); ++each) {
      made->push_back(std::make_unique<DeviceMemory>(each));
    }
    return made;
  }();
  return *all->at(device);
}

c10::DeviceAllocator* allocator() {
  static auto* made = new Allocator;
  return made;
}

void register_allocator() {
  c10::SetAllocator(c10::DeviceType::PrivateUse1, allocator());
}

}  // namespace simulated
