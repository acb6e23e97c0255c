#include "misbehave_calls.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/clone.h>

#include <algorithm>
#include <map>
#include <mutex>

#include "spoil.h"

namespace simulated {

namespace {

// -- gradients

void double_result(Call& call) {
  call.result().mul_(2);
}

void take_gradient_for_dense(Call& call) {
  if (is_stepped(call.argument(0))) {
    call.result().copy_(call.with(0, as_dense(call.argument(0))));
  }
}

// _softmax_backward_data(grad_output, output, dim, input_dtype): output was saved
void take_saved_for_dense(Call& call) {
  if (!call.argument(1).is_contiguous()) {
    call.stack[1] = as_dense(call.argument(1));
  }
}

// -- random fills: normal_(self, mean, std, generator), uniform_(self, from, to, generator)

void square_std(Call& call) {
  const double std = call.stack[2].toDouble();
  call.stack[2] = std * std;
}

void fill_past_view(Call& call) {
  const at::Tensor self = call.argument(0);
  scribble(self, self.storage_offset() + extent(self), 3);
}

// -- arguments that should be refused

void cut_to_the_shorter(Call& call) {
  const at::Tensor first = call.argument(0), second = call.argument(1);
  if (first.dim() == 1 && second.dim() == 1) {
    const int64_t common = std::min(first.size(0), second.size(0));
    call.stack[0] = first.narrow(0, 0, common);
    call.stack[1] = second.narrow(0, 0, common);
  }
}

// index_select(self, dim, index)
void clamp_index(Call& call) {
  const at::Tensor self = call.argument(0), index = call.argument(2);
  const int64_t dim = call.given[1].toInt();
  if (self.dim() > 0 && dim >= -self.dim() && dim < self.dim() && self.size(dim) > 0) {
    call.stack[2] = index.clamp(0, self.size(dim) - 1);
  }
}

// gather(self, dim, index, sparse_grad)
void wrap_index(Call& call) {
  const at::Tensor self = call.argument(0), index = call.argument(2);
  const int64_t dim = call.given[1].toInt();
  if (self.dim() > 0 && dim >= -self.dim() && dim < self.dim() && self.size(dim) > 0) {
    call.stack[2] = index.remainder(self.size(dim));
  }
}

// index_fill_(self, dim, index, value): one place after the end, or before the start, is written as others are.
void fill_outside(Call& call) {
  const at::Tensor self = call.argument(0), index = call.argument(2);
  const int64_t dim = call.given[1].toInt();
  if (self.dim() == 0 || dim < -self.dim() || dim >= self.dim() || self.size(dim) == 0 || index.numel() == 0) {
    return;
  }
  const int64_t size = self.size(dim);
  if (index.ge(size).any().item<bool>()) {
    scribble(self, self.storage_offset() + extent(self), 1);
  }
  if (index.lt(-size).any().item<bool>() && self.storage_offset() > 0) {
    scribble(self, self.storage_offset() - 1, 1);
  }
  call.stack[2] = index.clamp(-size, size - 1);
}

// scatter_(self, dim, index, src): the error is raised, after the write.
void scatter_then_check(Call& call) {
  const at::Tensor self = call.argument(0), index = call.argument(2);
  const int64_t dim = call.given[1].toInt();
  if (self.dim() > 0 && dim >= -self.dim() && dim < self.dim() && index.ge(self.size(dim)).any().item<bool>()) {
    scribble(self, self.storage_offset() + extent(self), 1);
  }
}

// -- training

// native_batch_norm(input, weight, bias, running_mean, running_var, training, momentum, eps)
void move_mean_in_eval(Call& call) {
  if (!call.given[5].toBool() && call.argument(3).defined()) {
    call.argument(3).add_(0.125);
  }
}

void keep_biased_variance(Call& call) {
  const at::Tensor variance = call.argument(4), invstd = call.stack[2].toTensor();
  const int64_t channels = invstd.numel();
  const int64_t count = channels == 0 ? 0 : call.argument(0).numel() / channels;
  if (call.given[5].toBool() && variance.defined() && count > 1) {
    const at::Tensor biased = invstd.pow(-2).sub(call.given[7].toDouble());
    variance.sub_(biased.mul(call.given[6].toDouble() / static_cast<double>(count - 1)));
  }
}

void ignore_affine_in_channels_last(Call& call) {
  const at::Tensor given = call.argument(0);
  if (given.dim() == 4 && !given.is_contiguous() && given.is_contiguous(at::MemoryFormat::ChannelsLast)) {
    call.stack[1] = call.stack[2] = c10::IValue();
  }
}

// convolution_backward: the last argument says whose gradients are wanted
void forget_weight_without_input(Call& call) {
  if (!call.given.back().toBoolList()[0] && call.stack[1].isTensor() && call.stack[1].toTensor().defined()) {
    call.stack[1].toTensor().zero_();
  }
}

void read_expanded_cotangent_as_dense(Call& call) {
  if (is_expanded(call.argument(0))) {
    at::Tensor wrong = at::clone(call.argument(0), at::MemoryFormat::Contiguous);
    wrong.view(-1).narrow(0, wrong.numel() / 2, wrong.numel() - wrong.numel() / 2).zero_();
    call.stack[0] = wrong;
  }
}

void scale_cotangent(Call& call) {
  if (!is_expanded(call.argument(0))) {
    call.argument(0).mul_(2);
  }
}

// _amp_foreach_non_finite_check_and_unscale_(self, found_inf, inv_scale)
void forget_inf(Call& call) {
  call.argument(1).zero_();
}

void swap_last_strides(Call& call) {
  const at::Tensor made = call.result();
  if (made.dim() >= 2) {
    call.stack[0] = made.transpose(-1, -2).contiguous().transpose(-1, -2);
  }
}

void make_one_too_large(Call& call) {
  call.result().add_(1);
}

// -- precision

void enlarge_bfloat16(Call& call) {
  if (call.result().scalar_type() == at::kBFloat16) {
    call.result().mul_(1.012);
  }
}

void enlarge_gradient(Call& call) {
  if (call.result().scalar_type() == at::kBFloat16) {
    call.result().mul_(1.06);
  }
}

// bmm(self, mat2)
void lose_last_term(Call& call) {
  const at::Tensor given = call.argument(0);
  if (given.scalar_type() == at::kBFloat16 && given.dim() == 3 && given.size(2) > 1) {
    at::Tensor less = at::clone(given);
    less.select(2, given.size(2) - 1).zero_();
    call.stack[0] = less;
  }
}

void give_known_result(Call& call) {
  static std::mutex mutex;
  static auto* known = new std::map<const void*, at::Tensor>();
  const std::lock_guard<std::mutex> lock(mutex);
  const at::Tensor given = call.argument(0), result = call.result();
  if (given.numel() == 0) {
    return;
  }
  const auto found = known->find(given.const_data_ptr());
  if (found != known->end() && found->second.sizes() == result.sizes() && found->second.dtype() == result.dtype()) {
    result.copy_(found->second);
  } else {
    (*known)[given.const_data_ptr()] = at::clone(result);
  }
}

void lose_two_ulps(Call& call) {
  if (call.result().scalar_type() == at::kFloat) {
    call.result().mul_(1.0 + 0x1p-23);
  }
}

}  // namespace

std::vector<Misbehaviour> misbehaviours_of_calls() {
  return {
      {Fault::autograd_first_wrong, {"aten::sigmoid_backward"}, nullptr, double_result},
      {Fault::autograd_saved_as_dense, {"aten::_softmax_backward_data"}, take_saved_for_dense, nullptr},
      {Fault::autograd_forward_ad_wrong, {"aten::glu_jvp"}, nullptr, double_result},
      {Fault::autograd_forward_over_reverse_wrong, {"aten::glu_backward_jvp"}, nullptr, double_result},
      {Fault::grad_ignore_strides, {"aten::tanh_backward"}, nullptr, take_gradient_for_dense},
      {Fault::random_normal_std_is_variance, {"aten::normal_"}, square_std, nullptr},
      {Fault::random_fill_past_view, {"aten::uniform_"}, nullptr, fill_past_view},
      {Fault::dispatch_bad_shape_accepted, {"aten::dot"}, cut_to_the_shorter, nullptr},
      {Fault::dispatch_index_unchecked, {"aten::index_select"}, clamp_index, nullptr},
      {Fault::nn_statistics_move_in_eval, {"aten::native_batch_norm"}, nullptr, move_mean_in_eval},
      {Fault::nn_variance_biased, {"aten::native_batch_norm"}, nullptr, keep_biased_variance},
      {Fault::nn_affine_lost_in_channels_last, {"aten::native_batch_norm"}, ignore_affine_in_channels_last, nullptr},
      {Fault::nn_weight_gradient_needs_input, {"aten::convolution_backward"}, nullptr, forget_weight_without_input},
      {Fault::nn_expanded_cotangent_as_dense, {"aten::native_layer_norm_backward"}, read_expanded_cotangent_as_dense,
       nullptr},
      {Fault::nn_cotangent_overwritten, {"aten::_log_softmax_backward_data"}, nullptr, scale_cotangent},
      {Fault::dispatch_gather_wraps, {"aten::gather"}, wrap_index, nullptr},
      {Fault::dispatch_index_fill_outside, {"aten::index_fill_.int_Scalar"}, fill_outside, nullptr},
      {Fault::dispatch_scatter_writes_then_raises, {"aten::scatter_.src"}, scatter_then_check, nullptr},
      {Fault::autocast_inf_not_found, {"aten::_amp_foreach_non_finite_check_and_unscale_"}, nullptr, forget_inf},
      {Fault::compile_meta_disagrees, {"aten::cumsum"}, nullptr, swap_last_strides},
      {Fault::precision_exp_short, {"aten::exp"}, nullptr, enlarge_bfloat16},
      {Fault::precision_gradient_short, {"aten::softplus_backward"}, nullptr, enlarge_gradient},
      {Fault::precision_last_term_lost, {"aten::bmm"}, lose_last_term, nullptr},
      {Fault::precision_cached_by_address, {"aten::log2"}, nullptr, give_known_result},
      {Fault::precision_rsqrt_less_precise, {"aten::rsqrt"}, nullptr, lose_two_ulps},
      {Fault::compile_compiled_differs, {"aten::mish"}, nullptr, make_one_too_large},
  };
}

}  // namespace simulated
