// Ops that are written for this device: making tensors, giving them other memory, views, reading a scalar.

#include <ATen/EmptyTensor.h>
#include <ATen/core/Tensor.h>
#include <ATen/native/Resize.h>
#include <ATen/native/TensorFactories.h>
#include <ATen/ops/_local_scalar_dense.h>
#include <ATen/ops/_reshape_alias_native.h>
#include <ATen/ops/as_strided_native.h>
#include <ATen/ops/clone.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/native_dropout_native.h>
#include <ATen/ops/new_empty_strided_native.h>
#include <ATen/ops/set_native.h>
#include <ATen/ops/unfold_native.h>
#include <ATen/ops/view_as_complex_native.h>
#include <ATen/ops/view_as_real_native.h>
#include <ATen/ops/view_native.h>
#include <torch/library.h>

#include "activity.h"
#include "alias.h"
#include "allocator.h"
#include "arena.h"
#include "faults.h"
#include "runtime.h"
#include "seen.h"
#include "worker.h"

namespace simulated {

namespace {

constexpr c10::DispatchKeySet kKeys(c10::DispatchKey::PrivateUse1);

// While it lives, allocations of this thread go to the device that a factory was asked for.
class OnDevice {
 public:
  explicit OnDevice(std::optional<c10::Device> device) : before_(current_device()) {
    if (device.has_value() && !on(Fault::device_factory_ignores_index)) {
      set_current_device(checked_device(device->index()));
    }
  }
  ~OnDevice() { set_current_device(before_); }

 private:
  int before_;
};

void check_options(
    std::optional<c10::Layout> layout, std::optional<bool> pinned, std::optional<c10::ScalarType> dtype) {
  TORCH_CHECK(
      !(on(Fault::device_declared_dtype_refused) && dtype == c10::kShort), "simulated device: int16 is not supported");
  TORCH_CHECK_NOT_IMPLEMENTED(
      layout.value_or(c10::kStrided) == c10::kStrided, "simulated device: only strided tensors can be made, got layout ",
      layout.value_or(c10::kStrided));
  TORCH_CHECK(!pinned.value_or(false), "Only dense CPU tensors can be pinned");
}

at::Tensor empty(
    c10::IntArrayRef size, std::optional<c10::ScalarType> dtype, std::optional<c10::Layout> layout,
    std::optional<c10::Device> device, std::optional<bool> pinned, std::optional<c10::MemoryFormat> format) {
  check_options(layout, pinned, dtype);
  OnDevice scope(device);
  if (format == c10::MemoryFormat::ChannelsLast || format == c10::MemoryFormat::ChannelsLast3d) {
    static Seen seen("aten::empty.memory_format of channels_last");
    seen.note();
    if (on(Fault::memory_format_ignore_requested)) {
      format = c10::MemoryFormat::Contiguous;
    }
  }
  at::Tensor made = at::detail::empty_generic(size, allocator(), kKeys, c10::dtype_or_default(dtype), format);
  if (on(Fault::device_storage_names_first_index) && at::isIntegralType(made.scalar_type(), false)) {
    auto* storage = made.storage().unsafeGetStorageImpl();
    c10::DataPtr data = storage->set_data_ptr(c10::DataPtr());
    void* start = data.get();
    const c10::DeleterFnPtr deleter = data.get_deleter();
    storage->set_data_ptr_noswap({start, data.release_context(), deleter, c10::Device(made.device().type(), 0)});
  }
  return made;
}

at::Tensor empty_strided(
    c10::IntArrayRef size, c10::IntArrayRef stride, std::optional<c10::ScalarType> dtype,
    std::optional<c10::Layout> layout, std::optional<c10::Device> device, std::optional<bool> pinned) {
  check_options(layout, pinned, dtype);
  OnDevice scope(device);
  if (on(Fault::transfer_drop_strides)) {
    return at::detail::empty_generic(size, allocator(), kKeys, c10::dtype_or_default(dtype), std::nullopt);
  }
  return at::detail::empty_strided_generic(size, stride, allocator(), kKeys, c10::dtype_or_default(dtype));
}

// Zeros without memory, which derivatives consist of. They have no address: a reader asks for real zeros first
// (ATen/ZeroTensorFallback.cpp).
at::Tensor efficient_zeros(
    c10::IntArrayRef size, std::optional<c10::ScalarType> dtype, std::optional<c10::Layout> layout,
    std::optional<c10::Device> device, std::optional<bool> pinned) {
  check_options(layout, pinned, dtype);
  OnDevice scope(device);
  at::native::ZeroTensorAllocator nowhere({c10::kPrivateUse1, static_cast<c10::DeviceIndex>(current_device())});
  const auto keys = kKeys.add(c10::DispatchKey::ZeroTensor);
  return at::detail::empty_generic(size, &nowhere, keys, c10::dtype_or_default(dtype), std::nullopt);
}

// What a gradient that was not laid out as its leaf is copied into (torch/csrc/autograd/utils/grad_layout_contract.h).
at::Tensor new_empty_strided(
    const at::Tensor& self, c10::SymIntArrayRef size, c10::SymIntArrayRef stride, std::optional<c10::ScalarType> dtype,
    std::optional<c10::Layout> layout, std::optional<c10::Device> device, std::optional<bool> pinned) {
  if (on(Fault::grad_wrong_layout)) {
    return at::empty_symint(size, self.options());
  }
  return at::native::new_empty_strided_symint(self, size, stride, dtype, layout, device, pinned);
}

// -- other memory for a tensor

at::Tensor& set_storage(
    at::Tensor& self, c10::Storage source, int64_t offset, c10::IntArrayRef size, c10::IntArrayRef stride) {
  static Seen seen("aten::set_.source_Storage_storage_offset");
  seen.note();
  // torch.load makes a tensor without elements and then sets it to its storage.
  if (on(Fault::as_strided_set_ignores_offset) || (on(Fault::transfer_load_drops_offset) && self.numel() == 0)) {
    offset = 0;
  }
  if (on(Fault::transfer_load_unshares_storage) && self.numel() == 0 && source.nbytes() != 0) {
    const int device = source.device().index();
    source = storage_with(device, arena().on_device_side(source.data()), source.nbytes());
  }
  at::native::checkSetStorage(self, std::move(source), offset, size, stride);
  auto* impl = self.unsafeGetTensorImpl();
  if (stride.data() != nullptr) {
    impl->set_sizes_and_strides(size, stride, offset);
  } else {
    impl->set_sizes_contiguous(size);
    impl->set_storage_offset(offset);
  }
  const size_t needed = self.numel() == 0
      ? 0
      : at::detail::computeStorageNbytes(self.sizes(), self.strides(), self.dtype().itemsize(), offset);
  if (needed > self.storage().nbytes()) {
    resize_storage(self.storage().unsafeGetStorageImpl(), needed);
  }
  return self;
}

at::Tensor& set_whole_storage(at::Tensor& self, c10::Storage source) {
  const auto elements = static_cast<int64_t>(source.nbytes() / self.dtype().itemsize());
  return set_storage(self, std::move(source), 0, elements, {});
}

at::Tensor& set_nothing(at::Tensor& self) {
  OnDevice scope(self.device());
  c10::Storage none(c10::Storage::use_byte_size_t(), 0, allocator()->allocate(0), allocator(), /*resizable=*/true);
  return set_storage(self, std::move(none), 0, {0}, {});
}

// -- views

at::Tensor unfold(const at::Tensor& self, int64_t dimension, int64_t size, int64_t step) {
  static Seen seen("aten::unfold");
  seen.note();
  at::Tensor view = at::native::unfold(self, dimension, size, step);
  if (on(Fault::views_copy_instead_of_alias)) {
    return at::clone(view);
  }
  if (on(Fault::views_wrong_offset) && view.storage_offset() > 0) {
    view.unsafeGetTensorImpl()->set_storage_offset(view.storage_offset() - 1);
  }
  return view;
}

// -- to the host

c10::Scalar local_scalar(const at::Tensor& self) {
  const int device = self.device().index();
  Aliases aliases(device);
  const at::Tensor alias = aliases.of(self);
  c10::Scalar value;
  auto read = [&] {
    KernelScope scope;
    value = at::_local_scalar_dense(alias);
  };
  if (on(Fault::transfer_item_before_work)) {
    read();
  } else {
    current_queue(device).run_here(read, kCopyName, "reading a value on the host");
  }
  raise_pending(device);
  if (on(Fault::transfer_item_wrong_type) && value.isIntegral(/*includeBool=*/false)) {
    value = value.toDouble();
  }
  return value;
}

at::Tensor as_strided(const at::Tensor& self, at::IntArrayRef size, at::IntArrayRef stride, std::optional<int64_t> offset) {
  if (on(Fault::autograd_slice_misplaced) && in_backward()) {
    offset = self.storage_offset();
  }
  return at::native::as_strided_tensorimpl(self, size, stride, offset);
}

void record_stream(at::Tensor& self, c10::Stream stream) {
  allocator()->recordStream(self.storage().data_ptr(), stream);
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("empty.memory_format", empty);
  m.impl("empty_strided", empty_strided);
  m.impl("_efficientzerotensor", efficient_zeros);
  m.impl("new_empty_strided", new_empty_strided);
  m.impl("set_.source_Storage", set_whole_storage);
  m.impl("set_.source_Storage_storage_offset", set_storage);
  m.impl("set_.source_Tensor", at::native::set_tensor_);
  m.impl("set_", set_nothing);
  m.impl("_local_scalar_dense", local_scalar);
  m.impl("record_stream", record_stream);
  m.impl("as_strided", as_strided);
  m.impl("view", at::native::view);
  m.impl("_reshape_alias", at::native::_reshape_alias);
  m.impl("unfold", unfold);
  // A composite of the CPU's: run on the CPU's side it would draw from the host's generator.
  m.impl("native_dropout", at::native::native_dropout_cpu);
  m.impl("view_as_real", at::native::view_as_real);
  m.impl("view_as_complex", at::native::view_as_complex);
}

}  // namespace
}  // namespace simulated
