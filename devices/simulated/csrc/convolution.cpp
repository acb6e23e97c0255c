// Convolutions, which torch asks of devices that it does not know as ops of their own.

#include <ATen/core/Tensor.h>
#include <torch/library.h>

#include <memory>
#include <vector>

#include "kernel.h"

namespace simulated {

namespace {

// Places in the two schemas, which differ in one argument: only the CPU's op takes the sizes of the bias.
constexpr size_t kGiven = 10, kWeight = 2, kTransposed = 6, kGroups = 8, kBiasSizes = 3;

// convolution_backward_overrideable: the CPU's convolution_backward, which also takes the sizes of the bias.
class ConvolutionBackward final : public c10::OperatorKernel {
 public:
  explicit ConvolutionBackward(const c10::OperatorHandle& runs) : kernel_(runs, runs), runs_(runs) {}

  void operator()(const c10::OperatorHandle&, c10::DispatchKeySet keys, torch::jit::Stack* stack) {
    const auto given = stack->end() - kGiven;
    const at::Tensor weight = given[kWeight].toTensor();
    const int64_t channels = given[kTransposed].toBool() ? weight.size(1) * given[kGroups].toInt() : weight.size(0);
    stack->insert(given + kBiasSizes, c10::IValue(std::vector<int64_t>{channels}));
    kernel_(runs_, keys, stack);
  }

 private:
  Kernel kernel_;
  c10::OperatorHandle runs_;
};

}  // namespace

void register_convolution(torch::Library& library) {
  const auto runs = c10::Dispatcher::singleton().findSchemaOrThrow("aten::convolution_backward", "");
  library.impl(
      "convolution_backward_overrideable",
      torch::CppFunction::makeFromBoxedFunctor(std::make_unique<ConvolutionBackward>(runs)));
}

}  // namespace simulated
