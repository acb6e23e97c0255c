// Which calls can be captured, and what is said of the others.

#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>

#include <string>

namespace simulated {

// What keeps every call of an op from being captured; empty where nothing does.
std::string why_op_not_capturable(const c10::OperatorHandle& op);
// The same of one call of an op; `call` holds the aliases of its arguments.
std::string why_call_not_capturable(const c10::OperatorHandle& op, const torch::jit::Stack& call);

}  // namespace simulated
