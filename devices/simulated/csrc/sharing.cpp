// Sharing between processes: the memory of all devices of a process is one file, of which another process maps a part at
// addresses of its own device memory. So kernels, copies and checks of addresses treat the part as any other memory.

#include "sharing.h"

#include <ATen/core/Tensor.h>
#include <fcntl.h>
#include <torch/csrc/utils/pybind.h>
#include <unistd.h>

#include <memory>

#include "alias.h"
#include "arena.h"
#include "faults.h"
#include "runtime.h"
#include "stream.h"

namespace py = pybind11;

namespace simulated {

namespace {

// A part of another process' memory. While `held` is open, that process keeps the memory.
struct Mapped {
  void* address;
  size_t bytes;
  int held;
};

void unmap(void* context) {
  std::unique_ptr<Mapped> part(static_cast<Mapped*>(context));
  if (in_bad_fork()) {
    return;
  }
  {
    // Queued work may still use the memory.
    std::optional<py::gil_scoped_release> others;
    if (Py_IsInitialized() && PyGILState_Check()) {
      others.emplace();
    }
    drain_queues(arena().device_of(part->address));
  }
  arena().give_mapped(part->address, part->bytes);
  if (!on(Fault::sharing_never_released)) {
    close(part->held);
  }
}

// A tensor of `bytes` bytes, which lie at `offset` of another process' file. Takes over the descriptor `held`.
at::Tensor mapped(int file, size_t offset, size_t bytes, int device, int held) {
  first_use();
  const size_t unit = static_cast<size_t>(sysconf(_SC_PAGESIZE)), within = offset % unit;
  const size_t whole = (within + bytes + unit - 1) / unit * unit;
  void* address = arena().take_mapped(checked_device(device), file, offset - within, whole);
  auto* part = new Mapped{address, whole, held};
  const c10::Device where(c10::DeviceType::PrivateUse1, static_cast<c10::DeviceIndex>(device));
  c10::Storage storage(
      c10::Storage::use_byte_size_t(), bytes,
      c10::DataPtr(static_cast<char*>(address) + within, part, &unmap, where), /*allocator=*/nullptr, /*resizable=*/false);
  return tensor_over(storage, {static_cast<int64_t>(bytes)}, {1}, 0, caffe2::TypeMeta::Make<uint8_t>(), {false, false});
}

}  // namespace

void add_sharing(py::module_& m) {
  // A new descriptor of the file of all device memory.
  m.def("memory_file", [] {
    first_use();
    return fcntl(arena().file(), F_DUPFD_CLOEXEC, 0);
  });
  // Where an address of the device lies in that file; -1 if it is memory of another process.
  m.def("place_in_memory", [](uintptr_t address) { return arena().place_of(reinterpret_cast<void*>(address)); });
  m.def("map_memory", &mapped, py::arg("file"), py::arg("offset"), py::arg("bytes"), py::arg("device"), py::arg("held"));
}

}  // namespace simulated
