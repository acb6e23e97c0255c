#include "runtime.h"

#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <torch/csrc/Export.h>

#include <array>
#include <atomic>

#include <unistd.h>

#include "allocator.h"
#include "arena.h"
#include "capture.h"
#include "event.h"
#include "faults.h"

// Declared in torch/csrc/autograd/graph_task.h, which would include all of autograd.
namespace torch::autograd {
TORCH_API int get_current_graph_task_id();
}

namespace simulated {

bool in_backward() {
  return torch::autograd::get_current_graph_task_id() >= 0;
}

namespace {

constexpr auto kType = c10::DeviceType::PrivateUse1;

thread_local int this_device = 0;
std::atomic<int> shared_device{0};  // for a planted fault
thread_local std::array<QueueId, 16> this_queue{};

std::array<std::atomic<QueueId>, 16> shared_queue{};  // for a planted fault

std::atomic<bool> in_use{false};

// The dtypes that descriptor.py declares, as bits by their numbers.
constexpr uint64_t kDtypes = [] {
  using enum c10::ScalarType;
  uint64_t bits = 0;
  for (const c10::ScalarType each :
       {Byte,          Char,            Short,           Int,           Long,           Half,
        Float,         Double,          ComplexHalf,     ComplexFloat,  ComplexDouble,  Bool,
        BFloat16,      Float8_e5m2,     Float8_e4m3fn,   Float8_e5m2fnuz, Float8_e4m3fnuz, Float8_e8m0fnu,
        UInt16,        UInt32,          UInt64}) {
    bits |= uint64_t{1} << static_cast<int>(each);
  }
  return bits;
}();

Queue& queue_of(const c10::Stream& stream) {
  return queue(checked_device(stream.device_index()), stream.id());
}

c10::Stream stream_of(const Queue& queue) {
  return c10::Stream(
      c10::Stream::UNSAFE, c10::Device(kType, static_cast<c10::DeviceIndex>(queue.device())), queue.id());
}

bool is_main_thread() {
  return getpid() == gettid();
}

// The index that a guard really sets when asked for this one.
int kept_by_thread(int index) {
  return on(Fault::autograd_thread_loses_index) && !is_main_thread() && index >= 0 ? 0 : index;
}

struct Guard final : c10::impl::DeviceGuardImplInterface {
  c10::DeviceType type() const override { return kType; }

  c10::Device exchangeDevice(c10::Device to) const override {
    return c10::Device(kType, static_cast<c10::DeviceIndex>(exchange_device(kept_by_thread(to.index()))));
  }
  c10::Device getDevice() const override { return c10::Device(kType, static_cast<c10::DeviceIndex>(current_device())); }
  void setDevice(c10::Device to) const override {
    if (!on(Fault::streams_index_not_restored) || checked_device(to.index()) > current_device()) {
      set_current_device(kept_by_thread(to.index()));
    }
  }
  void uncheckedSetDevice(c10::Device to) const noexcept override {
    if (to.index() >= 0 && to.index() < device_count()) {
      set_current_device(kept_by_thread(to.index()));
    }
  }
  c10::DeviceCapability getDeviceCapability(c10::Device device) const override {
    if (!on(Fault::device_capability_past_count)) {
      checked_device(device.index());
    }
    c10::DeviceCapability found;
    if (!on(Fault::device_capability_claims_all)) {
      found.capability_data.capability_bits = kDtypes;
    }
    return found;
  }
  c10::DeviceIndex deviceCount() const noexcept override { return static_cast<c10::DeviceIndex>(device_count()); }

  c10::Stream getStream(c10::Device device) const override {
    const c10::Stream found = stream_of(current_queue(checked_device(device.index())));
    if (!on(Fault::streams_hash_differs)) {
      return found;
    }
    static std::atomic<QueueId> calls{0};
    return c10::Stream(c10::Stream::UNSAFE, found.device(), found.id() | (++calls << 32));
  }
  c10::Stream getDefaultStream(c10::Device device) const override {
    return stream_of(queue(checked_device(device.index()), kDefaultQueue));
  }
  c10::Stream getStreamFromGlobalPool(c10::Device device, bool high) const override {
    return stream_of(next_queue(checked_device(device.index()), high ? kGreatestPriority : kLeastPriority));
  }
  c10::Stream getNewStream(c10::Device device, int priority) const override {
    return stream_of(next_queue(checked_device(device.index()), priority));
  }
  c10::Stream exchangeStream(c10::Stream to) const override {
    Queue& queue = queue_of(to);
    const c10::Stream before = stream_of(current_queue(queue.device()));
    if (on(Fault::streams_backward_on_default_stream) && in_backward()) {
      return before;
    }
    set_current_queue(queue);
    return before;
  }
  void* getStreamNativeHandle(const c10::Stream stream) const override {
    if ((stream.id() & kIdBits) == kDefaultQueue || on(Fault::streams_native_handle_null)) {
      return nullptr;
    }
    static std::atomic<size_t> calls{0};
    return reinterpret_cast<char*>(&queue_of(stream)) + (on(Fault::streams_native_handle_changes) ? ++calls : 0);
  }
  bool queryStream(const c10::Stream& stream) const override {
    Queue& queue = queue_of(stream);
    refuse_while_capturing(queue, "asking whether a stream is idle");
    return queue.idle();
  }
  bool isStreamCapturing(const c10::Stream& stream) const override {
    return queue_of(stream).capturing() && !on(Fault::graphs_is_capturing_false);
  }
  void synchronizeStream(const c10::Stream& stream) const override {
    Queue& queue = queue_of(stream);
    refuse_while_capturing(queue, "synchronising a stream");
    queue.drain();
    raise_pending(queue.device());
  }
  void synchronizeDevice(const c10::DeviceIndex device) const override { drain_device(checked_device(device)); }

  void record(void** event, const c10::Stream& stream, const c10::DeviceIndex device, const c10::EventFlag flag)
      const override {
    record_event(event, queue_of(stream), device, flag == c10::EventFlag::BACKEND_DEFAULT);
  }
  void block(void* event, const c10::Stream& stream) const override {
    if (!on(Fault::streams_backward_not_joined) || (is_main_thread() && !in_backward())) {
      wait_event(event, queue_of(stream));
    }
  }
  bool queryEvent(void* event) const override { return query_event(event); }
  void synchronizeEvent(void* event) const override { synchronize_event(event); }
  void destroyEvent(void* event, const c10::DeviceIndex) const noexcept override { destroy_event(event); }
  double elapsedTime(void* start, void* end, const c10::DeviceIndex) const override { return elapsed(start, end); }

  void recordDataPtrOnStream(const c10::DataPtr& data, const c10::Stream& stream) const override {
    if (!on(Fault::streams_gradient_not_recorded)) {
      allocator()->recordStream(data, stream);
    }
  }
};

C10_REGISTER_GUARD_IMPL(PrivateUse1, Guard);

}  // namespace

int device_count() {
  return configured_devices();
}

int checked_device(int index) {
  if (index == -1) {
    return current_device();
  }
  if (on(Fault::device_accept_index_past_count) && index >= device_count()) {
    return index % device_count();
  }
  TORCH_CHECK(
      index >= 0 && index < device_count(), "simulated device: invalid device index ", index, ": there are ",
      device_count(), " devices");
  return index;
}

int current_device() {
  return on(Fault::device_current_shared_by_threads) ? shared_device.load() : this_device;
}

void set_current_device(int index) {
  index = checked_device(index);
  this_device = index;
  if (on(Fault::device_current_shared_by_threads)) {
    shared_device = index;
  }
}

int exchange_device(int index) {
  const int before = current_device();
  if (index >= 0 && !(on(Fault::device_index_not_restored) && checked_device(index) < before)) {
    set_current_device(index);
  }
  return before;
}

Queue& current_queue(int device) {
  return queue(device, on(Fault::streams_current_shared_by_threads) ? shared_queue[device].load() : this_queue[device]);
}

void set_current_queue(Queue& queue) {
  if (on(Fault::streams_exit_not_restored) && queue.id() == kDefaultQueue) {
    return;
  }
  this_queue[queue.device()] = queue.id();
  if (on(Fault::streams_current_shared_by_threads)) {
    shared_queue[queue.device()] = queue.id();
  }
}

bool is_declared(c10::ScalarType dtype) {
  return (kDtypes >> static_cast<int>(dtype)) & 1;
}

void first_use() {
  refuse_after_fork();
  if (!in_use.load(std::memory_order_relaxed)) {
    in_use.store(true);
    watch_forks();
  }
}

bool was_used() {
  return in_use.load();
}

}  // namespace simulated
