"""Direct probes of faults of layers: normalisation, convolution, recurrent layers and attention."""

from __future__ import annotations

import torch
from torch.nn.functional import (
    batch_norm,
    conv1d,
    layer_norm,
    log_softmax,
    scaled_dot_product_attention,
)

from tests.simulated.probes import ones, probe


def differ(got: torch.Tensor, want: torch.Tensor) -> bool:
    """Whether a result is further from the CPU's than rounding takes it, which sums in another order."""
    return not torch.allclose(got.cpu(), want, atol=1e-4)


# Normalisation and convolution


@probe("nn.statistics_move_in_eval")
def _() -> bool:
    mean = ones(2)
    batch_norm(ones(3, 2), mean, ones(2))
    return bool(mean.tolist() != [1.0, 1.0])


@probe("nn.variance_biased")
def _() -> bool:
    x, variance = torch.tensor([[0.0], [2.0]]).to("simulated"), ones(1)
    batch_norm(x, ones(1), variance, training=True, momentum=1.0)
    return bool(abs(variance.item() - 2) > 0.5)


@probe("nn.affine_lost_in_channels_last")
def _() -> bool:
    x = torch.randn(1, 2, 2, 2).to("simulated").to(memory_format=torch.channels_last)
    got = batch_norm(x, ones(2), ones(2), ones(2) * 3, ones(2), eps=0.0)
    return differ(got, (x.cpu() - 1) * 3 + 1)


@probe("nn.weight_gradient_needs_input")
def _() -> bool:
    weight = ones(1, 1, 2).requires_grad_()
    conv1d(ones(1, 1, 3), weight).sum().backward()
    return bool(weight.grad.tolist() != [[[2.0, 2.0]]])


@probe("nn.expanded_cotangent_as_dense")
def _() -> bool:
    bias = ones(2).requires_grad_()
    layer_norm(ones(4, 2), (2,), ones(2), bias).sum().backward()
    return bool(bias.grad.tolist() != [4.0, 4.0])


@probe("nn.cotangent_overwritten")
def _() -> bool:
    x, cotangent = ones(2, 2).requires_grad_(), ones(2, 2)
    log_softmax(x, 1).backward(cotangent)
    return bool(cotangent.tolist() != [[1.0, 1.0], [1.0, 1.0]])


# Recurrent layers


def _layer_wrong(layer: torch.nn.RNNBase, *states: torch.Tensor) -> bool:
    """Whether a layer of two features gives another output than on the CPU."""
    x, state = torch.randn(3, 1, 2), states or None
    want, _ = layer(x, state)
    there = None if state is None else tuple(each.to("simulated") for each in state)
    got, _ = layer.to("simulated")(x.to("simulated"), there)
    return differ(got, want)


@probe("nn.state_of_first_layer")
def _() -> bool:
    state = torch.tensor([[[-1.0, -1.0]], [[1.0, 1.0]]])
    return _layer_wrong(torch.nn.LSTM(2, 2, num_layers=2), state, state)


@probe("nn.reverse_runs_forward")
def _() -> bool:
    return _layer_wrong(torch.nn.GRU(2, 2, bidirectional=True))


# Attention


def _heads(count: int, length: int, width: int = 2) -> torch.Tensor:
    """Values that differ from call to call, so that old memory never holds the right result."""
    return torch.randn(count, 1, length, width).to("simulated")


def _attention_wrong(
    query: torch.Tensor, keys: int, mask: torch.Tensor | None = None, causal: bool = False
) -> bool:
    count, _, _, width = query.shape
    key, value = _heads(count, keys, width), _heads(count, keys, width)
    there = None if mask is None else mask.to("simulated")
    got = scaled_dot_product_attention(query, key, value, there, is_causal=causal)
    here = (each.cpu() for each in (query, key, value))
    return differ(got, scaled_dot_product_attention(*here, mask, is_causal=causal))


@probe("nn.causal_from_the_end")
def _() -> bool:
    return _attention_wrong(_heads(1, 3), 5, causal=True)


@probe("nn.mask_of_first_batch")
def _() -> bool:
    mask = torch.tensor([[True, False], [False, True]]).reshape(2, 1, 1, 2)
    return _attention_wrong(_heads(2, 1), 2, mask)


@probe("nn.masked_row_is_nan")
def _() -> bool:
    mask = torch.tensor([[True, True], [False, False]]).to("simulated")
    result = scaled_dot_product_attention(_heads(1, 2), _heads(1, 2), _heads(1, 2), mask)
    return bool(result.isnan().any())


@probe("nn.mask_gradient_lost")
def _() -> bool:
    mask = ones(2, 2).requires_grad_()
    result = scaled_dot_product_attention(_heads(1, 2), _heads(1, 2), _heads(1, 2), mask)
    return not result.requires_grad


@probe("nn.permuted_query_as_dense")
def _() -> bool:
    query = torch.randn(1, 3, 2, 64).to("simulated").transpose(1, 2)
    return _attention_wrong(query, 2)


@probe("nn.tiles_unwritten")
def _() -> bool:
    return _attention_wrong(_heads(1, 128), 4)


# Products of quantized operands


def _int8(*shape: int) -> torch.Tensor:
    return torch.full(shape, 127, dtype=torch.int8)


@probe("precision.int_mm_in_float32")
def _() -> bool:
    x, y = _int8(17, 2048), _int8(2048, 8)
    y[0] = 126
    return not torch.equal(
        torch._int_mm(x.to("simulated"), y.to("simulated")).cpu(), torch._int_mm(x, y)
    )


def _moved(*operands: torch.Tensor) -> list[torch.Tensor]:
    return [each.to("simulated") for each in operands]


@probe("precision.int8_scale_of_first_output")
def _() -> bool:
    operands = torch.ones(1, 32), _int8(16, 32), torch.arange(16.0)
    found = torch._weight_int8pack_mm(*_moved(*operands))
    return differ(found, torch._weight_int8pack_mm(*operands))


@probe("precision.int4_group_of_128")
def _() -> bool:
    x = torch.ones(1, 128, dtype=torch.bfloat16)
    packed = torch._convert_weight_to_int4pack_for_cpu(
        torch.full((16, 128), 9, dtype=torch.int32), 8
    )
    both = torch.stack((torch.arange(64.0).view(4, 16), torch.zeros(4, 16)), -1).bfloat16()
    moved = _moved(x, packed, both)
    found = torch._weight_int4pack_mm_for_cpu(moved[0], moved[1], 32, moved[2])
    return differ(found, torch._weight_int4pack_mm_for_cpu(x, packed, 32, both))


@probe("precision.scaled_mm_without_bias")
def _() -> bool:
    x = torch.ones(16, 16).to(torch.float8_e4m3fn)
    rows, columns, bias = torch.ones(16, 1), torch.ones(1, 16), torch.ones(16)

    def product(operands: list[torch.Tensor]) -> torch.Tensor:
        x, rows, columns, bias = operands
        return torch._scaled_mm(x, x.t(), rows, columns, bias=bias, out_dtype=torch.float32)

    given = [x, rows, columns, bias]
    return differ(product(_moved(*given)), product(given))
