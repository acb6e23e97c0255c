// Copies: between the host and a device, within a device and between two.

#include <ATen/MemoryOverlap.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <torch/library.h>

#include <chrono>
#include <cstring>
#include <thread>

#include "activity.h"
#include "alias.h"
#include "arena.h"
#include "capture.h"
#include "faults.h"
#include "pinned.h"
#include "runtime.h"
#include "seen.h"
#include "spoil.h"
#include "worker.h"

namespace simulated {

namespace {

// Whether the elements of both lie in memory in the same order without gaps, and need no change on the way.
bool same_bytes(const at::Tensor& from, const at::Tensor& to) {
  return from.dtype() == to.dtype() && from.sizes() == to.sizes() && from.strides() == to.strides() &&
      from.is_conj() == to.is_conj() && from.is_neg() == to.is_neg() && from.is_non_overlapping_and_dense();
}

// Under a planted fault: the tensors that are really read and written.
std::pair<at::Tensor, at::Tensor> mistaken(at::Tensor from, at::Tensor to) {
  if (on(Fault::transfer_treat_source_as_dense) && is_stepped(from) && !arena().reaches(from.const_data_ptr())) {
    from = as_dense(from);
  }
  if (on(Fault::transfer_write_dense_into_view) && is_stepped(to)) {
    to = as_dense(to);
  }
  if (on(Fault::transfer_read_past_broadcast_source) && from.sizes() != to.sizes()) {
    const at::Tensor wide = from.expand(to.sizes());
    from = as_dense(wide);  // as far as the storage reaches
  }
  return {std::move(from), std::move(to)};
}

void copy_elements(const at::Tensor& given, const at::Tensor& target) {
  const auto [from, to] = mistaken(given, target);
  if (same_bytes(from, to)) {
    std::memmove(to.mutable_data_ptr(), from.const_data_ptr(), from.nbytes());
    return;
  }
  KernelScope scope;
  to.copy_(from);
}

// Whether a tensor of these sizes can be broadcast to those.
bool broadcasts(c10::IntArrayRef from, c10::IntArrayRef to) {
  if (from.size() > to.size()) {
    return false;
  }
  for (size_t back = 1; back <= from.size(); ++back) {
    const int64_t size = from[from.size() - back];
    if (size != 1 && size != to[to.size() - back]) {
      return false;
    }
  }
  return true;
}

// Whether a copy can be queued: it can no longer raise or warn, and it neither reads nor writes host memory that the
// caller may use meanwhile.
bool may_be_queued(const at::Tensor& self, const at::Tensor& to, bool non_blocking) {
  const bool host = !on_device(self) || !on_device(to);
  if (host && !(non_blocking && is_pinned((on_device(self) ? to : self).storage().data())) &&
      !on(on_device(to) ? Fault::transfer_return_before_read : Fault::transfer_return_before_write)) {
    return false;
  }
  return broadcasts(self.sizes(), to.sizes()) && at::has_internal_overlap(to) == at::MemOverlap::No &&
      !self.is_alias_of(to) && is_declared(self.scalar_type()) && is_declared(to.scalar_type()) &&
      !(self.is_complex() && !to.is_complex());
}

// The same for a copy that is captured, which warns at each replay: only copies that would raise are excluded.
bool may_be_captured(const at::Tensor& self, const at::Tensor& to, bool non_blocking) {
  const bool host = !on_device(self) || !on_device(to);
  return (!host || (non_blocking && is_pinned((on_device(self) ? to : self).storage().data()))) &&
      broadcasts(self.sizes(), to.sizes()) && at::has_internal_overlap(to) != at::MemOverlap::Yes &&
      at::get_overlap_status(self, to) != at::MemOverlapStatus::Partial;
}

// A tensor of the host over the same memory, which it does not keep alive.
at::Tensor unowned(const at::Tensor& tensor) {
  const c10::Storage& storage = tensor.storage();
  c10::Storage same(
      c10::Storage::use_byte_size_t(), storage.nbytes(),
      c10::DataPtr(const_cast<void*>(storage.data()), c10::Device(c10::DeviceType::CPU)), nullptr, /*resizable=*/false);
  at::Tensor made = at::detail::make_tensor<c10::TensorImpl>(
      std::move(same), c10::DispatchKeySet(c10::DispatchKey::CPU), tensor.dtype());
  auto* impl = made.unsafeGetTensorImpl();
  impl->set_sizes_and_strides(tensor.sizes(), tensor.strides(), tensor.storage_offset());
  if (!on(Fault::transfer_pinned_copy_forgets_lazy_bits)) {
    impl->_set_conj(tensor.is_conj());
    impl->_set_neg(tensor.is_neg());
  }
  return made;
}

// For a planted fault: a queue that nothing waits for.
Queue& unseen_queue(int device) {
  static auto* all = [] {
    auto* made = new std::vector<std::unique_ptr<Queue>>;
    for (int each = 0; each < device_count(); ++each) {
      made->push_back(std::make_unique<Queue>(each, kIdBits, kLeastPriority));
    }
    return made;
  }();
  return *all->at(device);
}

void queue_copy(const at::Tensor& self, const at::Tensor& to) {
  Queue& queue = current_queue((on_device(self) ? self : to).device().index());
  // The task owns no memory: marks say when host memory may be reused, and the queue's order protects device memory.
  // Only copies in a graph keep their host memory alive, as long as they may be replayed.
  auto alias = [owns = queue.capturing()](const at::Tensor& tensor) {
    return on_device(tensor) ? Aliases(tensor.device().index()).of(tensor) : owns ? tensor : unowned(tensor);
  };
  const bool spoilt =
      on(Fault::device_peer_copy_wrong) && on_device(self) && on_device(to) && self.device() != to.device();
  // Host memory that is not pinned is kept alive: only planted faults queue copies with it.
  const at::Tensor kept = on(Fault::transfer_return_before_read) && !on_device(self) ? self
      : on(Fault::transfer_return_before_write) && !on_device(to) ? to : at::Tensor();
  auto task = [from = alias(self), target = alias(to), spoilt, kept] {
    KernelTurn turn;
    copy_elements(from, target);
    if (spoilt) {
      KernelScope scope;
      target.zero_();
    }
  };
  if (!on_device(self) || !on_device(to) || self.device() == to.device()) {
    const bool with_host = !on_device(self) || !on_device(to);
    if (with_host && on(Fault::transfer_synchronize_misses_copy)) {
      unseen_queue(queue.device()).submit([task = std::move(task)] {
        std::this_thread::sleep_for(std::chrono::milliseconds(50));
        task();
      });
      return;
    }
    Queue& taken =
        with_host && on(Fault::transfer_non_blocking_off_stream) ? new_external_queue(queue.device()) : queue;
    taken.submit(std::move(task), kCopyName);
    if (with_host) {
      record_pinned((on_device(self) ? to : self).storage().data(), queue);
    }
    return;
  }
  // On the source's queue, after what the other queue holds now; the other queue then waits for the copy.
  Queue& other = current_queue(to.device().index());
  refuse_while_capturing(queue, "a copy between devices");
  refuse_while_capturing(other, "a copy between devices");
  auto before = std::make_shared<Mark>(), after = std::make_shared<Mark>();
  if (on(Fault::streams_copy_ignores_peer_stream)) {
    queue.submit(std::move(task), kCopyName);
    return;
  }
  other.mark(before);
  queue.wait(before);
  queue.submit(std::move(task), kCopyName);
  queue.mark(after);
  other.wait(after);
}

at::Tensor copy_from(const at::Tensor& self, const at::Tensor& to, bool non_blocking) {
  const bool from_device = on_device(self), to_device = on_device(to);
  TORCH_CHECK(
      (from_device || self.is_cpu()) && (to_device || to.is_cpu()), "simulated device: cannot copy from ",
      self.device(), " to ", to.device());
  const int device = to_device ? to.device().index() : self.device().index();
  raise_pending(device);
  const bool forgets_conjugate = self.is_conj() && from_device && on(Fault::views_forget_conj_bit);
  if (self.is_conj()) {
    static Seen seen("aten::_copy_from of a conjugate");
    seen.note();
  }
  const bool captured = current_queue((from_device ? self : to).device().index()).capturing();
  if (!forgets_conjugate && (captured ? may_be_captured(self, to, non_blocking) : may_be_queued(self, to, non_blocking))) {
    queue_copy(self, to);
    return to;
  }
  if (from_device && to_device && self.device() != to.device()) {
    refuse_while_capturing(current_queue(self.device().index()), "a copy between devices");
    if (!on(Fault::streams_converted_copy_ignores_source)) {
      current_queue(self.device().index()).drain();
    }
    raise_pending(self.device().index());
  }
  Aliases aliases(device);
  const at::Tensor from = from_device ? aliases.of(self) : self;
  const at::Tensor target = to_device ? aliases.of(to) : to;
  if (forgets_conjugate) {
    from.unsafeGetTensorImpl()->_set_conj(false);
  }
  current_queue(device).run_here(
      [&] { copy_elements(from, target); }, kCopyName,
      from_device && to_device ? "a copy whose sides overlap or do not fit"
                               : "a copy with host memory that is not both pinned and non_blocking");
  raise_pending(device);
  return to;
}

at::Tensor copy_from_and_resize(const at::Tensor& self, const at::Tensor& to) {
  to.resize_(self.sizes());
  return copy_from(self, to, false);
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("_copy_from", copy_from);
  m.impl("_copy_from_and_resize", copy_from_and_resize);
}

// copy_ passes on the conjugate and negative bits, and so must this: resolving them would call copy_ recursively.
TORCH_LIBRARY_IMPL(aten, Conjugate, m) {
  m.impl("_copy_from", torch::CppFunction::makeFallthrough());
}
TORCH_LIBRARY_IMPL(aten, Negative, m) {
  m.impl("_copy_from", torch::CppFunction::makeFallthrough());
}

}  // namespace
}  // namespace simulated
