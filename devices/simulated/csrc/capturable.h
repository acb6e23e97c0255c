// Which calls can be captured, and why others cannot.

#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>

#include <string>

namespace simulated {

// Why no call of an op can be captured; empty if nothing does.
std::string why_op_not_capturable(const c10::OperatorHandle& op);
// The same for one call of an op; `call` holds the aliases of its arguments.
std::string why_call_not_capturable(const c10::OperatorHandle& op, const torch::jit::Stack& call);

}  // namespace simulated
