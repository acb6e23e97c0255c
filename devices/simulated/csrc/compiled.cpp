#include "compiled.h"

#include <torch/csrc/utils/pybind.h>

#include "alias.h"
#include "stream.h"

namespace simulated {

namespace {

using Tensors = std::vector<at::Tensor>;

// Runs compiled code for the CPU in a stream's turn: `function` takes aliases of the tensors, and what it returns becomes tensors
// of the device.
Tensors run_compiled(const py::object& function, const Tensors& tensors, int device, bool on_default) {
  Aliases aliases(device);
  Tensors given, made;
  for (const at::Tensor& each : tensors) {
    given.push_back(on_device(each) ? aliases.of(each) : each);
  }
  Queue& queue_of_call = on_default ? queue(device, kDefaultQueue) : current_queue(device);
  {
    py::gil_scoped_release release;
    queue_of_call.run_here([&] {
      py::gil_scoped_acquire acquire;
      made = function(given).cast<Tensors>();
    }, "compiled code");
  }
  aliases.write_back();
  for (at::Tensor& each : made) {
    each = aliases.result(each);
  }
  return made;
}

}  // namespace

void add_compiled(py::module_& m) {
  m.def("run_compiled", &run_compiled);
}

}  // namespace simulated
