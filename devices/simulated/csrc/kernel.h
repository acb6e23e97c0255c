// One op of the device: the CPU's kernel, run on the device's own memory.

#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/ivalue.h>
#include <ATen/core/stack.h>
#include <torch/library.h>

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "alias.h"
#include "defects.h"
#include "geometry.h"
#include "misbehave.h"
#include "seen.h"
#include "stream.h"

namespace simulated {

class Kernel final : public c10::OperatorKernel {
 public:
  // `runs` is the op whose CPU kernel does the work: `op` itself if the CPU has one.
  Kernel(const c10::OperatorHandle& op, const c10::OperatorHandle& runs);

  void operator()(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack);

 private:
  int find_device(const torch::jit::Stack& stack, size_t from) const;
  void check_tensor(const at::Tensor& tensor, size_t place, int device) const;
  void replace_argument(c10::IValue& value, size_t place, Queue& queue, Aliases& aliases) const;

  // Queues the call and returns its results' tensors, whose elements are written when the queue runs it.
  // While the queue is capturing, records it instead.
  torch::jit::Stack queue_call(const CallGeometry& geometry, torch::jit::Stack call, Queue& queue, Aliases& aliases) const;
  std::shared_ptr<const CallGeometry> geometry_of(const torch::jit::Stack& call, bool captured);
  // Throws if a call cannot be captured: the call's own error, or why it cannot be captured.
  void check_capturable(Queue& queue, const CallGeometry& geometry, const torch::jit::Stack& call) const;
  void run(torch::jit::Stack& call) const;
  void compute(torch::jit::Stack& call) const;
  void run_faulty(torch::jit::Stack& call) const;

  std::string name_;
  c10::OperatorHandle runs_;
  size_t arguments_;
  std::vector<bool> written_;         // by argument: the schema says that the op writes to it
  std::vector<bool> may_be_on_cpu_;   // by argument: of any size, where the op reads it on the host
  Defect defect_;
  bool in_place_;
  bool computes_wider_;
  bool may_be_queued_;
  std::string why_not_capturable_;  // empty: its calls can be captured
  Geometries geometries_;
  std::vector<const Misbehaviour*> misbehaviours_;
  Seen seen_;
};

// Registers the ops that torch asks of a device's convolutions (convolution.cpp).
void register_convolution(torch::Library& library);
// Registers a kernel for every aten op that has one for the CPU but not for this device.
void register_kernels();
// Replaces a tensor of a result in place; lists too.
void replace_result(c10::IValue& value, Aliases& aliases);

}  // namespace simulated
