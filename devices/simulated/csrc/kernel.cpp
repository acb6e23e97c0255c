#include "kernel.h"

#include <ATen/native/CPUFallback.h>
#include <ATen/ops/clone.h>
#include <torch/library.h>

#include <array>
#include <cstring>
#include <string_view>

#include "arena.h"
#include "capturable.h"
#include "capture.h"
#include "generator.h"
#include "hazard.h"
#include "misbehave_graph.h"
#include "runtime.h"
#include "wider.h"
#include "worker.h"

namespace simulated {

namespace {

// Arguments that are read on the host by design, and indices that may be CPU tensors.
constexpr std::array<std::pair<std::string_view, std::string_view>, 15> kReadOnHost{{
    {"aten::index.Tensor", "indices"},
    {"aten::index.Tensor_out", "indices"},
    {"aten::_unsafe_index.Tensor", "indices"},
    {"aten::index_put", "indices"},
    {"aten::index_put_", "indices"},
    {"aten::_index_put_impl_", "indices"},
    {"aten::_unsafe_index_put", "indices"},
    {"aten::_pack_padded_sequence", "lengths"},
    {"aten::_ctc_loss.Tensor", "input_lengths"},
    {"aten::_ctc_loss.Tensor", "target_lengths"},
    {"aten::_fused_adagrad_.tensor_lr", "lr"},
    {"aten::_fused_adam_.tensor_lr", "lr"},
    {"aten::_fused_adamw_.tensor_lr", "lr"},
    {"aten::_fused_adamw.tensor_lr", "lr"},
    {"aten::_fused_sgd_.tensor_lr", "lr"},
}};

std::string full_name(const c10::OperatorHandle& op) {
  const auto& name = op.operator_name();
  return name.overload_name.empty() ? name.name : name.name + "." + name.overload_name;
}

}  // namespace

Kernel::Kernel(const c10::OperatorHandle& op, const c10::OperatorHandle& runs)
    : name_(full_name(op)), runs_(runs), arguments_(op.schema().arguments().size()), seen_(name_) {
  for (const auto& argument : op.schema().arguments()) {
    const auto* alias = argument.alias_info();
    written_.push_back(alias != nullptr && alias->isWrite());
    bool host = false;
    for (const auto& [name, which] : kReadOnHost) {
      host = host || (name == name_ && which == argument.name());
    }
    may_be_on_cpu_.push_back(host);
  }
  defect_ = defect_of(name_);
  in_place_ = !op.operator_name().name.empty() && op.operator_name().name.back() == '_';
  misbehaviours_ = misbehaviours_of(name_);
  computes_wider_ = computes_wider(runs);
  may_be_queued_ = !defect_ && may_be_queued(op);
  why_not_capturable_ = why_op_not_capturable(op);
}

int Kernel::find_device(const torch::jit::Stack& stack, size_t from) const {
  int named = -1;
  for (size_t place = from; place < stack.size(); ++place) {
    const c10::IValue& value = stack[place];
    if (value.isTensor()) {
      if (on_device(value.toTensor())) {
        return value.toTensor().device().index();
      }
    } else if (value.isTensorList() || value.isOptionalTensorList()) {
      for (const auto& each : value.toListRef()) {
        if (each.isTensor() && on_device(each.toTensor())) {
          return each.toTensor().device().index();
        }
      }
    } else if (value.isDevice() && value.toDevice().type() == at::kPrivateUse1) {
      named = value.toDevice().index();
    }
  }
  return checked_device(named);
}

void Kernel::check_tensor(const at::Tensor& tensor, size_t place, int device) const {
  const bool here = on_device(tensor);
  const bool host_scalar = tensor.device().is_cpu() && tensor.dim() == 0 && !written_[place];
  if ((here && tensor.device().index() == device) || host_scalar ||
      (tensor.device().is_cpu() && may_be_on_cpu_[place])) {
    return;
  }
  if (on(Fault::dispatch_mixed_devices_accepted)) {
    return;
  }
  TORCH_CHECK(
      false, "Expected all tensors to be on the same device, but found at least two devices, simulated:", device,
      " and ", tensor.device(), "! (when checking argument ", runs_.schema().arguments()[place].name(), " of ", name_,
      ")");
}

void Kernel::replace_argument(c10::IValue& value, size_t place, Queue& queue, Aliases& aliases) const {
  auto alias_of = [&](const at::Tensor& tensor) -> at::Tensor {
    if (!tensor.defined()) {
      return tensor;
    }
    check_tensor(tensor, place, queue.device());
    if (on(Fault::dispatch_cpu_scalar_offset_ignored) && !on_device(tensor) && tensor.dim() == 0) {
      return tensor.as_strided({}, {}, 0);
    }
    return on_device(tensor) ? aliases.of(tensor) : tensor;
  };
  if (value.isTensor()) {
    value = alias_of(value.toTensor());
  } else if (value.isTensorList()) {
    std::vector<at::Tensor> all;
    for (const at::Tensor& each : value.toTensorVector()) {
      all.push_back(alias_of(each));
    }
    value = std::move(all);
  } else if (value.isOptionalTensorList()) {
    c10::List<std::optional<at::Tensor>> all;
    for (const std::optional<at::Tensor> each : value.toOptionalTensorList()) {
      all.push_back(each.has_value() ? std::optional(alias_of(*each)) : std::nullopt);
    }
    value = std::move(all);
  } else if (value.isDevice()) {
    value = c10::Device(c10::DeviceType::CPU);
  } else if (value.isGenerator()) {
    value = cpu_generator(value.toGenerator(), queue);
  } else if (value.isNone()) {
    const auto& type = *runs_.schema().arguments()[place].type();
    if (type.kind() == c10::TypeKind::OptionalType &&
        type.castRaw<c10::OptionalType>()->getElementType()->kind() == c10::TypeKind::GeneratorType) {
      value = cpu_generator(std::nullopt, queue);
    }
  }
}

void replace_result(c10::IValue& value, Aliases& aliases) {
  if (value.isTensor()) {
    value = aliases.result(value.toTensor());
  } else if (value.isTensorList()) {
    std::vector<at::Tensor> all;
    for (const at::Tensor& each : value.toTensorVector()) {
      all.push_back(aliases.result(each));
    }
    value = std::move(all);
  }
}

void Kernel::run(torch::jit::Stack& call) const {
  if (!defect_) {
    compute(call);
    return;
  }
  Staged staged(defect_, written_, in_place_, call);
  compute(call);
  staged.copy_back(call);
}

void Kernel::compute(torch::jit::Stack& call) const {
  constexpr c10::DispatchKeySet cpu(c10::DispatchKey::CPU);
  if (!computes_wider_) {
    runs_.redispatchBoxed(cpu, &call);
    return;
  }
  Wider wider(runs_, written_, call);
  runs_.redispatchBoxed(cpu, &call);
  wider.round_into(call);
}

void Kernel::run_faulty(torch::jit::Stack& call) const {
  const c10::SmallVector<c10::IValue, 8> given(call.begin(), call.end());
  Call seen{runs_, given, call};
  for (const Misbehaviour* each : misbehaviours_) {
    if (on(each->fault) && each->before != nullptr) {
      each->before(seen);
    }
  }
  run(call);
  for (const Misbehaviour* each : misbehaviours_) {
    if (on(each->fault) && each->after != nullptr) {
      each->after(seen);
    }
  }
}

torch::jit::Stack Kernel::queue_call(
    const CallGeometry& geometry, torch::jit::Stack call, Queue& queue, Aliases& aliases) const {
  struct Target {
    size_t result;
    char* address;  // of the device's side
    size_t bytes;
  };
  std::vector<Target> targets;
  torch::jit::Stack results;
  for (size_t place = 0; place < geometry.results.size(); ++place) {
    const ResultGeometry& one = geometry.results[place];
    if (one.argument >= 0) {
      results.emplace_back(aliases.result(call[one.argument].toTensor()));
      continue;
    }
    if (one.undefined) {
      results.emplace_back(at::Tensor());
      continue;
    }
    const c10::Storage storage = new_storage(queue.device(), one.bytes);
    targets.push_back({place, static_cast<char*>(arena().on_device_side(storage.data())), one.bytes});
    results.emplace_back(tensor_over(storage, one.sizes, one.strides, 0, one.dtype, {one.conjugate, one.negative}));
  }
  for (c10::IValue& value : call) {
    if (value.isTensor() && value.toTensor().defined() && is_host_scalar(value.toTensor()) &&
        !value.toTensor().unsafeGetTensorImpl()->is_wrapped_number()) {
      KernelScope scope;
      value = at::clone(value.toTensor());
    }
  }
  const void* generator = nullptr;
  for (const c10::IValue& value : call) {
    if (value.isGenerator()) {
      generator = value.toGenerator().unsafeGetGeneratorImpl();
    }
  }
  const auto capture = queue.capture();
  if (capture != nullptr && on(Fault::graphs_replay_stale_input) && capture->empty()) {
    hold_inputs(call, written_);
  }
  // The task owns no device memory: memory freed meanwhile is handed out to later work of this queue only.
  Task task = [this, targets, call = std::move(call)]() mutable {
    KernelTurn turn;
    KernelScope scope;
    run(call);
    for (const Target& target : targets) {
      const auto [first, bytes] = elements_of(call[target.result].toTensor());
      TORCH_INTERNAL_ASSERT(bytes == target.bytes, name_, " gave ", bytes, " bytes, on scratch ", target.bytes);
      if (bytes != 0) {
        std::memcpy(target.address, first, bytes);
      }
    }
  };
  if (capture != nullptr && on(Fault::graphs_op_runs_at_capture) && name_ == "aten::neg") {
    task();
    return results;
  }
  queue.submit(std::move(task), name_.c_str(), generator);
  if (capture != nullptr && on(Fault::graphs_output_moves) && geometry.results[0].bytes != 0) {
    move_at_replay(*capture, results[0].toTensor());
  }
  return results;
}

std::shared_ptr<const CallGeometry> Kernel::geometry_of(const torch::jit::Stack& call, bool captured) {
  static const auto unknown = std::make_shared<const CallGeometry>();
  if (captured && (!why_not_capturable_.empty() || !why_call_not_capturable(runs_, call).empty())) {
    return unknown;
  }
  return geometries_.of([this](torch::jit::Stack& trial) { run(trial); }, call, captured);
}

void Kernel::check_capturable(Queue& queue, const CallGeometry& geometry, const torch::jit::Stack& call) const {
  if (geometry.known) {
    return;
  }
  if (geometry.error != nullptr) {
    std::rethrow_exception(geometry.error);
  }
  std::string why = !why_not_capturable_.empty() ? why_not_capturable_ : why_call_not_capturable(runs_, call);
  if (why.empty()) {
    why = "it returns a view or no tensor, or resizes an argument";
  }
  refuse_while_capturing(queue, name_ + ", which cannot be captured (" + why + "),");
}

void Kernel::operator()(const c10::OperatorHandle& op, c10::DispatchKeySet, torch::jit::Stack* stack) {
  seen_.note();
  meet_hazards(name_);
  if (on(Fault::dispatch_fallback_unlisted) && name_ == "aten::erf") {
    at::native::cpu_fallback(op, stack);
    return;
  }
  const size_t from = stack->size() - arguments_;
  const int device = find_device(*stack, from);
  raise_pending(device);
  torch::jit::Stack call(std::make_move_iterator(stack->begin() + from), std::make_move_iterator(stack->end()));
  stack->resize(from);
  bool faulty = false;
  for (const Misbehaviour* each : misbehaviours_) {
    faulty = faulty || on(each->fault);
  }
  Aliases aliases(device);
  Queue& queue = current_queue(device);
  for (size_t place = 0; place < arguments_; ++place) {
    replace_argument(call[place], place, queue, aliases);
  }
  const bool captured = queue.capturing();
  if (captured || (may_be_queued_ && !faulty)) {
    auto geometry = geometry_of(call, captured);
    if (captured && !geometry->reshaped.empty()) {
      for (const ReshapedArgument& one : geometry->reshaped) {
        aliases.reshape(call[one.argument].toTensor(), one.sizes, one.strides, one.bytes);
      }
      geometry = geometry_of(call, captured);
    }
    if (captured) {
      check_capturable(queue, *geometry, call);
    }
    if (geometry->known) {
      for (c10::IValue& value : queue_call(*geometry, std::move(call), queue, aliases)) {
        stack->push_back(std::move(value));
      }
      return;
    }
  }
  try {
    queue.run_here(
        [&] {
          KernelScope scope;
          faulty ? run_faulty(call) : run(call);
        },
        name_.c_str());
  } catch (...) {
    if (on(Fault::allocator_leak_on_error)) {
      new c10::Storage(new_storage(device, 512));  // owned by no tensor
    }
    const bool wrong_type = on(Fault::dispatch_wrong_error_type) && name_ == "aten::gather";
    TORCH_CHECK_TYPE(!wrong_type, "simulated device: gather failed");
    throw;
  }
  aliases.write_back();
  for (c10::IValue& value : call) {
    replace_result(value, aliases);
    stack->push_back(std::move(value));
  }
}

void register_kernels() {
  // Leaked: its destructor would remove kernels that other static objects still use.
  static auto* library =
      new torch::Library(torch::Library::IMPL, "aten", c10::DispatchKey::PrivateUse1, __FILE__, __LINE__);
  auto& dispatcher = c10::Dispatcher::singleton();
  // Ops that torch calls on out-of-tree devices, with the CPU op that does the same.
  struct Same {
    const char *name, *overload, *runs, *runs_overload;
  };
  const std::vector<Same> same_as = {
      // Checks for a CPU, CUDA or XPU device first.
      {"mode", "values", "mode", "values"},
      // Its CPU kernel is a composite one, and has a defect (defects.h).
      {"addr_", "", "addr_", ""},
      // A composite that calls the kernel of conj_physical.out by name, past the dispatcher.
      {"conj_physical_", "", "conj_physical_", ""},
  };
  auto find = [&](const char* name, const char* overload) {
    return dispatcher.findSchemaOrThrow((std::string("aten::") + name).c_str(), overload);
  };
  for (const Same& each : same_as) {
    const auto op = find(each.name, each.overload);
    auto kernel = std::make_unique<Kernel>(op, find(each.runs, each.runs_overload));
    library->impl(full_name(op).c_str(), torch::CppFunction::makeFromBoxedFunctor(std::move(kernel)));
  }
  register_convolution(*library);
  for (const auto& name : dispatcher.getAllOpNames()) {
    if (name.name.rfind("aten::", 0) != 0) {
      continue;
    }
    // Torch composes it on other devices, and compilers take its result to be row-major there.
    if (name.name == "aten::pixel_shuffle") {
      continue;
    }
    const auto op = dispatcher.findOp(name);
    if (!op.has_value() || !op->hasSchema() || !op->hasKernelForDispatchKey(c10::DispatchKey::CPU) ||
        op->hasKernelForDispatchKey(c10::DispatchKey::PrivateUse1)) {
      continue;
    }
    library->impl(full_name(*op).c_str(), torch::CppFunction::makeFromBoxedFunctor(std::make_unique<Kernel>(*op, *op)));
  }
}

}  // namespace simulated
