// Convolutions, which torch asks of devices that it does not know as ops of their own. Compilers take it that such a device
// gives row-major results whatever the layout of the operands (torch/_subclasses/fake_impls.py, conv).

#include <ATen/core/Tensor.h>
#include <torch/library.h>

#include <memory>
#include <vector>

#include "faults.h"
#include "kernel.h"

namespace simulated {

namespace {

// The number of arguments of the forward op.
constexpr size_t kForward = 9;

// Makes the operands at the first places row-major, and with them the results. An operand with one channel can be
// contiguous and channels_last at once, so each gets the strides of a new tensor.
void make_row_major(std::vector<c10::IValue>::iterator first, size_t count) {
  if (on(Fault::compile_convolution_keeps_format)) {
    return;
  }
  for (auto each = first; each != first + static_cast<std::ptrdiff_t>(count); ++each) {
    *each = each->toTensor().clone(at::MemoryFormat::Contiguous);
  }
}

// convolution_overrideable: the CPU's convolution.
class Convolution final : public c10::OperatorKernel {
 public:
  Convolution(const c10::OperatorHandle& op, const c10::OperatorHandle& runs) : kernel_(op, runs) {}

  void operator()(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack) {
    make_row_major(stack->end() - kForward, 2);  // the input and the weight
    kernel_(op, keys, stack);
  }

 private:
  Kernel kernel_;
};

// Places in the two schemas of backward, which differ in one argument: only the CPU's op takes the sizes of the bias.
constexpr size_t kGiven = 10, kWeight = 2, kTransposed = 6, kGroups = 8, kBiasSizes = 3;

// convolution_backward_overrideable: the CPU's convolution_backward, which also takes the sizes of the bias.
class ConvolutionBackward final : public c10::OperatorKernel {
 public:
  explicit ConvolutionBackward(const c10::OperatorHandle& runs) : kernel_(runs, runs), runs_(runs) {}

  void operator()(const c10::OperatorHandle&, c10::DispatchKeySet keys, torch::jit::Stack* stack) {
    const auto given = stack->end() - kGiven;
    const at::Tensor weight = given[kWeight].toTensor();
    const int64_t channels = given[kTransposed].toBool() ? weight.size(1) * given[kGroups].toInt() : weight.size(0);
    make_row_major(given, 3);  // the gradient of the output, the input and the weight
    stack->insert(given + kBiasSizes, c10::IValue(std::vector<int64_t>{channels}));
    kernel_(runs_, keys, stack);
  }

 private:
  Kernel kernel_;
  c10::OperatorHandle runs_;
};

}  // namespace

void register_convolution(torch::Library& library) {
  auto& dispatcher = c10::Dispatcher::singleton();
  const auto op = dispatcher.findSchemaOrThrow("aten::convolution_overrideable", "");
  const auto does = dispatcher.findSchemaOrThrow("aten::convolution", "");
  library.impl(
      "convolution_overrideable",
      torch::CppFunction::makeFromBoxedFunctor(std::make_unique<Convolution>(op, does)));
  const auto runs = dispatcher.findSchemaOrThrow("aten::convolution_backward", "");
  library.impl(
      "convolution_backward_overrideable",
      torch::CppFunction::makeFromBoxedFunctor(std::make_unique<ConvolutionBackward>(runs)));
}

}  // namespace simulated
