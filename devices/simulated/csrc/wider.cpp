#include "wider.h"

#include <ATen/MemoryOverlap.h>
#include <ATen/ops/clone.h>
#include <ATen/ops/empty_strided.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <string_view>

namespace simulated {

namespace {

// What they compute depends on the width of their operands, or (embedding_bag without offsets) ends the process in float64.
constexpr std::array<std::string_view, 11> kOfTheirWidth{
    "aten::nextafter",
    "aten::nan_to_num",
    "aten::frexp",
    "aten::_fused_rms_norm",
    "aten::_embedding_bag",
    "aten::_embedding_bag_forward_only",
    "aten::copy_",
    "aten::_to_copy",
    "aten::_local_scalar_dense",
    "aten::view",
    "aten::resize",
};

at::ScalarType widest(at::ScalarType type) {
  if (at::isComplexType(type)) {
    return at::kComplexDouble;
  }
  return type == at::kFloat || at::isReducedFloatingType(type) ? at::kDouble : type;
}

// The same elements with the same strides: some kernels branch on these, and others rely on what they did (_linalg_det).
at::Tensor as_laid_out(const at::Tensor& tensor, at::ScalarType type) {
  std::vector<int64_t> sizes = tensor.sizes().vec();
  for (int64_t dim = 0; dim < tensor.dim(); ++dim) {
    if (tensor.stride(dim) == 0 && sizes[dim] > 1) {
      sizes[dim] = 1;  // expanded
    }
  }
  const at::Tensor once = tensor.as_strided(sizes, tensor.strides());
  if (at::has_internal_overlap(once) == at::MemOverlap::Yes) {
    return at::clone(tensor, at::MemoryFormat::Contiguous).to(type);
  }
  const at::Tensor copy = at::empty_strided(sizes, tensor.strides(), tensor.options().dtype(type)).copy_(once);
  return copy.as_strided(tensor.sizes(), tensor.strides());
}

// As kernels read numbers that stand beside tensors of 32 bits or less.
double as_float(double number) {
  return static_cast<double>(static_cast<float>(number));
}

using Copy = std::pair<at::Tensor, at::Tensor>;  // to, from

void pair_up(std::vector<Copy>& copies, const c10::IValue& to, const c10::IValue& from) {
  if (to.isTensor() && from.isTensor()) {
    copies.emplace_back(to.toTensor(), from.toTensor());
  } else if (to.isTensorList() && from.isTensorList()) {
    const auto all = to.toTensorVector(), wide = from.toTensorVector();
    for (size_t place = 0; place < std::min(all.size(), wide.size()); ++place) {
      copies.emplace_back(all[place], wide[place]);
    }
  }
}

bool shares_storage(const at::Tensor& one, const torch::jit::Stack& others) {
  for (const c10::IValue& other : others) {
    if (other.isTensor() && other.toTensor().defined() && other.toTensor().is_alias_of(one)) {
      return true;
    }
    if (other.isTensorList()) {
      for (const at::Tensor& each : other.toTensorVector()) {
        if (each.defined() && each.is_alias_of(one)) {
          return true;
        }
      }
    }
  }
  return false;
}

}  // namespace

bool computes_wider(const c10::OperatorHandle& op) {
  static const bool wide = [] {
    const char* given = std::getenv("SIMULATED_ARITHMETIC");
    const std::string_view asked = given == nullptr ? "cpu" : given;
    TORCH_CHECK_VALUE(
        asked == "cpu" || asked == "float64", "SIMULATED_ARITHMETIC: expected cpu or float64, found '", asked, "'");
    return asked == "float64";
  }();
  if (!wide || op.hasTag(at::Tag::nondeterministic_seeded)) {
    return false;
  }
  std::string_view name = op.operator_name().name;
  while (name.size() > 1 && name.back() == '_' && name != "aten::copy_") {
    name.remove_suffix(1);
  }
  return std::find(kOfTheirWidth.begin(), kOfTheirWidth.end(), name) == kOfTheirWidth.end();
}

Wider::Wider(const c10::OperatorHandle& op, const std::vector<bool>& written, const torch::jit::Stack& call)
    : op_(op), written_(written), given_(call), wide_(call) {
  for (size_t place = 0; place < wide_.size(); ++place) {
    widen(wide_[place], written_[place]);
  }
}

void Wider::widen(c10::IValue& value, bool written) {
  auto wide_of = [&](const at::Tensor& tensor) -> at::Tensor {
    if (!tensor.defined() || tensor.layout() != at::kStrided) {
      return tensor;
    }
    if (tensor.unsafeGetTensorImpl()->is_wrapped_number()) {
      return tensor.is_floating_point() ? tensor.to(at::kFloat).to(at::kDouble) : tensor;
    }
    const at::ScalarType wide = widest(tensor.scalar_type());
    differs_ = differs_ || wide != tensor.scalar_type();
    return wide != tensor.scalar_type() || written ? as_laid_out(tensor, wide) : tensor;
  };
  if (value.isTensor()) {
    value = wide_of(value.toTensor());
  } else if (value.isTensorList()) {
    std::vector<at::Tensor> all;
    for (const at::Tensor& each : value.toTensorVector()) {
      all.push_back(wide_of(each));
    }
    value = std::move(all);
  } else if (value.isOptionalTensorList()) {
    c10::List<std::optional<at::Tensor>> all;
    for (const std::optional<at::Tensor> each : value.toOptionalTensorList()) {
      all.push_back(each.has_value() ? std::optional(wide_of(*each)) : std::nullopt);
    }
    value = std::move(all);
  } else if (value.isDouble()) {
    value = as_float(value.toDouble());
  } else if (value.isDoubleList()) {
    std::vector<double> all = value.toDoubleVector();
    std::transform(all.begin(), all.end(), all.begin(), as_float);
    value = std::move(all);
  }
}

void Wider::round_into(torch::jit::Stack& results) {
  if (!differs_) {
    return;
  }
  torch::jit::Stack found = wide_;
  try {
    op_.redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::CPU), &found);
  } catch (const c10::Error&) {
    return;  // a kernel that takes no float64, or arguments that name another dtype
  }
  std::vector<Copy> copies;
  for (size_t place = 0; place < given_.size(); ++place) {
    if (written_[place]) {
      pair_up(copies, given_[place], wide_[place]);
    }
  }
  const size_t arguments = copies.size();
  for (size_t place = 0; place < std::min(results.size(), found.size()); ++place) {
    pair_up(copies, results[place], found[place]);
  }
  for (size_t place = 0; place < copies.size(); ++place) {
    auto& [to, from] = copies[place];
    if (!to.defined() || !from.defined() || to.sizes() != from.sizes() || to.layout() != at::kStrided) {
      continue;
    }
    if (place < arguments || !shares_storage(to, given_)) {
      to.copy_(from);
    }
  }
}

}  // namespace simulated
