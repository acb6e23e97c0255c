// Copies: between the host and a device, within a device and between two.

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <torch/library.h>

#include <cstring>

#include "alias.h"
#include "faults.h"
#include "runtime.h"
#include "seen.h"
#include "worker.h"

namespace simulated {

namespace {

// Whether the elements of both lie in memory in the same order without gaps, and need no change on the way.
bool same_bytes(const at::Tensor& from, const at::Tensor& to) {
  return from.dtype() == to.dtype() && from.sizes() == to.sizes() && from.strides() == to.strides() &&
      from.is_conj() == to.is_conj() && from.is_neg() == to.is_neg() && from.is_non_overlapping_and_dense();
}

void copy_elements(const at::Tensor& from, const at::Tensor& to) {
  if (same_bytes(from, to)) {
    std::memmove(to.mutable_data_ptr(), from.const_data_ptr(), from.nbytes());
    return;
  }
  KernelScope scope;
  to.copy_(from);
}

at::Tensor copy_from(const at::Tensor& self, const at::Tensor& to, bool) {
  const bool from_device = on_device(self), to_device = on_device(to);
  TORCH_CHECK(
      (from_device || self.is_cpu()) && (to_device || to.is_cpu()), "simulated device: cannot copy from ",
      self.device(), " to ", to.device());
  if (from_device && to_device && self.device() != to.device()) {
    // Ordered after both devices' streams.
    current_queue(self.device().index()).drain();
    raise_pending(self.device().index());
  }
  const int device = to_device ? to.device().index() : self.device().index();
  Aliases aliases(device);
  const at::Tensor from = from_device ? aliases.of(self) : self;
  const at::Tensor target = to_device ? aliases.of(to) : to;
  if (self.is_conj()) {
    static Seen seen("aten::_copy_from of a conjugate");
    seen.note();
    if (on(Fault::views_forget_conj_bit) && from_device) {
      from.unsafeGetTensorImpl()->_set_conj(false);
    }
  }
  current_queue(device).run_here([&] { copy_elements(from, target); });
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

// copy_ passes both bits on, and so must this: resolving them would call copy_ again, without end.
TORCH_LIBRARY_IMPL(aten, Conjugate, m) {
  m.impl("_copy_from", torch::CppFunction::makeFallthrough());
}
TORCH_LIBRARY_IMPL(aten, Negative, m) {
  m.impl("_copy_from", torch::CppFunction::makeFallthrough());
}

}  // namespace
}  // namespace simulated
