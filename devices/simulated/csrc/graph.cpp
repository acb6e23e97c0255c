// torch.accelerator.Graph on this device: the implementation that torch finds under the backend's name.

#include "graph.h"

#include <Python.h>

#include <ATen/core/GraphImplInterface.h>

#include <fstream>

#include "allocator.h"
#include "faults.h"
#include "generator.h"
#include "replay.h"
#include "runtime.h"

namespace simulated {

c10::MempoolId_t new_pool_id() {
  static std::atomic<uint64_t> made{0};
  return {0, ++made};
}

namespace {

CaptureMode mode_of(at::GraphCaptureMode mode) {
  switch (mode) {
    case at::GraphCaptureMode::ThreadLocal:
      return CaptureMode::of_thread;
    case at::GraphCaptureMode::Relaxed:
      return CaptureMode::relaxed;
    default:
      return CaptureMode::global;  // the strictest, as on CUDA
  }
}

// For a planted fault: forgets the exception that is being handled, so that the next one has no context.
void forget_exception() {
  const PyGILState_STATE held = PyGILState_Ensure();
  PyObject *type = nullptr, *value = nullptr, *trace = nullptr;
  PyErr_GetExcInfo(&type, &value, &trace);
  const bool any = value != nullptr && value != Py_None;
  Py_XDECREF(type);
  Py_XDECREF(value);
  Py_XDECREF(trace);
  if (any) {
    PyErr_SetExcInfo(nullptr, nullptr, nullptr);
  }
  PyGILState_Release(held);
  TORCH_CHECK(!any, "simulated device: the capture failed");
}

}  // namespace

class SimulatedGraph final : public at::GraphImplInterface {
 public:
  explicit SimulatedGraph(const at::GraphImplArgs& args) : keep_(args.keep_graph) {}
  ~SimulatedGraph() override {
    if (capture_ != nullptr) {  // nothing else would end it
      capture_->abandon();
      device_memory(device_).end_pool(pool_);
    }
    clear();
  }

  void capture_begin(c10::MempoolId_t pool, at::GraphCaptureMode mode) override {
    TORCH_CHECK(capture_ == nullptr, "simulated device: this graph is already capturing");
    TORCH_CHECK(
        recorded_ == nullptr && executable_ == nullptr,
        "simulated device: this graph already holds a capture: call reset(), or use another graph");
    Queue& queue = current_queue(current_device());
    if (queue.capturing() && on(Fault::graphs_nested_capture_accepted)) {
      nested_ = true;
      return;
    }
    auto capture = begin_capture(queue, mode_of(mode));
    const c10::MempoolId_t id = private_id(pool) ? pool : own_pool_id();
    const auto wanted = [capture = capture.get()](Queue& each) {
      return on(Fault::graphs_overlapping_captures_share_pool) ? each.capturing() : each.capture().get() == capture;
    };
    try {
      device_memory(queue.device()).begin_pool(id, wanted);
    } catch (...) {
      if (!on(Fault::graphs_refused_capture_goes_on)) {
        capture->abandon();
      }
      throw;
    }
    device_ = queue.device();
    pool_ = id;
    has_pool_ = true;
    capture_ = std::move(capture);
  }

  void capture_end() override {
    if (nested_) {
      nested_ = false;
      return;
    }
    TORCH_CHECK(capture_ != nullptr, "simulated device: capture_end() without a capture_begin() before it");
    TORCH_CHECK(
        !on(Fault::graphs_stays_capturing) || capture_->why_invalid().empty(), "simulated device: the capture failed");
    const auto capture = std::move(capture_);
    capture_ = nullptr;
    const bool elsewhere = &current_queue(device_) != &capture->origin();
    device_memory(device_).end_pool(pool_);
    if (!capture->why_invalid().empty() && on(Fault::graphs_failure_stops_empty_cache)) {
      device_memory(device_).stop_emptying();
    }
    try {
      Recorded made = capture->end();
      TORCH_CHECK(
          !elsewhere, "simulated device: the capture ended on another stream than the one it began on, and is lost");
      if (on(Fault::graphs_error_lost)) {
        forget_exception();
      }
      recorded_ = std::make_shared<const Recorded>(std::move(made));
      refuse_to_draw(false);
    } catch (...) {
      refuse_to_draw(on(Fault::graphs_failure_stops_drawing));
      has_pool_ = has_pool_ && !on(Fault::graphs_failed_pool_kept);
      release_pool();
      throw;
    }
    if ((recorded_->nodes.empty() || on(Fault::graphs_every_capture_warns)) && !on(Fault::graphs_empty_capture_silent)) {
      TORCH_WARN(
          "The graph is empty: nothing was recorded on the capturing stream. Work on other streams or devices belongs "
          "to a graph only if it is joined to that stream by events.");
    }
    if (!keep_) {
      instantiate();
    }
  }

  void instantiate() override {
    TORCH_CHECK(recorded_ != nullptr || executable_ != nullptr, "simulated device: instantiate() without a capture before it");
    TORCH_CHECK(
        executable_ == nullptr || (keep_ && !on(Fault::graphs_instantiated_once)),
        "simulated device: instantiate() is for graphs made with keep_graph=True");
    executable_ = std::make_shared<Executable>(recorded_);
    if (!keep_ && !debug_) {
      recorded_ = nullptr;  // the executable holds what it needs
    }
  }

  void replay() override {
    if (executable_ == nullptr) {
      if (recorded_ == nullptr && on(Fault::graphs_replay_before_capture_silent)) {
        return;
      }
      TORCH_CHECK(recorded_ != nullptr, "simulated device: replay() without a successful capture before it");
      instantiate();
    }
    executable_->launch(current_queue(device_));
  }

  void reset() override {
    TORCH_CHECK(capture_ == nullptr, "simulated device: reset() while the graph is capturing");
    if (!on(Fault::graphs_reset_keeps_graph)) {
      clear();
    }
  }

  c10::MempoolId_t pool() const override {
    TORCH_CHECK(has_pool_, "simulated device: pool() without a capture before it");
    return pool_;
  }

  void enable_debug_mode() override { debug_ = true; }

  void debug_dump(const std::string& path) override {
    if (!debug_) {
      TORCH_WARN("debug_dump() does nothing: call enable_debug_mode() before the capture");
      return;
    }
    TORCH_CHECK(recorded_ != nullptr, "simulated device: debug_dump() without a capture before it");
    std::ofstream file(path);
    file << drawing_of(*recorded_);
    file.close();
    TORCH_CHECK(file.good(), "simulated device: cannot write ", path);
  }

 private:
  static c10::MempoolId_t own_pool_id() {
    static std::atomic<uint64_t> made{0};
    return {on(Fault::graphs_unshared_pools_overlap) ? UINT32_MAX : ++made, 0};
  }

  void release_pool() {
    if (has_pool_) {
      has_pool_ = false;
      if (!on(Fault::graphs_pool_never_returned)) {
        device_memory(device_).release_pool(pool_);
      }
    }
  }

  void clear() {
    if (executable_ != nullptr &&
        (on(Fault::graphs_destroy_while_queued) || (executable_->draws() && on(Fault::graphs_random_state_freed)))) {
      executable_->forget();
    }
    executable_ = nullptr;  // queued work keeps it alive
    if (!on(Fault::graphs_kept_graph_not_reset)) {
      recorded_ = nullptr;
    }
    release_pool();
  }

  const bool keep_;
  bool debug_ = false, nested_ = false, has_pool_ = false;
  int device_ = 0;
  c10::MempoolId_t pool_{0, 0};
  std::shared_ptr<Capture> capture_;            // while it is underway
  std::shared_ptr<const Recorded> recorded_;    // after it, if it is kept
  std::shared_ptr<Executable> executable_;
};

}  // namespace simulated

namespace at {
// Under the name that the backend has in torch: c10::DeviceTypeName in upper case.
REGISTER_GRAPH_IMPL(SIMULATED, simulated::SimulatedGraph)
}  // namespace at
