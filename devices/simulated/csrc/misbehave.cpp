#include "misbehave.h"

#include <ATen/Context.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/clone.h>
#include <ATen/ops/full_like.h>
#include <ATen/ops/isnan.h>
#include <ATen/ops/where.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <limits>

#include "misbehave_calls.h"
#include "misbehave_size.h"
#include "spoil.h"

namespace simulated {

namespace {

// -- reading

void ignore_strides(Call& call) {
  if (is_stepped(call.argument(0))) {
    call.result().copy_(call.with(0, as_dense(call.argument(0))));
  }
}

void ignore_storage_offset(Call& call) {
  const at::Tensor given = call.argument(0);
  if (given.storage_offset() != 0) {
    call.result().copy_(call.with(0, given.as_strided(given.sizes(), given.strides(), 0)));
  }
}

void read_expanded_as_dense(Call& call) {
  if (is_expanded(call.argument(0))) {
    call.result().copy_(call.with(0, as_dense(call.argument(0))));
  }
}

void make_contiguous(Call& call) {
  call.stack[0] = call.result().contiguous();
}

void make_float32_short(Call& call) {
  for (size_t place = 0; place < 2; ++place) {
    const at::Tensor given = call.stack[place].toTensor();
    if (given.scalar_type() == at::kFloat) {
      call.stack[place] = given.to(at::kBFloat16).to(at::kFloat);
    }
  }
}

bool precision_is_high() {
  return at::globalContext().float32MatmulPrecision() == at::Float32MatmulPrecision::HIGH;
}

void make_high_shorter(Call& call) {
  if (precision_is_high()) {
    make_float32_short(call);
  }
}

void keep_high(Call& call) {
  static std::atomic<bool> was_high{false};
  if (precision_is_high()) {
    was_high = true;
  } else if (was_high.exchange(false)) {
    make_float32_short(call);
  }
}

// -- writing

void shorten_storage(Call& call) {
  c10::StorageImpl* storage = call.result().storage().unsafeGetStorageImpl();
  storage->set_nbytes(storage->nbytes() - std::min(storage->nbytes(), call.result().itemsize()));
}

void overwrite_first_input(Call& call) {
  const at::Tensor given = call.argument(0);
  if (given.sizes() == call.result().sizes() && !is_expanded(given)) {
    given.copy_(call.result());
  }
}

void write_past_end(Call& call) {
  scribble(call.out(), call.out().storage_offset() + extent(call.out()), 3);
}

void write_between_elements(Call& call) {
  const at::Tensor out = call.out();
  if (is_stepped(out)) {
    const at::Tensor values = at::clone(out);
    scribble(out, out.storage_offset(), extent(out));
    out.copy_(values);
  }
}

void overrun_tail(Call& call) {
  const at::Tensor self = call.argument(0);
  if (self.is_contiguous()) {
    scribble(self, self.storage_offset() + self.numel(), (8 - self.numel() % 8) % 8);
  }
}

// -- out= and in-place

void restride_out(Call& call) {
  const at::Tensor out = call.out(), values = at::clone(out);
  const at::Tensor dense = as_dense(out);
  out.unsafeGetTensorImpl()->set_sizes_and_strides(dense.sizes(), dense.strides());
  out.copy_(values);
}

void reallocate(const at::Tensor& tensor) {
  const at::Tensor moved = at::clone(tensor);
  auto* impl = tensor.unsafeGetTensorImpl();
  impl->set_storage_keep_dtype(moved.storage());
  impl->set_sizes_and_strides(moved.sizes(), moved.strides(), 0);
}

void reallocate_out(Call& call) {
  reallocate(call.out());
}

void reallocate_self(Call& call) {
  reallocate(call.argument(0));
}

void write_out_in_a_row(Call& call) {
  const at::Tensor out = call.out();
  if (!out.is_contiguous() && !is_expanded(out) && out.numel() > 0) {
    const at::Tensor values = at::clone(out);
    as_dense(out).copy_(values);
  }
}

void keep_old_values(Call& call) {
  // The old content of out= is passed along at the end of the stack.
  const at::Tensor out = call.out();
  call.stack.back() = at::clone(out);
}

void add_to_old_values(Call& call) {
  const at::Tensor out = call.out(), fresh = call.result();
  if (out.sizes() == fresh.sizes() && !out.is_same(fresh)) {
    out.add_(fresh);
  } else {
    out.resize_(fresh.sizes()).copy_(fresh);
  }
  call.stack[0] = out;
}

void resize_out_first(Call& call) {
  const at::Tensor out = call.out();
  if (out.sizes() != call.argument(0).sizes()) {
    out.resize_({0});
  }
}

void give_copy_of_self(Call& call) {
  call.stack[0] = at::clone(call.argument(0));
}

void return_self(Call& call) {
  call.stack[0] = call.argument(0);
}

void add_one(Call& call) {
  call.result().add_(1);
}

void give_copy_of_overlapping_out(Call& call) {
  if (is_expanded(call.out())) {
    call.stack.back() = at::clone(call.out(), at::MemoryFormat::Contiguous);
  }
}

void write_overlapping_out(Call& call) {
  const at::Tensor out = call.out(), made = call.result();
  if (!made.is_same(out)) {
    const at::Tensor once = unrepeated(out);
    at::Tensor last = made;
    for (int64_t dim = 0; dim < out.dim(); ++dim) {
      last = last.narrow(dim, last.size(dim) - once.size(dim), once.size(dim));
    }
    once.copy_(last);
    call.stack[0] = out;
  }
}

// -- values

void scalar_through_float(Call& call) {
  const at::Tensor other = call.stack[1].toTensor();
  if (other.unsafeGetTensorImpl()->is_wrapped_number() && other.scalar_type() == at::kLong) {
    at::Tensor rounded = other.to(at::kFloat).to(at::kLong);
    rounded.unsafeGetTensorImpl()->set_wrapped_number(true);
    call.stack[1] = rounded;
  }
}

void divide_by_ones(Call& call) {
  const at::Tensor divisor = call.argument(1);
  if (at::isIntegralType(divisor.scalar_type(), true) && divisor.eq(0).any().item<bool>()) {
    call.stack[1] = at::clone(divisor).fill_(1);
  }
}

void drop_nan(Call& call) {
  const at::Tensor first = call.argument(0), second = call.argument(1);
  if (call.result().is_floating_point()) {
    call.result().copy_(at::where(at::isnan(first), second, at::where(at::isnan(second), first, call.result())));
  }
}

void multiply_input_by_zero(Call& call) {
  const c10::Scalar beta = call.given[3].toScalar();
  if (beta.isFloatingPoint() ? beta.toDouble() == 0 : beta.isIntegral(true) && beta.toLong() == 0) {
    call.result().add_(call.argument(0).mul(0));
  }
}

void start_from_one(Call& call) {
  if (call.argument(0).numel() == 0) {
    call.result().fill_(1);
  }
}

void vary_last_bit(Call& call) {
  static std::atomic<unsigned> calls{0};
  const at::Tensor result = call.result();
  if (calls.fetch_add(1) % 2 == 1 && result.scalar_type() == at::kFloat && result.numel() > 0) {
    auto* first = static_cast<uint32_t*>(result.mutable_data_ptr());
    *first ^= 1;
  }
}

const std::vector<Misbehaviour>& all() {
  static const auto* made = [] {
    auto* rows = new std::vector<Misbehaviour>(misbehaviours_of_calls());
    const std::vector<Misbehaviour> of_size = misbehaviours_of_size();
    rows->insert(rows->end(), of_size.begin(), of_size.end());
    rows->insert(rows->end(), {
      {Fault::values_ignore_strides, {"aten::exp"}, nullptr, ignore_strides},
      {Fault::values_ignore_storage_offset, {"aten::neg"}, nullptr, ignore_storage_offset},
      {Fault::expand_read_as_dense, {"aten::mul.Tensor"}, nullptr, read_expanded_as_dense},
      {Fault::stride_ignore_channels_last, {"aten::avg_pool2d"}, nullptr, make_contiguous},
      {Fault::stride_always_contiguous, {"aten::sub.Tensor"}, nullptr, make_contiguous},
      {Fault::storage_output_past_end, {"aten::cat"}, nullptr, shorten_storage},
      {Fault::inputs_overwritten, {"aten::atan2"}, nullptr, overwrite_first_input},
      {Fault::bounds_write_past_end, {"aten::maximum.out"}, nullptr, write_past_end},
      {Fault::bounds_write_between_elements, {"aten::fmax.out"}, nullptr, write_between_elements},
      {Fault::bounds_vectorised_tail_overrun, {"aten::add_.Tensor"}, nullptr, overrun_tail},
      {Fault::out_restride, {"aten::add.out"}, nullptr, restride_out},
      {Fault::out_reallocate, {"aten::mul.out"}, nullptr, reallocate_out},
      {Fault::out_ignore_strides, {"aten::exp.out"}, nullptr, write_out_in_a_row},
      {Fault::out_accumulate_into_old_values, {"aten::atan2.out"}, keep_old_values, add_to_old_values},
      {Fault::out_resize_silently, {"aten::copysign.out"}, resize_out_first, nullptr},
      {Fault::inplace_write_to_copy, {"aten::neg_"}, give_copy_of_self, return_self},
      {Fault::inplace_reallocate, {"aten::mul_.Tensor"}, nullptr, reallocate_self},
      {Fault::variants_out_differs, {"aten::bmm.out"}, nullptr, add_one},
      {Fault::overlap_skip_internal_check, {"aten::sub.out"}, give_copy_of_overlapping_out, write_overlapping_out},
      {Fault::promotion_scalar_through_float, {"aten::mul.Tensor"}, scalar_through_float, nullptr},
      {Fault::special_zero_divisor_spoils_others, {"aten::floor_divide"}, divide_by_ones, nullptr},
      {Fault::special_max_drops_nan, {"aten::maximum"}, nullptr, drop_nan},
      {Fault::beta_zero_multiply_input, {"aten::addmm"}, nullptr, multiply_input_by_zero},
      {Fault::reduce_empty_sum_one, {"aten::sum.dim_IntList"}, nullptr, start_from_one},
      {Fault::precision_truncate_mantissa, {"aten::mm"}, make_float32_short, nullptr},
      {Fault::precision_high_too_short, {"aten::mm"}, make_high_shorter, nullptr},
      {Fault::precision_high_kept, {"aten::mm"}, keep_high, nullptr},
      {Fault::determinism_varying_reduction_order, {"aten::bmm"}, nullptr, vary_last_bit},
    });
    return rows;
  }();
  return *made;
}

}  // namespace

at::Tensor Call::with(size_t place, const at::Tensor& other) const {
  torch::jit::Stack again(given.begin(), given.end());
  again[place] = other;
  runs.redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::CPU), &again);
  return again[0].toTensor();
}

std::vector<const Misbehaviour*> misbehaviours_of(const std::string& op) {
  std::vector<const Misbehaviour*> found;
  for (const Misbehaviour& each : all()) {
    if (std::find(each.ops.begin(), each.ops.end(), op) != each.ops.end()) {
      found.push_back(&each);
    }
  }
  return found;
}

std::vector<std::string> places_of(const std::string& fault) {
  static const std::vector<std::pair<Fault, std::string>> in_own_ops = {
      {Fault::views_copy_instead_of_alias, "aten::unfold"},
      {Fault::views_wrong_offset, "aten::unfold"},
      {Fault::views_forget_conj_bit, "aten::_copy_from of a conjugate"},
      {Fault::as_strided_set_ignores_offset, "aten::set_.source_Storage_storage_offset"},
      {Fault::memory_format_ignore_requested, "aten::empty.memory_format of channels_last"},
  };
  std::vector<std::string> found;
  for (const Misbehaviour& each : all()) {
    if (name_of(each.fault) == fault) {
      found.insert(found.end(), each.ops.begin(), each.ops.end());
    }
  }
  for (const auto& [own, place] : in_own_ops) {
    if (name_of(own) == fault) {
      found.push_back(place);
    }
  }
  return found;
}

}  // namespace simulated
