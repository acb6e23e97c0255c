// The hooks by which torch's generic code asks about the PrivateUse1 backend.

#include <ATen/core/GeneratorForPrivateuseone.h>
#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <c10/core/Allocator.h>

#include <algorithm>
#include <cstring>

#include "activity.h"
#include "allocator.h"
#include "arena.h"
#include "faults.h"
#include "generator.h"
#include "pinned.h"
#include "runtime.h"

namespace simulated {

namespace {

struct Hooks final : at::PrivateUse1HooksInterface {
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return !in_bad_fork() && simulated::device_count() > 0; }
  bool hasPrimaryContext(c10::DeviceIndex) const override { return was_used(); }
  void init() const override { first_use(); }

  c10::DeviceIndex deviceCount() const override { return static_cast<c10::DeviceIndex>(simulated::device_count()); }
  c10::DeviceIndex getCurrentDevice() const override { return static_cast<c10::DeviceIndex>(current_device()); }
  void setCurrentDevice(c10::DeviceIndex device) const override { set_current_device(device); }
  c10::DeviceIndex exchangeDevice(c10::DeviceIndex device) const override {
    return static_cast<c10::DeviceIndex>(exchange_device(device));
  }
  c10::DeviceIndex maybeExchangeDevice(c10::DeviceIndex device) const override { return exchangeDevice(device); }

  bool isPinnedPtr(const void* data) const override { return is_pinned(data); }
  c10::Allocator* getPinnedMemoryAllocator() const override { return pinned_allocator(); }
  at::Device getDeviceFromPtr(void* data) const override {
    TORCH_CHECK(arena().contains(data), "simulated device: ", data, " is not an address of the device");
    return at::Device(at::kPrivateUse1, static_cast<c10::DeviceIndex>(arena().device_of(data)));
  }

  const at::Generator& getDefaultGenerator(c10::DeviceIndex device) const override {
    return default_generator(checked_device(device));
  }
  at::Generator getNewGenerator(c10::DeviceIndex device) const override {
    return new_generator(checked_device(device));
  }

  // Called by storage.resize_ and tensor.resize_; keeps the contents that fit.
  void resizePrivateUse1Bytes(const c10::Storage& storage, size_t bytes) const override {
    resize_storage(storage.unsafeGetStorageImpl(), bytes);
  }
};

}  // namespace

void resize_storage(c10::StorageImpl* storage, size_t bytes) {
  TORCH_CHECK(storage->resizable(), "Trying to resize storage that is not resizable");
  if (bytes == 0 && on(Fault::transfer_resize_zero_keeps_memory)) {
    storage->set_nbytes(0);
    return;
  }
  const int device = storage->device().index();
  const int before = current_device();
  set_current_device(on(Fault::transfer_resize_on_current_index) ? before : device);
  c10::DataPtr data = allocator()->allocate(bytes);
  set_current_device(before);
  if (const size_t kept = std::min(bytes, storage->nbytes())) {
    void* to = arena().on_device_side(data.get());
    const void* from = arena().on_device_side(storage->data());
    current_queue(device).run_here(
        [&] { on(Fault::transfer_resize_loses_bytes) ? std::memset(to, 0xA5, kept) : std::memcpy(to, from, kept); }, kCopyName);
  }
  storage->set_data_ptr_noswap(std::move(data));
  storage->set_nbytes(bytes);
}

void register_hooks() {
  at::RegisterPrivateUse1HooksInterface(new Hooks);
  at::setHostAllocator(c10::DeviceType::PrivateUse1, pinned_allocator());
}

}  // namespace simulated
