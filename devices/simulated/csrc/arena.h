// The devices' memory: one file in memory, mapped twice.
//
// The first mapping permits no access and gives the addresses that tensors carry: code on the host that
// follows one of them faults, as it would with a real device. The second can be read and written, and only the
// device's side translates into it.

#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>
#include <vector>

namespace simulated {

class Arena {
 public:
  // Reserves memory for `devices` devices of `bytes` each. Throws std::runtime_error if the system refuses.
  Arena(int devices, size_t bytes);
  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;

  int devices() const { return static_cast<int>(free_.size()); }
  size_t bytes_of_a_device() const { return bytes_; }

  // Like a driver: a range of device memory, aligned to kPage; nullptr if there is none left.
  void* take(int device, size_t bytes);
  // Releases a range; its contents are lost.
  void give(void* address, size_t bytes);
  size_t free_bytes(int device);

  // The file that holds the memory.
  int file() const { return file_; }
  // Where an address lies in the file; -1 for addresses of take_mapped(). Precondition: contains(address).
  int64_t place_of(const void* address);
  // Like take(), but the range shows `bytes` bytes of another file from `offset` on, both multiples of the system's page.
  // Throws std::runtime_error if there is no room, or if the system refuses.
  void* take_mapped(int device, int file, size_t offset, size_t bytes);
  void give_mapped(void* address, size_t bytes);

  // From now on a forked child shares the memory: for a planted fault.
  void keep_over_forks();

  bool contains(const void* address) const {
    auto at = reinterpret_cast<uintptr_t>(address);
    return at >= carried_ && at < carried_ + bytes_ * free_.size();
  }
  // Whether an address lies in the mapping of the device's own side.
  bool reaches(const void* address) const {
    auto at = reinterpret_cast<uintptr_t>(address);
    return at >= reachable_ && at < reachable_ + bytes_ * free_.size();
  }
  // Precondition: contains(address).
  int device_of(const void* address) const {
    return static_cast<int>((reinterpret_cast<uintptr_t>(address) - carried_) / bytes_);
  }
  // The address that the device's own side uses. Addresses outside (null, host memory) stay as they are.
  void* on_device_side(const void* address) const {
    auto at = reinterpret_cast<uintptr_t>(address);
    return reinterpret_cast<void*>(contains(address) ? at + (reachable_ - carried_) : at);
  }

  static constexpr size_t kPage = 2u << 20;  // bytes: granularity of take()

 private:
  size_t bytes_;
  uintptr_t carried_ = 0;    // start of the mapping without access
  uintptr_t reachable_ = 0;  // start of the mapping that can be read and written
  int file_ = -1;
  std::mutex mutex_;
  std::vector<std::map<size_t, size_t>> free_;  // per device: offset -> bytes, neighbours joined
  std::map<size_t, size_t> mapped_;              // ranges that show another file: offset -> bytes
  void map_range(size_t from, int file, size_t offset, size_t bytes);
};

// From $SIMULATED_DEVICES (2) and $SIMULATED_MEMORY_MIB (256), without initialising the device: after asking for the
// number of devices, a child that is forked later can still use them. Throw std::runtime_error for malformed numbers.
int configured_devices();
size_t configured_bytes();

// The process' arena, made at first use.
Arena& arena();

}  // namespace simulated
