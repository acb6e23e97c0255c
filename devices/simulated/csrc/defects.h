// Defects of some of the CPU's kernels and how this device works around them, so that its own list of expected failures
// stays short. Each was found by the suite: devices/cpu/expected.toml says more.

#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/stack.h>

#include <string>
#include <vector>

namespace simulated {

struct Defect {
  bool inputs_as_dense = false;   // reads dimensions of stride 0, or other strides, wrongly: gets contiguous copies
  bool outputs_as_dense = false;  // writes to out= as if it were contiguous, or lets self grow: gets one, copied back
  bool reads_unwritten_pivots = false;  // least squares by gelsy: another driver is taken where none is asked for

  bool lists_as_dense = false;  // takes lists of tensors as if all were contiguous: gets such copies, copied back

  bool small_inputs_as_dense = false;  // reads inputs of up to two dimensions, such as statistics, in a row: gets copies

  bool halves_as_float = false;  // with lists_as_dense: loses what it computes in 16 bits, gets float32

  explicit operator bool() const {
    return inputs_as_dense || outputs_as_dense || reads_unwritten_pivots || lists_as_dense ||
        small_inputs_as_dense;
  }
};

Defect defect_of(const std::string& op);

// The call with dense copies in the places that the defect concerns.
class Staged {
 public:
  // `written` says by argument whether the op writes to it. Precondition: inside a KernelScope.
  Staged(const Defect& defect, const std::vector<bool>& written, bool in_place, torch::jit::Stack& call);
  // After the kernel ran: copies back, and replaces the copies by the originals. Throws c10::Error if an in-place op
  // changed the shape of self.
  void copy_back(torch::jit::Stack& results);

 private:
  // The list with dense copies of tensors that are not contiguous, and of those of 16 bits if they go through float32.
  std::vector<at::Tensor> dense(std::vector<at::Tensor> list, bool written, bool halves_as_float);

  bool in_place_;
  bool as_gelsy_ = false;  // least squares: gelsy gives neither residuals nor singular values
  std::vector<std::pair<at::Tensor, at::Tensor>> copies_;  // original, copy
};

}  // namespace simulated
