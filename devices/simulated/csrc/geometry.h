// What a kernel will return, known before it runs, so that the call can be queued while the host continues.
//
// It is found by running the CPU's kernel once over scratch memory of the same geometry, on the calling thread, and
// remembered by signature. Meta kernels would do as well if their strides were always those of the CPU.

#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>

#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>
#include <vector>

namespace simulated {

// One result of a call.
struct ResultGeometry {
  int argument = -1;  // the argument that is returned; -1: a new tensor
  bool undefined = false;  // no tensor at all
  std::vector<int64_t> sizes, strides;
  caffe2::TypeMeta dtype;
  bool conjugate = false, negative = false;
  size_t bytes = 0;  // of storage, from the first element on
};

// An argument that the call resizes: it had no elements, or its storage is large enough.
struct ReshapedArgument {
  size_t argument;
  std::vector<int64_t> sizes, strides;
  size_t bytes;  // of storage
};

struct CallGeometry {
  bool known = false;  // false: only the call itself shows it, so it must be waited for
  std::vector<ResultGeometry> results;
  std::vector<ReshapedArgument> reshaped;  // if nothing else prevents it from being known
  std::exception_ptr error;  // what the trial raised, if it did
};

// How a call is run on CPU tensors.
using RunCall = std::function<void(torch::jit::Stack&)>;

// What one op is known to return.
class Geometries {
 public:
  // `call` holds the aliases of the arguments, of which only the geometry is read.
  // `captured`: the call will be replayed, so a warning or error caused by the zeros in scratch memory does not matter.
  // Otherwise the result is then not `known`: the call itself must warn or raise.
  std::shared_ptr<const CallGeometry> of(const RunCall& run, const torch::jit::Stack& call, bool captured);

 private:
  std::mutex mutex_;
  std::unordered_map<std::string, std::shared_ptr<const CallGeometry>> known_;
};

// Whether an op's calls may be queued: its results' geometry depends on no values, it raises for no values, and it
// draws no random numbers.
bool may_be_queued(const c10::OperatorHandle& op);

// A scalar on the host among the arguments: the caller may overwrite it as soon as the call returns.
bool is_host_scalar(const at::Tensor& argument);

// The memory of a kernel's result from its first element on: address and bytes.
std::pair<const char*, size_t> elements_of(const at::Tensor& made);

}  // namespace simulated
