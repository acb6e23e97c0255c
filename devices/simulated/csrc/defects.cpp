#include "defects.h"

#include <ATen/ops/clone.h>

#include <unordered_map>

namespace simulated {

Defect defect_of(const std::string& op) {
  constexpr Defect inputs{true, false, false}, outputs{false, true, false}, pivots{false, true, true},
      lists{false, false, false, true}, statistics{false, false, false, false, true},
      sgd{false, false, false, true, false, true};
  static const std::unordered_map<std::string, Defect> known = {
      // A reduced dimension of stride 0 is read as if it were contiguous.
      {"aten::median", inputs},
      {"aten::median.dim", inputs},
      {"aten::median.dim_values", inputs},
      {"aten::nanmedian", inputs},
      {"aten::nanmedian.dim", inputs},
      {"aten::nanmedian.dim_values", inputs},
      // An input that is not contiguous is refused.
      {"aten::nll_loss2d_backward", inputs},
      // Targets of one dimension are read as if they were contiguous.
      {"aten::_ctc_loss", inputs},
      {"aten::_ctc_loss.Tensor", inputs},
      {"aten::_ctc_loss_backward", inputs},
      {"aten::_ctc_loss_backward.Tensor", inputs},
      // Tensors that the forward saved are read as if they were contiguous.
      {"aten::native_layer_norm_backward", inputs},
      {"aten::native_group_norm_backward", statistics},
      {"aten::adaptive_max_pool3d_backward", inputs},
      {"aten::fractional_max_pool2d_backward", inputs},
      {"aten::fractional_max_pool3d_backward", inputs},
      // out= is addressed by one stride for all batch dimensions.
      {"aten::tril.out", outputs},
      {"aten::triu.out", outputs},
      {"aten::lu_unpack.out", outputs},
      {"aten::linalg_lu.out", outputs},
      // out= is written as if it were contiguous.
      {"aten::narrow_copy.out", outputs},
      {"aten::avg_pool3d.out", outputs},
      {"aten::native_batch_norm.out", outputs},
      {"aten::_native_batch_norm_legit.out", outputs},
      {"aten::_native_batch_norm_legit.no_stats_out", outputs},
      // out= that is not contiguous is left unwritten.
      {"aten::gelu.out", outputs},
      // self takes the shape of the result instead of raising.
      {"aten::addbmm_", outputs},
      {"aten::addr_", outputs},
      // Parameters, gradients and states are read and written as if all were contiguous.
      {"aten::_fused_adam_", lists},
      {"aten::_fused_adam_.tensor_lr", lists},
      {"aten::_fused_adamw_", lists},
      {"aten::_fused_adamw_.tensor_lr", lists},
      {"aten::_fused_adagrad_", lists},
      {"aten::_fused_adagrad_.tensor_lr", lists},
      // … and in 16 bits only the last few elements are written at all.
      {"aten::_fused_sgd_", sgd},
      {"aten::_fused_sgd_.tensor_lr", sgd},
      // Equal calls give different bits; gelsd does not read memory that was not written.
      {"aten::linalg_lstsq.out", pivots},
  };
  auto found = known.find(op);
  return found == known.end() ? Defect{} : found->second;
}

namespace {
// linalg_lstsq.out(self, b, rcond, *, driver, solution, residuals, rank, singular_values)
constexpr size_t kDriver = 3, kResiduals = 1, kSingularValues = 3;
}  // namespace

Staged::Staged(const Defect& defect, const std::vector<bool>& written, bool in_place, torch::jit::Stack& call)
    : in_place_(in_place) {
  if (defect.reads_unwritten_pivots && (call[kDriver].isNone() || call[kDriver].toStringRef() == "gelsy")) {
    call[kDriver] = std::string("gelsd");
    as_gelsy_ = true;
  }
  for (size_t place = 0; place < call.size(); ++place) {
    if (defect.lists_as_dense && call[place].isTensorList()) {
      call[place] = dense(call[place].toTensorVector(), written[place], defect.halves_as_float);
      continue;
    }
    if (!call[place].isTensor() || !call[place].toTensor().defined()) {
      continue;
    }
    const at::Tensor original = call[place].toTensor();
    if (written[place] && defect.outputs_as_dense) {
      copies_.emplace_back(original, at::clone(original, at::MemoryFormat::Contiguous));
      call[place] = copies_.back().second;
      continue;
    }
    const bool small = defect.small_inputs_as_dense && original.dim() <= 2;
    if (!written[place] && (defect.inputs_as_dense || small) && !original.is_contiguous()) {
      call[place] = at::clone(original, at::MemoryFormat::Contiguous);
    }
  }
}

std::vector<at::Tensor> Staged::dense(std::vector<at::Tensor> list, bool written, bool halves_as_float) {
  for (at::Tensor& each : list) {
    const bool widened = halves_as_float && at::isReducedFloatingType(each.scalar_type());
    if (each.is_contiguous() && !widened) {
      continue;
    }
    at::Tensor copy = at::clone(each, at::MemoryFormat::Contiguous);
    if (widened) {
      copy = copy.to(at::kFloat);
    }
    if (written) {
      copies_.emplace_back(each, copy);
    }
    each = copy;
  }
  return list;
}

void Staged::copy_back(torch::jit::Stack& results) {
  if (as_gelsy_) {
    results[kResiduals].toTensor().resize_({0});
    results[kSingularValues].toTensor().resize_({0});
  }
  for (auto& [original, copy] : copies_) {
    if (copy.sizes() != original.sizes()) {
      TORCH_CHECK(
          !in_place_, "output with shape ", original.sizes(), " doesn't match the broadcast shape ", copy.sizes());
      if (original.numel() == 0) {  // a fresh target is left as the kernel would have left it
        auto* impl = original.unsafeGetTensorImpl();
        impl->set_storage_keep_dtype(copy.storage());
        impl->set_sizes_and_strides(copy.sizes(), copy.strides(), copy.storage_offset());
      } else {
        original.resize_(copy.sizes());
      }
    }
    if (!original.is_alias_of(copy)) {
      original.copy_(copy);
    }
    for (c10::IValue& result : results) {
      if (result.isTensor() && result.toTensor().is_same(copy)) {
        result = original;
      }
    }
  }
}

}  // namespace simulated
