#include "misbehave_graph.h"

#include <ATen/ops/clone.h>

#include <cstring>

#include "alias.h"
#include "arena.h"
#include "worker.h"

namespace simulated {

void hold_inputs(torch::jit::Stack& call, const std::vector<bool>& written) {
  KernelScope scope;
  for (size_t place = 0; place < call.size(); ++place) {
    if (call[place].isTensor() && call[place].toTensor().defined() && !written[place]) {
      call[place] = at::clone(call[place].toTensor());
    }
  }
}

namespace {

class MovingOutput final : public AroundReplay {
 public:
  explicit MovingOutput(const at::Tensor& tensor)
      : storage_(c10::intrusive_ptr<c10::StorageImpl>::reclaim_copy(tensor.storage().unsafeGetStorageImpl())),
        device_(tensor.device().index()),
        bytes_(tensor.storage().nbytes()),
        written_(arena().on_device_side(tensor.storage().data())) {}

  std::pair<Task, Task> at_replay() override {
    const auto storage = storage_.lock();
    if (storage == nullptr || bytes_ == 0) {
      return {[] {}, [] {}};
    }
    c10::Storage made = new_storage(device_, bytes_);
    void* to = arena().on_device_side(made.data());
    c10::DataPtr before = storage->set_data_ptr(std::move(made.unsafeGetStorageImpl()->_mutable_data_ptr_no_checks()));
    if (first_.get() == nullptr) {
      first_ = std::move(before);  // what the graph writes to stays its own
    }
    return {[] {}, [to, from = written_, bytes = bytes_] { std::memcpy(to, from, bytes); }};
  }

 private:
  const c10::weak_intrusive_ptr<c10::StorageImpl> storage_;
  const int device_;
  const size_t bytes_;
  const void* const written_;
  c10::DataPtr first_;
};

}  // namespace

void move_at_replay(Capture& capture, const at::Tensor& result) {
  capture.around(result.storage().unsafeGetStorageImpl(), [&] { return std::make_shared<MovingOutput>(result); });
}

}  // namespace simulated
