// What Python can call, beyond torch's own interfaces.

#include <pybind11/functional.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>
#include <torch/csrc/Exceptions.h>
#include <torch/csrc/Generator.h>

#include <c10/core/impl/DeviceGuardImplInterface.h>

#include <chrono>
#include <thread>

#include "activity.h"
#include "allocator.h"
#include "arena.h"
#include "event.h"
#include "event_ipc.h"
#include "faults.h"
#include "generator.h"
#include "group.h"
#include "kernel.h"
#include "pinned.h"
#include "profiler.h"
#include "runtime.h"
#include "settings.h"
#include "sharing.h"
#include "worker.h"
#include "compiled.h"
#include "bindings_graph.h"
#include "bindings_memory.h"

namespace py = pybind11;

namespace simulated {

namespace {

void busy(double milliseconds) {
  current_queue(current_device()).submit([milliseconds] {
    std::this_thread::sleep_for(std::chrono::duration<double, std::milli>(milliseconds));
  }, "busy");
}

// Queues a task that fails, like a kernel that finds an index out of range.
void fail(const std::string& message) {
  current_queue(current_device()).submit([message] { TORCH_CHECK(false, message); });
}

// A task that holds up a stream until the host releases it: tests show order with it, never with a sleep.
class Gate {
 public:
  void close() {
    reached_ = std::make_shared<Mark>();
    current_queue(current_device()).submit([mark = mark_, reached = reached_] {
      reached->set();
      mark->wait();
    });
  }
  bool reached() { return reached_ != nullptr && reached_->done(); }
  void open() { mark_->set(); }

 private:
  MarkPtr mark_ = std::make_shared<Mark>();
  MarkPtr reached_;
};

}  // namespace

PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {
  m.doc() = "The simulated device: a PrivateUse1 backend over host memory.";
  register_allocator();
  register_hooks();
  register_kernels();
  register_settings(true);
  register_profiler();
  register_activity();

  m.def("device_count", &device_count);
  m.def("current_device", &current_device);
  m.def("set_device", &set_current_device);
  m.def("exchange_device", &exchange_device);
  m.def("checked_device", &checked_device);
  m.def("total_memory", &configured_bytes);
  m.def("was_used", &was_used);
  m.def("first_use", &first_use);
  m.def("in_bad_fork", &in_bad_fork);
  m.def("synchronize", [](int device) { drain_device(checked_device(device)); }, py::call_guard<py::gil_scoped_release>());
  m.def("busy", &busy, py::arg("milliseconds"));
  m.def("fail", &fail, py::arg("message"));
  m.def("stop_kernels", &stop_kernels, py::call_guard<py::gil_scoped_release>());
  py::class_<Gate>(m, "Gate")
      .def(py::init<>())
      .def("close", &Gate::close)
      .def("open", &Gate::open)
      .def("reached", &Gate::reached);
  m.def("new_external_stream", [](int device) {
    Queue& made = new_external_queue(checked_device(device));
    return std::make_pair(reinterpret_cast<uintptr_t>(&made), made.id());
  });
  m.def("stream_of_handle", [](uintptr_t handle, int device) { return queue_of_handle(checked_device(device), reinterpret_cast<void*>(handle)).id(); });

  // Of events by their ids; torch.Event.elapsed_time takes no subclass of it (torch/csrc/Event.cpp).
  m.def("elapsed_time", [](uintptr_t start, uintptr_t end) {
    return elapsed(reinterpret_cast<void*>(start), reinterpret_cast<void*>(end));
  });
  m.def("open_shared_event", &open_shared_event, py::arg("path"), py::arg("create"));
  m.def("record_shared_event", [](uintptr_t event, int device, QueueId id) { record_shared_event(event, queue(device, id)); });
  m.def("wait_shared_event", [](uintptr_t event, int device, QueueId id) { wait_shared_event(event, queue(device, id)); });
  m.def("shared_event_done", &shared_event_done);
  m.def("synchronize_shared_event", &synchronize_shared_event, py::call_guard<py::gil_scoped_release>());

  m.def("stream_priority", [](int device, QueueId id) { return queue(checked_device(device), id).priority(); });
  m.def("destroy_stream", [](int device, QueueId id) { queue(checked_device(device), id).destroy(); });

  m.def("set_memory_fraction", [](double fraction, int device) {
    device_memory(checked_device(device)).set_fraction(fraction);
    for (int each = 0; each < device_count() && on(Fault::allocator_fraction_of_every_index); ++each) {
      device_memory(each).set_fraction(fraction);
    }
  });
  m.def("memory_fraction", [](int device) { return device_memory(checked_device(device)).fraction(); });
  add_memory(m);
  add_graphs(m);
  add_group(m);
  add_compiled(m);
  add_sharing(m);
  m.def("default_generator", [](int device) {
    return py::reinterpret_steal<py::object>(THPGenerator_Wrap(default_generator(checked_device(device))));
  });

  m.def("fault_is_on", &fault_is_on, py::arg("name"));
  m.def("switch_fault", &switch_fault, py::arg("name"), py::arg("on"));
  m.def("fault_names", &fault_names);
  m.def("faults_that_are_on", &faults_that_are_on);
  m.def("fault_places", &places_of, py::arg("name"));
  m.def("seen_since", &seen_since);
  m.def("note_asked", &note_asked, py::arg("noting"));
  m.def("faults_asked", &faults_asked);
  m.def("note_ops", &note_ops, py::arg("noting"));
  m.def("ops_called", &ops_called);
}

}  // namespace simulated
