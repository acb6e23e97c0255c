// Cells of recurrent layers, which torch asks of devices other than the CPU as one op each: made of the device's ops.
//
// Gates lie beside one another in dimension 1, in the order and with the workspace of ATen's kernels for CUDA
// (ATen/native/cuda/RNN.cu).

#include <ATen/core/Tensor.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/zeros_like.h>
#include <torch/library.h>

#include <tuple>

namespace simulated {

namespace {

using OptionalTensor = std::optional<at::Tensor>;

// ATen/TensorOperators.h has these, and includes every op there is, which takes seconds to compile.
at::Tensor operator+(const at::Tensor& left, const at::Tensor& right) {
  return left.add(right);
}
at::Tensor operator-(const at::Tensor& left, const at::Tensor& right) {
  return left.sub(right);
}
at::Tensor operator*(const at::Tensor& left, const at::Tensor& right) {
  return left.mul(right);
}
at::Tensor operator-(int left, const at::Tensor& right) {
  return right.neg().add(left);
}

at::Tensor with_bias(const at::Tensor& gates, const OptionalTensor& bias) {
  return bias.has_value() && bias->defined() ? gates + *bias : gates;
}

at::Tensor beside(at::TensorList gates) {
  return at::cat(gates, 1);
}

// The gradient of a sigmoid, or of a tanh, by its result.
at::Tensor behind_sigmoid(const at::Tensor& grad, const at::Tensor& result) {
  return grad * (1 - result) * result;
}
at::Tensor behind_tanh(const at::Tensor& grad, const at::Tensor& result) {
  return grad * (1 - result * result);
}

std::tuple<at::Tensor, at::Tensor, at::Tensor> lstm_cell(
    const at::Tensor& input_gates, const at::Tensor& hidden_gates, const at::Tensor& cx,
    const OptionalTensor& input_bias, const OptionalTensor& hidden_bias) {
  const auto gates = (with_bias(input_gates, input_bias) + with_bias(hidden_gates, hidden_bias)).chunk(4, 1);
  const at::Tensor in = gates[0].sigmoid(), forget = gates[1].sigmoid(), cell = gates[2].tanh();
  const at::Tensor out = gates[3].sigmoid();
  const at::Tensor cy = forget * cx + in * cell;
  return {out * cy.tanh(), cy, beside({in, forget, cell, out})};
}

// To the gates, to cx and, where there is one, to both biases.
std::tuple<at::Tensor, at::Tensor, at::Tensor> lstm_cell_backward(
    const OptionalTensor& grad_hy, const OptionalTensor& grad_cy, const at::Tensor& cx, const at::Tensor& cy,
    const at::Tensor& workspace, bool has_bias) {
  const bool has_hy = grad_hy.has_value() && grad_hy->defined(), has_cy = grad_cy.has_value() && grad_cy->defined();
  if (!has_hy && !has_cy) {
    return {};
  }
  const auto gates = workspace.chunk(4, 1);
  const at::Tensor &in = gates[0], &forget = gates[1], &cell = gates[2], &out = gates[3];
  const at::Tensor to_hy = has_hy ? *grad_hy : at::zeros_like(cx), squashed = cy.tanh();
  at::Tensor to_cy = behind_tanh(to_hy * out, squashed);
  if (has_cy) {
    to_cy = to_cy + *grad_cy;
  }
  const at::Tensor to_gates = beside(
      {behind_sigmoid(to_cy * cell, in), behind_sigmoid(to_cy * cx, forget), behind_tanh(to_cy * in, cell),
       behind_sigmoid(to_hy * squashed, out)});
  return {to_gates, to_cy * forget, has_bias ? to_gates.sum(0) : at::Tensor()};
}

std::tuple<at::Tensor, at::Tensor> gru_cell(
    const at::Tensor& input_gates, const at::Tensor& hidden_gates, const at::Tensor& hx,
    const OptionalTensor& input_bias, const OptionalTensor& hidden_bias) {
  const auto from_input = with_bias(input_gates, input_bias).chunk(3, 1);
  const auto from_hidden = with_bias(hidden_gates, hidden_bias).chunk(3, 1);
  const at::Tensor reset = (from_input[0] + from_hidden[0]).sigmoid();
  const at::Tensor update = (from_input[1] + from_hidden[1]).sigmoid();
  const at::Tensor fresh = (from_input[2] + reset * from_hidden[2]).tanh();
  return {fresh + update * (hx - fresh), beside({reset, update, fresh, hx, from_hidden[2]})};
}

// To the gates of the input and of the hidden state, to hx and, where there are some, to the biases.
std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor, at::Tensor> gru_cell_backward(
    const at::Tensor& grad_hy, const at::Tensor& workspace, bool has_bias) {
  const auto kept = workspace.chunk(5, 1);
  const at::Tensor &reset = kept[0], &update = kept[1], &fresh = kept[2], &hx = kept[3], &hidden = kept[4];
  const at::Tensor to_fresh = behind_tanh(grad_hy * (1 - update), fresh);
  const at::Tensor to_update = behind_sigmoid(grad_hy * (hx - fresh), update);
  const at::Tensor to_reset = behind_sigmoid(to_fresh * hidden, reset);
  const at::Tensor to_input = beside({to_reset, to_update, to_fresh});
  const at::Tensor to_hidden = beside({to_reset, to_update, to_fresh * reset});
  return {
      to_input, to_hidden, grad_hy * update, has_bias ? to_input.sum(0) : at::Tensor(),
      has_bias ? to_hidden.sum(0) : at::Tensor()};
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("_thnn_fused_lstm_cell", lstm_cell);
  m.impl("_thnn_fused_lstm_cell_backward_impl", lstm_cell_backward);
  m.impl("_thnn_fused_gru_cell", gru_cell);
  m.impl("_thnn_fused_gru_cell_backward", gru_cell_backward);
}

}  // namespace
}  // namespace simulated
