#include "pinned.h"

#include <sys/mman.h>

#include <bit>
#include <cstring>
#include <map>
#include <vector>

#include <c10/core/Device.h>

#include "faults.h"

namespace simulated {

namespace {

constexpr size_t kPage = 4096;

struct PinnedBlock {
  size_t size = 0;
  std::vector<MarkPtr> used;  // marks behind the copies that use it
};

struct PinnedCache {
  std::mutex mutex;
  std::map<uintptr_t, PinnedBlock> live;                          // by address
  std::multimap<size_t, std::pair<void*, std::vector<MarkPtr>>> cached;  // by size
  PinnedStats stats;
};

PinnedCache& cache() {
  static auto* made = new PinnedCache;  // leaked: tensors may outlive static objects
  return *made;
}

bool passed(const std::vector<MarkPtr>& marks) {
  for (const auto& mark : marks) {
    if (!mark->done()) {
      return false;
    }
  }
  return true;
}

std::map<uintptr_t, PinnedBlock>::iterator around_locked(const void* address) {
  auto& live = cache().live;
  auto at = reinterpret_cast<uintptr_t>(address);
  auto found = live.upper_bound(at);
  if (found == live.begin()) {
    return live.end();
  }
  --found;
  return at < found->first + found->second.size ? found : live.end();
}

void release_pinned(void* address) {
  if (address == nullptr) {
    return;
  }
  auto& all = cache();
  std::lock_guard<std::mutex> lock(all.mutex);
  auto found = all.live.find(reinterpret_cast<uintptr_t>(address));
  const size_t size = found->second.size;
  all.cached.emplace(size, std::make_pair(address, std::move(found->second.used)));
  if (!on(Fault::allocator_host_freed_stays_pinned)) {
    all.live.erase(found);
  }
  if (!on(Fault::allocator_host_miscount)) {
    all.stats.host.active_requests.decrease(1);
    all.stats.host.active_bytes.decrease(static_cast<int64_t>(size));
  }
}

struct PinnedAllocator final : at::HostAllocator {
  c10::DataPtr allocate(size_t bytes) override {
    if (bytes == 0 && !on(Fault::allocator_host_block_for_nothing)) {
      return {nullptr, nullptr, &release_pinned, c10::Device(c10::DeviceType::CPU)};
    }
    auto& all = cache();
    const size_t size = std::bit_ceil(std::max(bytes, kPage));
    std::lock_guard<std::mutex> lock(all.mutex);
    void* address = nullptr;
    auto [from, to] = all.cached.equal_range(size);
    for (auto it = from; it != to; ++it) {
      if (on(Fault::allocator_host_never_reuse)) {
        break;
      }
      if (passed(it->second.second) || on(Fault::transfer_pinned_reused_early)) {
        address = it->second.first;
        all.cached.erase(it);
        ++all.stats.reuses;
        break;
      }
    }
    if (address == nullptr) {
      address = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
      TORCH_CHECK_WITH(OutOfMemoryError, address != MAP_FAILED, "simulated device: no host memory to pin ", size, " bytes");
      ++all.stats.host.num_host_alloc;
      all.stats.host.allocations.increase(1);
      all.stats.host.allocated_bytes.increase(static_cast<int64_t>(size));
    }
    all.live[reinterpret_cast<uintptr_t>(address)] = PinnedBlock{size, {}};
    all.stats.host.active_requests.increase(1);
    all.stats.host.active_bytes.increase(static_cast<int64_t>(size));
    return {address, address, &release_pinned, c10::Device(c10::DeviceType::CPU)};
  }

  c10::DeleterFnPtr raw_deleter() const override { return &release_pinned; }
  void copy_data(void* to, const void* from, size_t bytes) const override { std::memcpy(to, from, bytes); }

  bool record_event(void* address, void*, c10::Stream stream) override {
    if (!is_pinned(address)) {
      return false;
    }
    record_pinned(address, queue(stream.device_index(), stream.id()));
    return true;
  }
  void empty_cache() override { empty_pinned_cache(); }
  at::HostStats get_stats() override { return pinned_stats().host; }
  void reset_accumulated_stats() override { reset_pinned_totals(); }
  void reset_peak_stats() override { reset_pinned_peaks(); }
};

}  // namespace

at::HostAllocator* pinned_allocator() {
  static auto* made = new PinnedAllocator;
  return made;
}

bool is_pinned(const void* address) {
  std::lock_guard<std::mutex> lock(cache().mutex);
  return around_locked(address) != cache().live.end();
}

void record_pinned(const void* address, Queue& queue) {
  if (queue.capturing()) {
    return;  // a graph's copies own their host memory
  }
  if (queue.device() != 0 && on(Fault::transfer_pinned_unmarked_elsewhere)) {
    return;
  }
  auto mark = std::make_shared<Mark>();
  queue.mark(mark);
  std::lock_guard<std::mutex> lock(cache().mutex);
  auto found = around_locked(address);
  if (found != cache().live.end()) {
    auto& used = found->second.used;
    std::erase_if(used, [](const MarkPtr& each) { return each->done(); });
    used.push_back(std::move(mark));
  }
}

void empty_pinned_cache() {
  auto& all = cache();
  std::lock_guard<std::mutex> lock(all.mutex);
  for (auto it = all.cached.begin(); it != all.cached.end();) {
    if (!passed(it->second.second)) {
      ++it;
      continue;
    }
    if (!on(Fault::allocator_host_memory_not_returned)) {
      munmap(it->second.first, it->first);
    }
    ++all.stats.host.num_host_free;
    if (!on(Fault::allocator_host_release_not_counted)) {
      all.stats.host.allocations.decrease(1);
    }
    all.stats.host.allocated_bytes.decrease(static_cast<int64_t>(it->first));
    it = all.cached.erase(it);
  }
}

namespace {
template <typename Change>
void each_pinned_stat(Change change) {
  std::lock_guard<std::mutex> lock(cache().mutex);
  at::HostStats& host = cache().stats.host;
  for (auto* stat : {&host.active_requests, &host.active_bytes, &host.allocations, &host.allocated_bytes}) {
    change(*stat);
  }
}
}  // namespace

void reset_pinned_peaks() {
  each_pinned_stat([](auto& stat) { stat.reset_peak(); });
}

void reset_pinned_totals() {
  each_pinned_stat([](auto& stat) { stat.reset_accumulated(); });
  std::lock_guard<std::mutex> lock(cache().mutex);
  cache().stats.host.num_host_alloc = cache().stats.host.num_host_free = cache().stats.reuses = 0;
}

PinnedStats pinned_stats() {
  std::lock_guard<std::mutex> lock(cache().mutex);
  return cache().stats;
}

}  // namespace simulated
