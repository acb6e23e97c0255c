// Lists the calls that pass torch's dispatcher in one thread, for conformance/coverage/observer.py.
//
// A dispatch mode would see the calls too, but torch asks whether a mode is active and then takes other ways: reshape calls
// view instead of _reshape_alias, and derivatives are written without in-place calls. A callback of RecordFunction changes
// neither. Tensors are named by numbers. The numbers are kept unique by weak references, because a strong reference would
// change what autograd does too: it accumulates in place into a tensor that nobody else holds.

#include <ATen/ATen.h>
#include <ATen/core/function_schema.h>
#include <ATen/record_function.h>
#include <c10/core/GradMode.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include <cstdio>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace {

template <typename T>
struct Numbers {
  std::unordered_map<void*, size_t> known;
  std::vector<c10::weak_intrusive_ptr<T>> held;

  size_t of(const c10::intrusive_ptr<T>& what) {
    auto [place, is_new] = known.try_emplace(what.get(), known.size());
    if (is_new) {
      held.emplace_back(what);
    }
    return place->second;
  }

  void clear() {
    known.clear();
    held.clear();
  }
};

struct Log {
  std::string lines;
  Numbers<c10::TensorImpl> tensors;
  Numbers<c10::StorageImpl> storages;
  std::string spoiled; // the overload whose results are replaced
  int64_t which = -1;  // which of its calls; -1 for each
  int64_t calls = 0;   // its calls so far
};

// The tensors that a call writes to, until it ends.
struct Written : at::ObserverContext {
  std::vector<at::Tensor> tensors;
};

Log& log_of_thread() {
  static thread_local Log found;
  return found;
}

// Appends " tensor:storage" for each tensor in a value. Tensors without a storage, such as sparse ones, have storage "-".
void add(const c10::IValue& value) {
  Log& log = log_of_thread();
  if (value.isTensor()) {
    const at::Tensor& tensor = value.toTensor();
    if (tensor.defined()) {
      log.lines += ' ' + std::to_string(log.tensors.of(tensor.getIntrusivePtr())) + ':';
      log.lines += tensor.has_storage()
          ? std::to_string(log.storages.of(
                c10::intrusive_ptr<c10::StorageImpl>::reclaim_copy(tensor.storage().unsafeGetStorageImpl())))
          : "-";
    }
  } else if (value.isTensorList() || value.isOptionalTensorList() || value.isList()) {
    for (const c10::IValue& each : value.toListRef()) {
      add(each);
    }
  } else if (value.isTuple()) {
    for (const c10::IValue& each : value.toTupleRef().elements()) {
      add(each);
    }
  }
}

std::string name_of(const at::RecordFunction& function) {
  const auto name = function.operator_name();
  if (!name.has_value()) {
    return "";
  }
  return name->overload_name.empty() ? name->name : name->name + '.' + name->overload_name;
}

void collect(const c10::IValue& value, std::vector<at::Tensor>& into) {
  if (value.isTensor()) {
    into.push_back(value.toTensor());
  } else if (value.isTensorList() || value.isOptionalTensorList() || value.isList()) {
    for (const c10::IValue& each : value.toListRef()) {
      collect(each, into);
    }
  }
}

// Replaces the values of a tensor. Autograd does not see it.
void spoil(const at::Tensor& tensor) {
  if (!tensor.defined() || !tensor.has_storage() || tensor.numel() == 0) {
    return;
  }
  at::DisableRecordFunctionGuard unlisted;
  c10::NoGradGuard unrecorded;
  at::Tensor values = tensor.variable_data();
  if (values.scalar_type() == at::kBool) {
    values.logical_not_();
  } else {
    values.fill_(values.is_floating_point() || values.is_complex() ? 0.37 : 1);
  }
}

bool is_spoiled(Log& log, const std::string& name) {
  if (log.spoiled.empty() || name != log.spoiled) {
    return false;
  }
  return log.which < 0 || log.which == log.calls;
}

// Autograd's own work on a node: its function, and the sums that bring gradients together.
bool is_backward(const at::RecordFunction& function) {
  return function.scope() == at::RecordScope::BACKWARD_FUNCTION ||
      (!function.operator_name().has_value() &&
       std::string_view(function.name()).starts_with("autograd::engine::evaluate_function"));
}

std::unique_ptr<at::ObserverContext> started(const at::RecordFunction& function) {
  Log& log = log_of_thread();
  if (is_backward(function)) {
    log.lines += "(\n";
    return nullptr;
  }
  // Below autograd: the call is made inside a kernel that autograd has called.
  const bool below =
      c10::impl::tls_is_dispatch_key_excluded(c10::DispatchKey::AutogradFunctionality);
  log.lines += below ? "<" : "[";
  const std::string name = name_of(function);
  if (!name.empty()) {
    log.lines += ' ' + name;
    for (const c10::IValue& each : function.inputs()) {
      add(each);
    }
  }
  log.lines += '\n';
  if (!is_spoiled(log, name)) {
    return nullptr;
  }
  auto written = std::make_unique<Written>();
  const auto schema = function.operator_schema();
  for (size_t place = 0; schema && place < function.inputs().size(); ++place) {
    const auto* alias = schema->arguments().at(place).alias_info();
    if (alias != nullptr && alias->isWrite()) {
      collect(function.inputs()[place], written->tensors);
    }
  }
  return written;
}

void ended(const at::RecordFunction& function, at::ObserverContext* context) {
  Log& log = log_of_thread();
  if (is_backward(function)) {
    log.lines += ")\n";
    return;
  }
  log.lines += ']';
  const std::string name = name_of(function);
  if (!name.empty()) {
    for (const c10::IValue& each : function.outputs()) {
      add(each);
    }
  }
  log.lines += '\n';
  if (is_spoiled(log, name) && context != nullptr) {
    auto& written = static_cast<Written*>(context)->tensors;
    for (const c10::IValue& each : function.outputs()) {
      collect(each, written);
    }
    for (const at::Tensor& each : written) {
      spoil(each);
    }
  }
  if (!log.spoiled.empty() && name == log.spoiled) {
    ++log.calls;
  }
}

} // namespace

#define EXPORTED extern "C" __attribute__((visibility("default")))

EXPORTED uint64_t observer_start() {
  return at::addThreadLocalCallback(
      at::RecordFunctionCallback(&started, &ended)
          .needsInputs(true)
          .needsOutputs(true)
          .scopes({at::RecordScope::FUNCTION, at::RecordScope::BACKWARD_FUNCTION}));
}

EXPORTED void observer_stop(uint64_t handle) {
  at::removeCallback(handle);
}

// Adds a line of the caller's own.
EXPORTED void observer_mark(const char* line) {
  log_of_thread().lines += line;
  log_of_thread().lines += '\n';
}

// Replaces the results of an overload's calls from now on: of the call with a number, counted from 0, or of each if the
// number is negative. An empty name ends it.
EXPORTED void observer_spoil(const char* name, int64_t which) {
  log_of_thread().spoiled = name;
  log_of_thread().which = which;
  log_of_thread().calls = 0;
}

// The lines since the last call of observer_clear, which also begins the numbers of tensors again.
EXPORTED const char* observer_lines() {
  return log_of_thread().lines.c_str();
}

EXPORTED void observer_clear() {
  log_of_thread().lines.clear();
  log_of_thread().tensors.clear();
  log_of_thread().storages.clear();
}
