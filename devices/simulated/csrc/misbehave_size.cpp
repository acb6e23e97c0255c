#include "misbehave_size.h"

#include <ATen/core/Tensor.h>

#include <algorithm>

namespace simulated {

namespace {

constexpr int64_t kGrid = 65535;
constexpr int64_t kHalfWord = int64_t{1} << 16;
constexpr int64_t kFloat32 = int64_t{1} << 24;  // float32 holds all whole numbers up to this one
constexpr int64_t kWrap = int64_t{1} << 31;
constexpr int64_t kWord = int64_t{1} << 32;

// The slices from `from` on; an empty tensor if there are none.
at::Tensor behind(const at::Tensor& tensor, int64_t dim, int64_t from) {
  const int64_t size = tensor.size(dim);
  return tensor.narrow(dim, std::min(from, size), std::max<int64_t>(size - from, 0));
}

// -- counts and grids

void wrap_offsets(Call& call) {
  const at::Tensor given = call.argument(0), result = call.result();
  if (given.storage_offset() >= kWrap) {
    result.copy_(call.with(0, given.as_strided(given.sizes(), given.strides(), given.storage_offset() - kWrap)));
  } else if (result.numel() > kWrap && result.is_contiguous()) {
    const at::Tensor flat = result.view(-1);
    const int64_t behind = std::min(flat.numel() - kWrap, kWrap);
    flat.narrow(0, kWrap, behind).copy_(flat.narrow(0, 0, behind));
  }
}

void lose_rows(Call& call) {
  if (call.result().dim() > 0) {
    behind(call.result(), 0, kGrid).zero_();
  }
}

void lose_channels(Call& call) {
  if (call.result().dim() > 1) {
    behind(call.result(), 1, kGrid).zero_();
  }
}

void repeat_matrices(Call& call) {
  const at::Tensor left = behind(call.result(), 0, kHalfWord);
  left.copy_(call.result().narrow(0, 0, left.size(0)));
}

// -- counters in float32

void round_place(Call& call) {
  call.result().copy_(call.result().to(at::kFloat).to(at::kLong));
}

// index_select(self, dim, index)
void round_index(Call& call) {
  const at::Tensor index = call.argument(2);
  call.stack[2] = index.to(at::kFloat).to(index.scalar_type());
}

void stop_counting(Call& call) {
  const at::Tensor given = call.argument(0);
  if (given.scalar_type() == at::kFloat && given.numel() > kFloat32) {
    call.result().clamp_max_(kFloat32);
  }
}

// -- parts of a tensor

void leave_tail(Call& call) {
  constexpr int64_t kBlock = 64;
  const int64_t count = call.result().numel();
  if (count > kFloat32 && call.result().is_contiguous()) {
    behind(call.result().view(-1), 0, count / kBlock * kBlock).zero_();
  }
}

// cumsum(self, dim, dtype)
void lose_carry(Call& call) {
  if (call.result().dim() == 1 && call.result().numel() > kFloat32) {
    behind(call.result(), 0, kFloat32).sub_(call.result().narrow(0, kFloat32 - 1, 1).clone());
  }
}

void leave_random_tail(Call& call) {
  if (call.argument(0).is_contiguous()) {
    behind(call.argument(0).view(-1), 0, kFloat32).zero_();
  }
}

// -- indices and offsets

// index_copy_(self, dim, index, source)
void wrap_written_index(Call& call) {
  call.stack[2] = call.argument(2).remainder(kFloat32);
}

// gather(self, dim, index, sparse_grad)
void wrap_bytes(Call& call) {
  const at::Tensor self = call.argument(0);
  if (self.numel() * static_cast<int64_t>(self.itemsize()) > kWord) {
    call.stack[2] = call.argument(2).remainder(kWord / static_cast<int64_t>(self.itemsize()));
  }
}

void wrap_steps(Call& call) {
  const at::Tensor given = call.argument(0);
  if (given.dim() != 1 || given.numel() == 0) {
    return;
  }
  const int64_t last = (given.size(0) - 1) * given.stride(0);
  if (last > kWrap) {
    const int64_t fits = kWrap / given.stride(0);
    const at::Tensor start = given.narrow(0, 0, given.size(0) - fits);
    call.result().narrow(0, 0, given.size(0) - fits).copy_(call.with(0, start));
  }
}

}  // namespace

std::vector<Misbehaviour> misbehaviours_of_size() {
  return {
      {Fault::large_grid_65535, {"aten::native_layer_norm"}, nullptr, lose_rows},
      {Fault::large_offset_32bit, {"aten::bitwise_not"}, nullptr, wrap_offsets},
      {Fault::large_batches_16bit, {"aten::bmm"}, nullptr, repeat_matrices},
      {Fault::large_channels_65535, {"aten::native_batch_norm"}, nullptr, lose_channels},
      {Fault::large_place_in_float32, {"aten::argmax"}, nullptr, round_place},
      {Fault::large_sum_stops, {"aten::sum", "aten::sum.dim_IntList"}, nullptr, stop_counting},
      {Fault::large_tail_unwritten, {"aten::mul.Tensor"}, nullptr, leave_tail},
      {Fault::large_index_in_float32, {"aten::index_select"}, round_index, nullptr},
      {Fault::large_write_wraps, {"aten::index_copy_"}, wrap_written_index, nullptr},
      {Fault::large_gradient_65535, {"aten::embedding_dense_backward"}, nullptr, lose_rows},
      {Fault::large_carry_lost, {"aten::cumsum"}, nullptr, lose_carry},
      {Fault::large_random_tail, {"aten::random_.from", "aten::random_.to"}, nullptr, leave_random_tail},
      {Fault::large_bytes_32bit, {"aten::gather"}, wrap_bytes, nullptr},
      {Fault::large_step_32bit, {"aten::flip"}, nullptr, wrap_steps},
  };
}

}  // namespace simulated
