#include "capturable.h"

#include <ATen/core/Tensor.h>
#include <ATen/core/enum_tag.h>

#include <algorithm>
#include <array>
#include <string_view>

#include "arena.h"

namespace simulated {

namespace {

// Tagged because of masks: with integer indices the shapes of their results are known.
constexpr std::array<std::string_view, 3> kDynamicByMasks{"aten::index", "aten::index_copy", "aten::_unsafe_index"};

bool takes_generator(const c10::FunctionSchema& schema) {
  return std::any_of(schema.arguments().begin(), schema.arguments().end(), [](const c10::Argument& argument) {
    return argument.name() == "generator";
  });
}

bool is_mask(const at::Tensor& tensor) {
  return tensor.defined() && (tensor.scalar_type() == at::kBool || tensor.scalar_type() == at::kByte);
}

// Larger than a scalar, and in host memory that the device does not own.
bool is_host_memory(const at::Tensor& tensor) {
  return tensor.defined() && tensor.dim() > 0 && tensor.numel() != 0 && !arena().reaches(tensor.const_data_ptr());
}

}  // namespace

std::string why_op_not_capturable(const c10::OperatorHandle& op) {
  const std::string& name = op.operator_name().name;
  if (op.hasTag(at::Tag::data_dependent_output)) {
    return "it returns a value to the host";
  }
  if (op.hasTag(at::Tag::dynamic_output_shape) &&
      std::find(kDynamicByMasks.begin(), kDynamicByMasks.end(), name) == kDynamicByMasks.end()) {
    return "the shape of what it returns depends on values";
  }
  if (op.hasTag(at::Tag::nondeterministic_seeded) && !takes_generator(op.schema())) {
    return "it draws from the host's generator";
  }
  return "";
}

std::string why_call_not_capturable(const c10::OperatorHandle& op, const torch::jit::Stack& call) {
  for (const c10::IValue& value : call) {
    std::vector<at::Tensor> tensors;
    if (value.isTensor()) {
      tensors.push_back(value.toTensor());
    } else if (value.isTensorList()) {
      tensors = value.toTensorVector();
    } else if (value.isOptionalTensorList()) {
      for (const std::optional<at::Tensor> each : value.toOptionalTensorList()) {
        tensors.push_back(each.value_or(at::Tensor()));
        if (is_mask(tensors.back()) && op.hasTag(at::Tag::dynamic_output_shape)) {
          return "the shape of what a mask selects depends on values";
        }
      }
    }
    if (std::any_of(tensors.begin(), tensors.end(), is_host_memory)) {
      return "it reads memory of the host";
    }
  }
  return "";
}

}  // namespace simulated
