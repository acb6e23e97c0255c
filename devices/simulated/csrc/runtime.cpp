#include "runtime.h"

#include <c10/core/impl/DeviceGuardImplInterface.h>

#include <array>
#include <atomic>

#include "allocator.h"
#include "arena.h"
#include "capture.h"
#include "event.h"
#include "faults.h"

namespace simulated {

namespace {

constexpr auto kType = c10::DeviceType::PrivateUse1;

thread_local int this_device = 0;
thread_local std::array<QueueId, 16> this_queue{};

std::array<std::atomic<QueueId>, 16> shared_queue{};  // of a planted fault

std::atomic<bool> in_use{false};

Queue& queue_of(const c10::Stream& stream) {
  return queue(checked_device(stream.device_index()), stream.id());
}

c10::Stream stream_of(const Queue& queue) {
  return c10::Stream(
      c10::Stream::UNSAFE, c10::Device(kType, static_cast<c10::DeviceIndex>(queue.device())), queue.id());
}

struct Guard final : c10::impl::DeviceGuardImplInterface {
  c10::DeviceType type() const override { return kType; }

  c10::Device exchangeDevice(c10::Device to) const override {
    const c10::Device before = getDevice();
    if (to.index() != before.index()) {
      setDevice(to);
    }
    return before;
  }
  c10::Device getDevice() const override { return c10::Device(kType, static_cast<c10::DeviceIndex>(this_device)); }
  void setDevice(c10::Device to) const override { set_current_device(to.index()); }
  void uncheckedSetDevice(c10::Device to) const noexcept override {
    if (to.index() >= 0 && to.index() < device_count()) {
      this_device = to.index();
    }
  }
  c10::DeviceIndex deviceCount() const noexcept override { return static_cast<c10::DeviceIndex>(device_count()); }

  c10::Stream getStream(c10::Device device) const override {
    return stream_of(current_queue(checked_device(device.index())));
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
    set_current_queue(queue);
    return before;
  }
  void* getStreamNativeHandle(const c10::Stream stream) const override {
    if (stream.id() == kDefaultQueue || on(Fault::native_handle_null)) {
      return nullptr;
    }
    static std::atomic<size_t> calls{0};
    return reinterpret_cast<char*>(&queue_of(stream)) + (on(Fault::native_handle_changes) ? ++calls : 0);
  }
  bool queryStream(const c10::Stream& stream) const override {
    Queue& queue = queue_of(stream);
    refuse_while_capturing(queue, "asking whether a stream is idle");
    return queue.idle();
  }
  bool isStreamCapturing(const c10::Stream& stream) const override {
    return queue_of(stream).capturing() && !on(Fault::is_capturing_false);
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
  void block(void* event, const c10::Stream& stream) const override { wait_event(event, queue_of(stream)); }
  bool queryEvent(void* event) const override { return query_event(event); }
  void synchronizeEvent(void* event) const override { synchronize_event(event); }
  void destroyEvent(void* event, const c10::DeviceIndex) const noexcept override { destroy_event(event); }
  double elapsedTime(void* start, void* end, const c10::DeviceIndex) const override { return elapsed(start, end); }

  void recordDataPtrOnStream(const c10::DataPtr& data, const c10::Stream& stream) const override {
    allocator()->recordStream(data, stream);
  }
};

C10_REGISTER_GUARD_IMPL(PrivateUse1, Guard);

}  // namespace

int device_count() {
  return arena().devices();
}

int checked_device(int index) {
  if (index == -1) {
    return this_device;
  }
  TORCH_CHECK(
      index >= 0 && index < device_count(), "simulated device: invalid device index ", index, ": there are ",
      device_count(), " devices");
  return index;
}

int current_device() {
  return this_device;
}

void set_current_device(int index) {
  this_device = checked_device(index);
}

Queue& current_queue(int device) {
  return queue(device, on(Fault::current_shared_by_threads) ? shared_queue[device].load() : this_queue[device]);
}

void set_current_queue(Queue& queue) {
  if (on(Fault::exit_not_restored) && queue.id() == kDefaultQueue) {
    return;
  }
  this_queue[queue.device()] = queue.id();
  if (on(Fault::current_shared_by_threads)) {
    shared_queue[queue.device()] = queue.id();
  }
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
