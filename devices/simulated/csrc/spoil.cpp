#include "spoil.h"

#include <algorithm>
#include <cstring>

namespace simulated {

bool is_expanded(const at::Tensor& tensor) {
  for (int64_t dim = 0; dim < tensor.dim(); ++dim) {
    if (tensor.size(dim) > 1 && tensor.stride(dim) == 0) {
      return true;
    }
  }
  return false;
}

// The number of storage elements from the tensor's first to after its last.
int64_t extent(const at::Tensor& tensor) {
  int64_t last = 0;
  for (int64_t dim = 0; dim < tensor.dim(); ++dim) {
    last += (tensor.size(dim) - 1) * tensor.stride(dim);
  }
  return tensor.numel() == 0 ? 0 : last + 1;
}

bool is_stepped(const at::Tensor& tensor) {
  return !is_expanded(tensor) && extent(tensor) > tensor.numel();
}

// The storage from `offset` on, read row by row; the tensor itself if that would leave the storage.
at::Tensor as_dense(const at::Tensor& tensor, int64_t offset) {
  const int64_t room = static_cast<int64_t>(tensor.storage().nbytes() / tensor.itemsize());
  if (offset + tensor.numel() > room) {
    return tensor;
  }
  std::vector<int64_t> strides(tensor.dim());
  int64_t step = 1;
  for (int64_t dim = tensor.dim() - 1; dim >= 0; --dim) {
    strides[dim] = step;
    step *= std::max<int64_t>(tensor.size(dim), 1);
  }
  return tensor.as_strided(tensor.sizes(), strides, offset);
}

at::Tensor as_dense(const at::Tensor& tensor) {
  return as_dense(tensor, tensor.storage_offset());
}

// Every element of an expanded tensor once.
at::Tensor unrepeated(at::Tensor tensor) {
  for (int64_t dim = 0; dim < tensor.dim(); ++dim) {
    if (tensor.size(dim) > 1 && tensor.stride(dim) == 0) {
      tensor = tensor.narrow(dim, 0, 1);
    }
  }
  return tensor;
}

// Overwrites storage elements [start, start + count), as far as the storage reaches.
void scribble(const at::Tensor& tensor, int64_t start, int64_t count) {
  const auto size = static_cast<int64_t>(tensor.itemsize());
  const auto room = static_cast<int64_t>(tensor.storage().nbytes());
  const int64_t from = std::clamp<int64_t>(start * size, 0, room);
  const int64_t to = std::clamp<int64_t>((start + count) * size, from, room);
  if (to > from) {
    std::memset(static_cast<char*>(tensor.storage().mutable_data()) + from, 0xA5, to - from);
  }
}

}  // namespace simulated
