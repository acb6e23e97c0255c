#include "geometry.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Context.h>
#include <ATen/EmptyTensor.h>
#include <ATen/core/enum_tag.h>
#include <c10/core/CPUAllocator.h>
#include <c10/core/DefaultDtype.h>
#include <c10/core/TensorImpl.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <string_view>

#include "arena.h"
#include "worker.h"

namespace simulated {

namespace {

// The number of signatures that an op remembers: the layout suite makes many that never come again.
constexpr size_t kMostKnown = 512;

// In addition to ops tagged pointwise, whose sizes follow from those of their operands by definition.
constexpr std::array<std::string_view, 31> kMoreOps{
    "aten::mm",          "aten::mm.out",      "aten::bmm",           "aten::bmm.out",       "aten::addmm",
    "aten::addmm.out",   "aten::addmm_",      "aten::baddbmm",       "aten::baddbmm.out",   "aten::baddbmm_",
    "aten::mv",          "aten::mv.out",      "aten::fill_.Scalar",  "aten::zero_",         "aten::sum.dim_IntList",
    "aten::sum.IntList_out", "aten::mean.dim", "aten::mean.out",     "aten::amax",          "aten::amax.out",
    "aten::amin",        "aten::amin.out",    "aten::cat",           "aten::cat.out",       "aten::_softmax",
    "aten::_softmax.out", "aten::_log_softmax", "aten::_log_softmax.out", "aten::convolution_overrideable",
    "aten::convolution_backward", "aten::native_layer_norm"};

// -- the signature

class Signature {
 public:
  explicit Signature(bool captured) { number(captured); }
  // False if it holds something that is not understood.
  bool add(const c10::IValue& value) {
    if (value.isTensor()) {
      add_tensor(value.toTensor());
    } else if (value.isTensorList()) {
      number('L');
      for (const at::Tensor& each : value.toTensorVector()) {
        add_tensor(each);
      }
      number('l');
    } else if (value.isOptionalTensorList()) {
      number('O');
      for (const std::optional<at::Tensor> each : value.toOptionalTensorList()) {
        add_tensor(each.value_or(at::Tensor()));
      }
      number('o');
    } else if (value.isGenerator() || value.isDevice()) {
      number('g');  // a CPU generator: it does not change the geometry
    } else if (value.isNone()) {
      number('N');
    } else if (value.isInt()) {
      number('i').number(value.toInt());
    } else if (value.isDouble()) {
      number('d').number(value.toDouble());
    } else if (value.isComplexDouble()) {
      number('c').number(value.toComplexDouble());
    } else if (value.isBool()) {
      number('b').number(value.toBool());
    } else if (value.isString()) {
      number('s').number(value.toStringRef().size());
      text_ += value.toStringRef();
    } else if (value.isIntList()) {
      number('I').numbers(value.toIntVector());
    } else if (value.isDoubleList()) {
      number('D').numbers(value.toDoubleVector());
    } else if (value.isBoolList()) {
      number('B');
      for (const bool each : value.toBoolList()) {
        number(each);
      }
      number('b');
    } else {
      return false;
    }
    return true;
  }

  std::string text() && {
    number(c10::get_default_dtype().toScalarType()).number(at::globalContext().deterministicAlgorithms());
    return std::move(text_);
  }

 private:
  template <typename T>
  Signature& number(T value) {
    text_.append(reinterpret_cast<const char*>(&value), sizeof value);
    return *this;
  }
  template <typename List>
  void numbers(const List& list) {
    number(list.size());
    for (const auto each : list) {
      number(each);
    }
  }
  void add_tensor(const at::Tensor& tensor) {
    number('t').number(tensor.defined());
    if (!tensor.defined()) {
      return;
    }
    const void* storage = tensor.storage().unsafeGetStorageImpl();
    auto found = std::find(storages_.begin(), storages_.end(), storage);
    number(found - storages_.begin());
    if (found == storages_.end()) {
      storages_.push_back(storage);
    }
    numbers(tensor.sizes());
    numbers(tensor.strides());
    number(tensor.storage_offset()).number(tensor.scalar_type());
    number(tensor.is_conj()).number(tensor.is_neg());
    number(tensor.unsafeGetTensorImpl()->is_wrapped_number());
    if (is_host_scalar(tensor)) {  // its value may be rejected: an integer type may not hold it
      text_.append(static_cast<const char*>(tensor.const_data_ptr()), tensor.itemsize());
    }
  }

  std::string text_;
  std::vector<const void*> storages_;
};

// -- scratch

// Tensors of the same geometry over zeros or ones; tensors that share memory share it here too.
class Scratch {
 public:
  explicit Scratch(bool ones) : ones_(ones) {}

  at::Tensor of(const at::Tensor& given) {
    if (!given.defined() || is_host_scalar(given)) {
      return given;
    }
    fits_ = fits_ && (given.numel() == 0 ||
        at::detail::computeStorageNbytes(given.sizes(), given.strides(), given.itemsize(), given.storage_offset()) <= given.storage().nbytes());
    for (const auto& [original, copy] : tensors_) {
      if (original.is_same(given)) {
        return copy;
      }
    }
    at::Tensor made = at::detail::make_tensor<c10::TensorImpl>(
        storage_of(given.storage()), c10::DispatchKeySet(c10::DispatchKey::CPU), given.dtype());
    auto* impl = made.unsafeGetTensorImpl();
    impl->set_sizes_and_strides(given.sizes(), given.strides(), given.storage_offset());
    impl->_set_conj(given.is_conj());
    impl->_set_neg(given.is_neg());
    if (given.unsafeGetTensorImpl()->is_wrapped_number()) {
      impl->set_wrapped_number(true);
    }
    if (ones_ && made.storage().nbytes() != 0) {
      const auto elements = static_cast<int64_t>(made.storage().nbytes() / made.itemsize());
      made.as_strided({elements}, {1}, 0).fill_(1);
    }
    tensors_.emplace_back(given, made);
    return made;
  }

  // Whether each tensor lies inside its storage: a planted fault may have made that too short.
  bool fits() const { return fits_; }

  // Whether no tensor was given another shape or other memory by the op.
  bool unchanged() const {
    return std::all_of(tensors_.begin(), tensors_.end(), [this](const auto& pair) {
      const auto& [given, made] = pair;
      const bool kept = std::any_of(storages_.begin(), storages_.end(), [&](const auto& storage) {
        return made.storage().unsafeGetStorageImpl() == storage.second.unsafeGetStorageImpl() &&
            given.storage().unsafeGetStorageImpl() == storage.first && made.storage().nbytes() == given.storage().nbytes();
      });
      return kept && made.sizes() == given.sizes() && made.strides() == given.strides() &&
          made.storage_offset() == given.storage_offset();
    });
  }

  // The arguments that were given another shape, in their own storage; empty if anything else was changed.
  std::vector<ReshapedArgument> reshaped(const torch::jit::Stack& arguments) const {
    std::vector<ReshapedArgument> found;
    for (const auto& [given, made] : tensors_) {
      if (made.sizes() == given.sizes() && made.strides() == given.strides()) {
        continue;
      }
      const auto place = std::find_if(arguments.begin(), arguments.end(), [&made = made](const c10::IValue& value) {
        return value.isTensor() && value.toTensor().is_same(made);
      });
      const bool room = given.numel() == 0 || made.storage().nbytes() == given.storage().nbytes();
      if (!room || made.storage_offset() != given.storage_offset() || place == arguments.end() || !holds(made)) {
        return {};
      }
      found.push_back({static_cast<size_t>(place - arguments.begin()), made.sizes().vec(), made.strides().vec(), made.storage().nbytes()});
    }
    return found;
  }

  bool holds(const at::Tensor& made) const {
    return std::any_of(storages_.begin(), storages_.end(), [&](const auto& storage) {
      return made.storage().unsafeGetStorageImpl() == storage.second.unsafeGetStorageImpl();
    });
  }

 private:
  c10::Storage storage_of(const c10::Storage& given) {
    for (const auto& [original, copy] : storages_) {
      if (original == given.unsafeGetStorageImpl()) {
        return copy;
      }
    }
    // calloc: the system gives large ranges of zeros without touching them.
    void* zeros = std::calloc(std::max<size_t>(given.nbytes(), 64), 1);
    TORCH_CHECK_WITH(OutOfMemoryError, zeros != nullptr, "simulated device: no host memory for ", given.nbytes(), " bytes");
    c10::Storage made(
        c10::Storage::use_byte_size_t(), given.nbytes(),
        c10::DataPtr(zeros, zeros, &std::free, c10::Device(c10::DeviceType::CPU)), c10::GetCPUAllocator(),
        /*resizable=*/given.resizable());
    storages_.emplace_back(given.unsafeGetStorageImpl(), made);
    return made;
  }

  const bool ones_;
  bool fits_ = true;
  std::vector<std::pair<const c10::StorageImpl*, c10::Storage>> storages_;
  std::vector<std::pair<at::Tensor, at::Tensor>> tensors_;
};

struct Warned final : c10::WarningHandler {
  bool any = false;
  void process(const c10::Warning&) override { any = true; }
};

// The result of the call on scratch memory. Not known if it raised or warned (the call itself then does so), gave an
// argument another shape, or returned a view or something that is not a tensor.
CallGeometry learn(const RunCall& run, const torch::jit::Stack& call, bool captured, bool ones) {
  KernelScope scope;
  Scratch scratch(ones);
  torch::jit::Stack trial;
  for (const c10::IValue& value : call) {
    if (value.isTensor()) {
      trial.emplace_back(scratch.of(value.toTensor()));
    } else if (value.isTensorList()) {
      std::vector<at::Tensor> all;
      for (const at::Tensor& each : value.toTensorVector()) {
        all.push_back(scratch.of(each));
      }
      trial.emplace_back(std::move(all));
    } else if (value.isOptionalTensorList()) {
      c10::List<std::optional<at::Tensor>> all;
      for (const std::optional<at::Tensor> each : value.toOptionalTensorList()) {
        all.push_back(each.has_value() ? std::optional(scratch.of(*each)) : std::nullopt);
      }
      trial.emplace_back(std::move(all));
    } else if (value.isGenerator()) {
      trial.emplace_back(at::detail::createCPUGenerator());
    } else {
      trial.push_back(value);
    }
  }
  if (!scratch.fits()) {
    return {};
  }
  const torch::jit::Stack arguments = trial;
  Warned warned;
  std::optional<c10::WarningUtils::WarningHandlerGuard> guard;
  if (!captured) {
    guard.emplace(&warned);
  }
  try {
    run(trial);
  } catch (const std::exception&) {
    CallGeometry raised;  // the call itself will raise it, or a better error, when it runs
    raised.error = std::current_exception();
    return raised;
  }
  if (warned.any || !scratch.unchanged()) {
    CallGeometry unknown;
    unknown.reshaped = scratch.reshaped(arguments);
    return unknown;
  }
  CallGeometry found;
  for (const c10::IValue& value : trial) {
    if (!value.isTensor()) {
      return {};
    }
    const at::Tensor& made = value.toTensor();
    ResultGeometry one;
    one.undefined = !made.defined();
    for (size_t place = 0; place < arguments.size() && one.argument < 0 && made.defined(); ++place) {
      if (arguments[place].isTensor() && arguments[place].toTensor().is_same(made)) {
        one.argument = static_cast<int>(place);
      }
    }
    if (one.argument < 0 && !one.undefined) {
      if (scratch.holds(made) || made.layout() != at::kStrided || !made.device().is_cpu()) {
        return {};
      }
      one.sizes = made.sizes().vec();
      one.strides = made.strides().vec();
      one.dtype = made.dtype();
      one.conjugate = made.is_conj();
      one.negative = made.is_neg();
      one.bytes = elements_of(made).second;
    }
    found.results.push_back(std::move(one));
  }
  found.known = true;
  return found;
}

}  // namespace

bool is_host_scalar(const at::Tensor& argument) {
  return argument.dim() == 0 && argument.storage().nbytes() != 0 && !arena().reaches(argument.const_data_ptr());
}

std::pair<const char*, size_t> elements_of(const at::Tensor& made) {
  // The span of the elements from the first one on: the kernel's own storage may be larger.
  const c10::Storage& storage = made.storage();
  const size_t skipped = made.storage_offset() * made.dtype().itemsize();
  const size_t spanned = made.numel() == 0
      ? 0
      : at::detail::computeStorageNbytes(made.sizes(), made.strides(), made.dtype().itemsize());
  const size_t bytes = std::min(spanned, storage.nbytes() - std::min(skipped, storage.nbytes()));
  return {static_cast<const char*>(storage.data()) + skipped, bytes};
}

std::shared_ptr<const CallGeometry> Geometries::of(const RunCall& run, const torch::jit::Stack& call, bool captured) {
  static const auto unknown = std::make_shared<const CallGeometry>();
  Signature signature(captured);
  for (const c10::IValue& value : call) {
    if (!signature.add(value)) {
      return unknown;
    }
  }
  const std::string key = std::move(signature).text();
  {
    std::lock_guard<std::mutex> lock(mutex_);
    auto found = known_.find(key);
    if (found != known_.end()) {
      return found->second;
    }
  }
  auto found = std::make_shared<CallGeometry>(learn(run, call, captured, /*ones=*/false));
  if (captured && found->error != nullptr) {
    if (CallGeometry again = learn(run, call, captured, /*ones=*/true); again.known) {
      *found = std::move(again);
    }
  }
  const std::shared_ptr<const CallGeometry> learnt = std::move(found);
  std::lock_guard<std::mutex> lock(mutex_);
  if (known_.size() >= kMostKnown) {
    known_.clear();
  }
  known_[key] = learnt;
  return learnt;
}

bool may_be_queued(const c10::OperatorHandle& op) {
  for (const at::Tag tag : {at::Tag::nondeterministic_seeded, at::Tag::dynamic_output_shape, at::Tag::data_dependent_output}) {
    if (op.hasTag(tag)) {
      return false;
    }
  }
  const auto& name = op.operator_name();
  const std::string full = name.overload_name.empty() ? name.name : name.name + "." + name.overload_name;
  return op.hasTag(at::Tag::pointwise) || std::find(kMoreOps.begin(), kMoreOps.end(), full) != kMoreOps.end();
}

}  // namespace simulated
