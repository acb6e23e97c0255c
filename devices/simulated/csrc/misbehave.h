// Planted faults of kernels: what is done wrong before or after the CPU's kernel ran.

#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>

#include <string>
#include <vector>

#include "faults.h"

namespace simulated {

// One call as a fault sees it: on the device's side, in terms of aliases.
struct Call {
  const c10::OperatorHandle& runs;
  // The aliases of the arguments as they came.
  c10::ArrayRef<c10::IValue> given;
  // Before the kernel: what it will be given. After it: what it returned.
  torch::jit::Stack& stack;

  at::Tensor argument(size_t place) const { return given[place].toTensor(); }
  // The last argument: out= of those ops that have one.
  at::Tensor out() const { return given.back().toTensor(); }
  at::Tensor result() const { return stack[0].toTensor(); }
  // The kernel's result for the same call with another tensor in one place.
  at::Tensor with(size_t place, const at::Tensor& other) const;
};

struct Misbehaviour {
  Fault fault;
  std::vector<std::string> ops;  // "aten::exp.out"
  void (*before)(Call&);         // each may be nullptr
  void (*after)(Call&);
};

// The faults of one op, by its full name.
std::vector<const Misbehaviour*> misbehaviours_of(const std::string& op);

// The ops in which a fault is planted.
std::vector<std::string> places_of(const std::string& fault);

}  // namespace simulated
