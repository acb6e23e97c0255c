#include "bindings_memory.h"

#include <pybind11/functional.h>
#include <pybind11/stl.h>

#include <thread>

#include "allocator.h"
#include "arena.h"
#include "faults.h"
#include "pinned.h"
#include "pluggable.h"
#include "runtime.h"
#include "settings.h"

namespace py = pybind11;

namespace simulated {

namespace {

constexpr const char* kActions[] = {"alloc", "free_requested", "free_completed", "segment_alloc", "segment_free", "oom"};

uintptr_t number(const void* address) {
  return reinterpret_cast<uintptr_t>(address);
}

// In the form of torch.cuda.memory._snapshot(), which torch's visualiser reads.
py::dict event_of(const MemoryEvent& event, int device) {
  py::dict made;
  made["action"] = kActions[event.action];
  made[event.action == MemoryEvent::oom ? "device_free" : "addr"] = number(event.address);
  made["size"] = event.size;
  made["stream"] = event.queue;
  made["time_us"] = event.microseconds;
  made["device"] = device;
  made["segment_pool_id"] = py::make_tuple(event.pool.first, event.pool.second);
  made["frames"] = py::list();
  return made;
}

py::dict segment_of(const Segment& segment, int device) {
  size_t total = 0, allocated = 0, active = 0, requested = 0;
  py::list blocks;
  for (const BlockState& block : segment.blocks) {
    total += block.size;
    allocated += block.allocated ? block.size : 0;
    active += block.allocated || block.pending ? block.size : 0;
    requested += block.allocated ? block.requested : 0;
    py::dict made;
    made["address"] = number(block.address);
    made["size"] = block.size;
    made["requested_size"] = block.requested;
    made["state"] = block.allocated ? "active_allocated" : block.pending ? "active_pending_free" : "inactive";
    made["frames"] = py::list();
    blocks.append(std::move(made));
  }
  py::dict made;
  made["device"] = device;
  made["address"] = number(segment.address);
  made["total_size"] = total;
  made["allocated_size"] = allocated;
  made["active_size"] = active;
  made["requested_size"] = requested;
  made["stream"] = segment.queue;
  made["segment_type"] = segment.small ? "small" : "large";
  made["segment_pool_id"] = py::make_tuple(segment.pool.first, segment.pool.second);
  made["is_expandable"] = false;
  made["frames"] = py::list();
  made["blocks"] = std::move(blocks);
  return made;
}

py::dict snapshot() {
  py::list segments, traces;
  for (int device = 0; device < device_count(); ++device) {
    for (const Segment& segment : device_memory(device).snapshot()) {
      segments.append(segment_of(segment, device));
    }
    py::list events;
    for (const MemoryEvent& event : device_memory(device).history()) {
      events.append(event_of(event, device));
    }
    traces.append(std::move(events));
  }
  py::dict made;
  made["segments"] = std::move(segments);
  made["device_traces"] = std::move(traces);
  made["external_annotations"] = py::list();
  return made;
}

}  // namespace

void add_memory(py::module_& m) {
  // By pool, under the names of torch.cuda.memory_stats.
  m.def("reserved_bytes_by_private_pools", [](int device) {
    py::dict made;
    for (const auto& [id, array] : device_memory(checked_device(device)).stats().reserved_bytes_by_private_pools) {
      const std::string pool = "reserved_bytes_by_private_pools." + std::to_string(id.first) + "_" + std::to_string(id.second);
      for (const auto& [kind, type] : std::initializer_list<std::pair<const char*, StatType>>{
               {"all", StatType::AGGREGATE}, {"small_pool", StatType::SMALL_POOL}, {"large_pool", StatType::LARGE_POOL}}) {
        const auto& stat = array[static_cast<size_t>(type)];
        const std::string name = pool + "." + kind + ".";
        made[py::str(name + "current")] = stat.current;
        made[py::str(name + "peak")] = stat.peak;
        made[py::str(name + "allocated")] = stat.allocated;
        made[py::str(name + "freed")] = stat.freed;
      }
    }
    return made;
  });
  m.def("record_memory_history", [](size_t most) {
    const int recorded = on(Fault::allocator_history_of_first_index) ? 1 : device_count();
    for (int device = 0; device < recorded; ++device) {
      device_memory(device).record_history(most);
    }
  });
  m.def("memory_snapshot", &snapshot);
  m.def("pinned_stats", [] {
    const PinnedStats stats = pinned_stats();
    const at::HostStats& host = stats.host;
    py::dict made;
    for (const auto& [name, stat] : std::initializer_list<std::pair<std::string, const c10::CachingAllocator::Stat&>>{
             {"active_requests", host.active_requests},
             {"active_bytes", host.active_bytes},
             {"allocations", host.allocations},
             {"allocated_bytes", host.allocated_bytes}}) {
      made[py::str(name + ".current")] = stat.current;
      made[py::str(name + ".peak")] = stat.peak;
      made[py::str(name + ".allocated")] = stat.allocated;
      made[py::str(name + ".freed")] = stat.freed;
    }
    made["num_host_alloc"] = host.num_host_alloc;
    made["num_host_free"] = host.num_host_free;
    made["num_reuses"] = stats.reuses;
    return made;
  });
  m.def("reset_pinned_peaks", &reset_pinned_peaks);
  m.def("reset_pinned_totals", &reset_pinned_totals);
  m.def("use_settings_parser", &register_settings, py::arg("on"));
  // The functions take bytes, device and the stream's native handle; the second one also the address, first.
  m.def("plug_in", [](decltype(PluggedAllocator::take) take, decltype(PluggedAllocator::give) give) {
    plug_in({std::move(take), std::move(give)});
  });
  // Whole pages of device memory from the driver, for a user's allocator to hand out.
  m.def("raw_take", [](size_t bytes, int device) { return number(arena().take(checked_device(device), bytes)); });
  m.def("raw_give", [](uintptr_t address, size_t bytes) {
    auto* data = reinterpret_cast<void*>(address);
    TORCH_CHECK(arena().contains(data), "simulated device: ", data, " is not an address of the device");
    {
      py::gil_scoped_release others;
      drain_queues(arena().device_of(data));  // queued work may still use it
    }
    arena().give(data, bytes);
  });
  // The address at which the host can read a device's memory: for a planted fault.
  m.def("device_side", [](uintptr_t address) { return number(arena().on_device_side(reinterpret_cast<void*>(address))); });
  m.def("empty_pinned_cache", &empty_pinned_cache);
  // Requests of the calling thread come from the pool until end_pool().
  m.def("begin_pool", [](int device, c10::MempoolId_t id) {
    const auto caller = std::this_thread::get_id();
    device_memory(checked_device(device)).begin_pool(id, [caller](Queue&) { return std::this_thread::get_id() == caller; });
  });
  m.def("end_pool", [](int device, c10::MempoolId_t id) { device_memory(checked_device(device)).end_pool(id); });
  m.def("release_pool", [](int device, c10::MempoolId_t id) { device_memory(checked_device(device)).release_pool(id); });
}

}  // namespace simulated
