// Aliases: CPU tensors over a device's memory, for the length of one call.
//
// One alias storage stands for one device storage, so that what shares memory on the device shares it here too:
// ATen's own overlap checks fire, views come back as views, and an out= that a kernel resizes is resized on the device.

#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/SmallVector.h>

namespace simulated {

bool on_device(const at::Tensor& tensor);

class Aliases {
 public:
  explicit Aliases(int device) : device_(device) {}
  Aliases(const Aliases&) = delete;
  Aliases& operator=(const Aliases&) = delete;

  // The alias of a tensor of this device: the same one for the same tensor.
  const at::Tensor& of(const at::Tensor& tensor);
  // After the call: gives device tensors the sizes and the storage that the kernel gave their aliases.
  void write_back();
  // Before the call: gives an alias, and its tensor, the geometry that the kernel would give them.
  void reshape(const at::Tensor& alias, c10::IntArrayRef sizes, c10::IntArrayRef strides, size_t bytes);
  // After the call: the device tensor for what a kernel returned. That is the tensor itself where the kernel
  // returned its argument, a view where it returned a view of one, else a new tensor with the same strides.
  at::Tensor result(const at::Tensor& made);

 private:
  struct SharedStorage {
    c10::Storage device, alias;
    const void* address;  // of the alias, before the call
  };
  struct SharedTensor {
    at::Tensor device, alias;
  };
  const SharedStorage& storage_of(const at::Tensor& tensor);
  const SharedStorage* shared(const c10::StorageImpl* alias) const;
  void write_back_storage(SharedStorage& shared);

  int device_;
  c10::SmallVector<SharedStorage, 4> storages_;
  c10::SmallVector<SharedTensor, 4> tensors_;
};

// A new tensor over a storage of a device. `bits`: its conjugate and negative bits.
at::Tensor tensor_over(
    const c10::Storage& storage, c10::IntArrayRef sizes, c10::IntArrayRef strides, int64_t offset,
    caffe2::TypeMeta dtype, std::pair<bool, bool> bits);
// A new storage on a device, with undefined contents.
c10::Storage new_storage(int device, size_t bytes);
// A new storage on a device, holding `bytes` from an address of the host or of the device's own side.
c10::Storage storage_with(int device, const void* from, size_t bytes);

}  // namespace simulated
