#include "compiled.h"

#include <torch/csrc/utils/pybind.h>

#include <algorithm>

#include "alias.h"
#include "stream.h"

namespace simulated {

namespace {

using Tensors = std::vector<at::Tensor>;

// Device storages for the storages that compiled code has made: results that share one there share one on the device.
class NewStorages {
 public:
  at::Tensor result(const at::Tensor& made, int device) {
    const c10::Storage& storage = made.storage();
    auto found = std::find_if(storages_.begin(), storages_.end(), [&](const auto& each) {
      return each.first.unsafeGetStorageImpl() == storage.unsafeGetStorageImpl();
    });
    if (found == storages_.end()) {
      storages_.emplace_back(storage, storage_with(device, storage.data(), storage.nbytes()));
      found = std::prev(storages_.end());
    }
    return tensor_over(
        found->second, made.sizes(), made.strides(), made.storage_offset(), made.dtype(), {made.is_conj(), made.is_neg()});
  }

 private:
  std::vector<std::pair<c10::Storage, c10::Storage>> storages_;
};

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
  NewStorages storages;
  for (at::Tensor& each : made) {
    const auto same = [&](const at::Tensor& one) { return one.defined() && one.is_alias_of(each); };
    const bool shared = std::any_of(given.begin(), given.end(), same);
    each = shared || !each.defined() ? aliases.result(each) : storages.result(each, device);
  }
  return made;
}

}  // namespace

void add_compiled(py::module_& m) {
  m.def("run_compiled", &run_compiled);
}

}  // namespace simulated
