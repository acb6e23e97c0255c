// Planted faults of kernels: what is done wrong before or after the CPU's kernel ran.

#pragma once

#include <ATen/core/ivalue.h>
#include <ATen/core/stack.h>

#include <string>
#include <vector>

#include "faults.h"

namespace simulated {

// One call as a fault sees it: on the device's side, in terms of aliases.
struct Call {
  const std::string& op;                  // "aten::exp.out"
  c10::ArrayRef<c10::IValue> originals;   // the arguments, as they came
  torch::jit::Stack& stack;               // before: aliases of the arguments; after: what the kernel returned
  c10::ArrayRef<c10::IValue> arguments;   // after: the aliases that it was given
};

struct Misbehaviour {
  Fault fault;
  std::vector<std::string> ops;
  void (*before)(Call&);                  // each may be nullptr
  void (*after)(Call&);
};

// Those of one op, by its full name.
std::vector<const Misbehaviour*> misbehaviours_of(const std::string& op);

}  // namespace simulated
