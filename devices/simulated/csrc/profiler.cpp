// What torch's profiler asks for: marks in a stream and the time between two.

#include "profiler.h"

#include <c10/util/ApproximateClock.h>
#include <torch/csrc/profiler/stubs/base.h>

#include <chrono>

#include "runtime.h"

namespace simulated {

namespace {

using torch::profiler::impl::ProfilerVoidEventStub;

struct Stubs final : torch::profiler::impl::ProfilerStubs {
  void record(c10::DeviceIndex* device, ProfilerVoidEventStub* event, int64_t* cpu_ns) const override {
    if (device != nullptr) {
      *device = static_cast<c10::DeviceIndex>(current_device());
    }
    auto mark = std::make_shared<Mark>();
    current_queue(current_device()).mark(mark);
    *event = std::move(mark);
    if (cpu_ns != nullptr) {
      *cpu_ns = c10::getTime();
    }
  }

  // Microseconds between two records.
  float elapsed(const ProfilerVoidEventStub* first, const ProfilerVoidEventStub* last) const override {
    auto* from = static_cast<Mark*>(first->get());
    auto* to = static_cast<Mark*>(last->get());
    from->wait();
    to->wait();
    return std::chrono::duration<float, std::micro>(to->when() - from->when()).count();
  }

  void mark(const char*) const override {}
  void rangePush(const char*) const override {}
  void rangePop() const override {}
  bool enabled() const override { return true; }
  void onEachDevice(std::function<void(int)> op) const override {
    for (int device = 0; device < device_count(); ++device) {
      op(device);
    }
  }
  void synchronize() const override {
    for (int device = 0; device < device_count(); ++device) {
      drain_queues(device);
    }
  }
};

}  // namespace

void register_profiler() {
  torch::profiler::impl::registerPrivateUse1Methods(new Stubs);
}

}  // namespace simulated
