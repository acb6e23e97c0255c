#include "alias.h"

#include <c10/core/CPUAllocator.h>
#include <c10/core/TensorImpl.h>

#include <cstring>

#include "activity.h"
#include "allocator.h"
#include "arena.h"
#include "geometry.h"
#include "runtime.h"

namespace simulated {

bool on_device(const at::Tensor& tensor) {
  return tensor.defined() && tensor.device().type() == at::kPrivateUse1;
}

const Aliases::SharedStorage& Aliases::storage_of(const at::Tensor& tensor) {
  const c10::Storage& storage = tensor.storage();
  for (const auto& each : storages_) {
    if (each.device.unsafeGetStorageImpl() == storage.unsafeGetStorageImpl()) {
      return each;
    }
  }
  void* address = arena().on_device_side(storage.data());
  c10::Storage alias(
      c10::Storage::use_byte_size_t(), storage.nbytes(), c10::DataPtr(address, c10::Device(c10::DeviceType::CPU)),
      c10::GetCPUAllocator(), /*resizable=*/storage.resizable());
  storages_.push_back(SharedStorage{storage, std::move(alias), address});
  return storages_.back();
}

const at::Tensor& Aliases::of(const at::Tensor& tensor) {
  for (const auto& each : tensors_) {
    if (each.device.unsafeGetTensorImpl() == tensor.unsafeGetTensorImpl()) {
      return each.alias;
    }
  }
  TORCH_CHECK_NOT_IMPLEMENTED(
      tensor.layout() == at::kStrided, "simulated device: tensors of layout ", tensor.layout(), " are not supported");
  at::Tensor alias = at::detail::make_tensor<c10::TensorImpl>(
      c10::Storage(storage_of(tensor).alias), c10::DispatchKeySet(c10::DispatchKey::CPU), tensor.dtype());
  auto* impl = alias.unsafeGetTensorImpl();
  impl->set_sizes_and_strides(tensor.sizes(), tensor.strides(), tensor.storage_offset());
  impl->_set_conj(tensor.is_conj());
  impl->_set_neg(tensor.is_neg());
  if (tensor.unsafeGetTensorImpl()->is_wrapped_number()) {
    impl->set_wrapped_number(true);
  }
  tensors_.push_back(SharedTensor{tensor, std::move(alias)});
  return tensors_.back().alias;
}

const Aliases::SharedStorage* Aliases::shared(const c10::StorageImpl* alias) const {
  for (const auto& each : storages_) {
    if (each.alias.unsafeGetStorageImpl() == alias) {
      return &each;
    }
  }
  return nullptr;
}

void Aliases::write_back_storage(SharedStorage& shared) {
  if (shared.alias.data() == shared.address && shared.alias.nbytes() == shared.device.nbytes()) {
    return;
  }
  c10::Storage made = storage_with(device_, shared.alias.data(), shared.alias.nbytes());
  auto* storage = shared.device.unsafeGetStorageImpl();
  storage->set_data_ptr_noswap(std::move(made.unsafeGetStorageImpl()->_mutable_data_ptr_no_checks()));
  storage->set_nbytes(shared.alias.nbytes());
}

void Aliases::write_back() {
  for (auto& each : storages_) {
    write_back_storage(each);
  }
  for (auto& each : tensors_) {
    auto* alias = each.alias.unsafeGetTensorImpl();
    auto* tensor = each.device.unsafeGetTensorImpl();
    const SharedStorage* storage = shared(alias->storage().unsafeGetStorageImpl());
    if (storage == nullptr) {  // the kernel gave it new memory
      tensor->set_storage_keep_dtype(storage_with(device_, alias->storage().data(), alias->storage().nbytes()));
    } else if (storage->device.unsafeGetStorageImpl() != tensor->storage().unsafeGetStorageImpl()) {
      tensor->set_storage_keep_dtype(storage->device);
    }
    if (alias->sizes() != tensor->sizes() || alias->strides() != tensor->strides() ||
        alias->storage_offset() != tensor->storage_offset()) {
      tensor->set_sizes_and_strides(alias->sizes(), alias->strides(), alias->storage_offset());
    }
    // Kernels may leave out= conjugated by its bit alone: linalg.lu_solve from the right does.
    tensor->_set_conj(each.alias.is_conj());
    tensor->_set_neg(each.alias.is_neg());
  }
}

void Aliases::reshape(const at::Tensor& alias, c10::IntArrayRef sizes, c10::IntArrayRef strides, size_t bytes) {
  for (const auto& each : tensors_) {
    if (each.alias.unsafeGetTensorImpl() != alias.unsafeGetTensorImpl()) {
      continue;
    }
    const c10::StorageImpl* shared_one = alias.storage().unsafeGetStorageImpl();
    for (auto& storage : storages_) {
      if (storage.alias.unsafeGetStorageImpl() == shared_one && storage.device.nbytes() < bytes) {
        resize_storage(storage.device.unsafeGetStorageImpl(), bytes);
        void* address = arena().on_device_side(storage.device.data());
        auto* impl = storage.alias.unsafeGetStorageImpl();
        impl->set_data_ptr_noswap(c10::DataPtr(address, c10::Device(c10::DeviceType::CPU)));
        impl->set_nbytes(bytes);
        storage.address = address;
      }
    }
    for (const at::Tensor& one : {each.device, each.alias}) {
      one.unsafeGetTensorImpl()->set_sizes_and_strides(sizes, strides, one.storage_offset());
    }
  }
}

at::Tensor tensor_over(
    const c10::Storage& storage, c10::IntArrayRef sizes, c10::IntArrayRef strides, int64_t offset,
    caffe2::TypeMeta dtype, std::pair<bool, bool> bits) {
  at::Tensor made = at::detail::make_tensor<c10::TensorImpl>(
      c10::Storage(storage), c10::DispatchKeySet(c10::DispatchKey::PrivateUse1), dtype);
  auto* impl = made.unsafeGetTensorImpl();
  impl->set_sizes_and_strides(sizes, strides, offset);
  impl->_set_conj(bits.first);
  impl->_set_neg(bits.second);
  return made;
}

namespace {
at::Tensor on_storage(const c10::Storage& storage, const at::Tensor& like, int64_t offset) {
  return tensor_over(storage, like.sizes(), like.strides(), offset, like.dtype(), {like.is_conj(), like.is_neg()});
}
}  // namespace

at::Tensor Aliases::result(const at::Tensor& made) {
  if (!made.defined() || on_device(made)) {
    return made;
  }
  for (const auto& each : tensors_) {
    if (each.alias.unsafeGetTensorImpl() == made.unsafeGetTensorImpl()) {
      return each.device;
    }
  }
  TORCH_CHECK_NOT_IMPLEMENTED(
      made.layout() == at::kStrided, "simulated device: results of layout ", made.layout(), " are not supported");
  const c10::Storage& storage = made.storage();
  if (const SharedStorage* one = shared(storage.unsafeGetStorageImpl())) {
    return on_storage(one->device, made, made.storage_offset());
  }
  const auto [first, bytes] = elements_of(made);
  return on_storage(storage_with(device_, first, bytes), made, 0);
}

c10::Storage new_storage(int device, size_t bytes) {
  const int before = current_device();
  set_current_device(device);
  c10::DataPtr data = allocator()->allocate(bytes);
  set_current_device(before);
  return c10::Storage(c10::Storage::use_byte_size_t(), bytes, std::move(data), allocator(), /*resizable=*/true);
}

c10::Storage storage_with(int device, const void* from, size_t bytes) {
  c10::Storage made = new_storage(device, bytes);
  if (bytes != 0) {
    // In the queue's turn: another thread's work may still use the memory that was handed out.
    current_queue(device).run_here([&] { std::memcpy(arena().on_device_side(made.data()), from, bytes); }, kCopyName);
  }
  return made;
}

}  // namespace simulated
