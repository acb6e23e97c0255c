#include "pluggable.h"

#include <c10/util/Exception.h>

#include <atomic>

#include "arena.h"
#include "faults.h"

namespace simulated {

namespace {

std::atomic<bool> handed_out{false};
std::atomic<const PluggedAllocator*> plugged{nullptr};  // never freed: its blocks may outlive it

// What a block needs to go back to the allocator that it came from.
struct PluggedBlock {
  const PluggedAllocator* owner;
  uintptr_t address;
  size_t bytes;
  int device;
  uintptr_t stream;
};

void give_plugged(void* context) {
  auto* block = static_cast<PluggedBlock*>(context);
  if (!in_bad_fork()) {
    block->owner->give(block->address, block->bytes, block->device, block->stream);
  }
  delete block;
}

}  // namespace

void plug_in(PluggedAllocator allocator) {
  TORCH_CHECK(
      !handed_out || on(Fault::allocator_pluggable_changed_after_use),
      "simulated device: the allocator cannot be changed once it has handed out memory");
  plugged = new PluggedAllocator(std::move(allocator));
}

void note_allocation() {
  handed_out = true;
}

bool is_plugged() {
  if (plugged.load(std::memory_order_relaxed) == nullptr) {
    return false;
  }
  static std::atomic<unsigned> calls{0};
  return !on(Fault::allocator_pluggable_bypassed) || calls.fetch_add(1) % 2 == 0;
}

c10::DataPtr allocate_plugged(size_t bytes, int device, Queue& queue) {
  const PluggedAllocator* owner = plugged;
  const auto stream = reinterpret_cast<uintptr_t>(queue.id() == kDefaultQueue ? nullptr : &queue);
  const uintptr_t address = owner->take(bytes, device, stream);
  auto* data = reinterpret_cast<void*>(address);
  TORCH_CHECK_WITH(
      OutOfMemoryError, data != nullptr, "Simulated device out of memory: the plugged allocator has no ", bytes, " bytes");
  TORCH_CHECK(
      arena().contains(data), "simulated device: the plugged allocator returned ", data,
      ", which is not an address of the device");
  const c10::Device where(c10::DeviceType::PrivateUse1, static_cast<c10::DeviceIndex>(device));
  return {data, new PluggedBlock{owner, address, bytes, device, stream}, &give_plugged, where};
}

}  // namespace simulated
