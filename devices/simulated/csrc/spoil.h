// Misreading tensors on purpose: what planted faults of kernels and copies have in common.

#pragma once

#include <ATen/core/Tensor.h>

namespace simulated {

bool is_expanded(const at::Tensor& tensor);
// The number of storage elements from the tensor's first to after its last.
int64_t extent(const at::Tensor& tensor);
bool is_stepped(const at::Tensor& tensor);
// The storage from `offset` on, read row by row; the tensor itself if that would leave the storage.
at::Tensor as_dense(const at::Tensor& tensor, int64_t offset);
at::Tensor as_dense(const at::Tensor& tensor);
// Every element of an expanded tensor once.
at::Tensor unrepeated(at::Tensor tensor);
// Overwrites storage elements [start, start + count), as far as the storage reaches.
void scribble(const at::Tensor& tensor, int64_t start, int64_t count);

}  // namespace simulated
