#include "arena.h"

#include "stream.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <iterator>
#include <stdexcept>
#include <string>
#include <utility>

namespace simulated {

namespace {

[[noreturn]] void refused(const std::string& what) {
  throw std::runtime_error("simulated device: " + what + " failed: " + std::strerror(errno));
}

// A whole number from the environment within [least, most]. Throws std::runtime_error for anything else.
size_t number_from(const char* name, size_t otherwise, size_t least, size_t most) {
  const char* text = std::getenv(name);
  if (text == nullptr || *text == '\0') {
    return otherwise;
  }
  char* end = nullptr;
  errno = 0;
  unsigned long long value = std::strtoull(text, &end, 10);
  if (errno != 0 || *end != '\0' || *text == '-' || value < least || value > most) {
    throw std::runtime_error(
        std::string(name) + " must be a whole number from " + std::to_string(least) + " to " +
        std::to_string(most) + ", got '" + text + "'");
  }
  return value;
}

}  // namespace

Arena::Arena(int devices, size_t bytes) : bytes_(bytes), free_(devices) {
  const size_t total = bytes * devices;
  file_ = memfd_create("simulated-device-memory", MFD_CLOEXEC);
  if (file_ < 0) {
    refused("memfd_create");
  }
  if (ftruncate(file_, static_cast<off_t>(total)) != 0) {
    refused("ftruncate to " + std::to_string(total) + " bytes");
  }
  void* carried = mmap(nullptr, total, PROT_NONE, MAP_SHARED, file_, 0);
  void* reachable = mmap(nullptr, total, PROT_READ | PROT_WRITE, MAP_SHARED, file_, 0);
  if (carried == MAP_FAILED || reachable == MAP_FAILED) {
    refused("mmap of " + std::to_string(total) + " bytes");
  }
  // Shared mappings would give a forked child the parent's device memory.
  if (madvise(carried, total, MADV_DONTFORK) != 0 || madvise(reachable, total, MADV_DONTFORK) != 0) {
    refused("madvise(MADV_DONTFORK)");
  }
  carried_ = reinterpret_cast<uintptr_t>(carried);
  reachable_ = reinterpret_cast<uintptr_t>(reachable);
  for (auto& ranges : free_) {
    ranges.emplace(0, bytes);
  }
}

void* Arena::take(int device, size_t bytes) {
  bytes = (bytes + kPage - 1) / kPage * kPage;
  std::lock_guard<std::mutex> lock(mutex_);
  auto& ranges = free_.at(device);
  for (auto it = ranges.begin(); it != ranges.end(); ++it) {
    if (it->second < bytes) {
      continue;
    }
    const auto [offset, size] = *it;
    ranges.erase(it);
    if (size > bytes) {
      ranges.emplace(offset + bytes, size - bytes);
    }
    return reinterpret_cast<void*>(carried_ + device * bytes_ + offset);
  }
  return nullptr;
}

void Arena::give(void* address, size_t bytes) {
  bytes = (bytes + kPage - 1) / kPage * kPage;
  std::lock_guard<std::mutex> lock(mutex_);
  const int device = device_of(address);
  const size_t in_file = reinterpret_cast<uintptr_t>(address) - carried_;
  // Returns the pages to the host. If the kernel cannot punch holes, more memory stays in use; nothing else changes.
  (void)fallocate(file_, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, static_cast<off_t>(in_file), static_cast<off_t>(bytes));
  auto& ranges = free_.at(device);
  auto it = ranges.emplace(in_file - device * bytes_, bytes).first;
  if (auto next = std::next(it); next != ranges.end() && it->first + it->second == next->first) {
    it->second += next->second;
    ranges.erase(next);
  }
  if (it != ranges.begin()) {
    if (auto before = std::prev(it); before->first + before->second == it->first) {
      before->second += it->second;
      ranges.erase(it);
    }
  }
}

// Makes a range of both mappings show `bytes` bytes of a file.
void Arena::map_range(size_t from, int file, size_t offset, size_t bytes) {
  for (const auto& [start, access] : {std::pair{carried_, PROT_NONE}, std::pair{reachable_, PROT_READ | PROT_WRITE}}) {
    void* at = reinterpret_cast<void*>(start + from);
    if (mmap(at, bytes, access, MAP_SHARED | MAP_FIXED, file, static_cast<off_t>(offset)) == MAP_FAILED ||
        madvise(at, bytes, MADV_DONTFORK) != 0) {
      refused("mmap of " + std::to_string(bytes) + " shared bytes");
    }
  }
}

void* Arena::take_mapped(int device, int file, size_t offset, size_t bytes) {
  void* address = take(device, bytes);
  if (address == nullptr) {
    throw std::runtime_error("simulated device: there is no room to map " + std::to_string(bytes) + " shared bytes");
  }
  const size_t from = reinterpret_cast<uintptr_t>(address) - carried_;
  map_range(from, file, offset, bytes);
  std::lock_guard<std::mutex> lock(mutex_);
  mapped_.emplace(from, bytes);
  return address;
}

void Arena::give_mapped(void* address, size_t bytes) {
  const size_t from = reinterpret_cast<uintptr_t>(address) - carried_;
  map_range(from, file_, from, bytes);
  {
    std::lock_guard<std::mutex> lock(mutex_);
    mapped_.erase(from);
  }
  give(address, bytes);
}

int64_t Arena::place_of(const void* address) {
  const size_t place = reinterpret_cast<uintptr_t>(address) - carried_;
  std::lock_guard<std::mutex> lock(mutex_);
  auto after = mapped_.upper_bound(place);
  const bool of_another = after != mapped_.begin() && place < std::prev(after)->first + std::prev(after)->second;
  return of_another ? -1 : static_cast<int64_t>(place);
}

void Arena::keep_over_forks() {
  for (const uintptr_t map : {carried_, reachable_}) {
    if (madvise(reinterpret_cast<void*>(map), bytes_ * free_.size(), MADV_DOFORK) != 0) {
      refused("madvise(MADV_DOFORK)");
    }
  }
}

size_t Arena::free_bytes(int device) {
  std::lock_guard<std::mutex> lock(mutex_);
  size_t sum = 0;
  for (const auto& [offset, size] : free_.at(device)) {
    sum += size;
  }
  return sum;
}

int configured_devices() {
  static const auto read = static_cast<int>(number_from("SIMULATED_DEVICES", 2, 1, 16));
  return read;
}

size_t configured_bytes() {
  static const size_t read = number_from("SIMULATED_MEMORY_MIB", 256, 32, 1u << 20) / 2 * 2 << 20;
  return read;
}

Arena& arena() {
  // Leaked: tensors may outlive every static object.
  static Arena* made = [] {
    watch_forks();  // a forked child has none of it
    return new Arena(configured_devices(), configured_bytes());
  }();
  return *made;
}

}  // namespace simulated
