// Other arithmetic than the CPU's: with SIMULATED_ARITHMETIC=float64 each kernel computes in float64 and rounds its result
// once. The device is right then, and differs from the CPU wherever that rounds on the way: what a suite says of it that it
// does not say of the device as it is by default is a false alarm.

#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>

#include <vector>

namespace simulated {

// Whether this device computes so, and an op may be computed so.
bool computes_wider(const c10::OperatorHandle& op);

// A call whose operands are as wide as they can be.
class Wider {
 public:
  // Before the call is made. `written`, by argument: the op writes to it.
  Wider(const c10::OperatorHandle& op, const std::vector<bool>& written, const torch::jit::Stack& call);

  // After the call has been made: computes it again, and writes what that gives into its results and the arguments that
  // it wrote to. Does nothing where the CPU takes no such call.
  void round_into(torch::jit::Stack& results);

 private:
  void widen(c10::IValue& value, bool written);

  const c10::OperatorHandle& op_;
  const std::vector<bool>& written_;
  torch::jit::Stack given_, wide_;
  bool differs_ = false;
};

}  // namespace simulated
