"""Faults of matrix products: beta, K = 0, precision."""

from __future__ import annotations

from typing import Any

import torch

from tests.planting.calls import NOT_MET, KernelCall
from tests.planting.tensors import is_expanded
from tests.wrapped.faults.probing import wrong
from tests.wrapped.registry import fault, may_change, probe
from tests.wrapped.tensor import from_device, wrap


def _keeps_nan() -> bool:
    two = torch.ones(2, 2)
    return wrong(torch.addmm, two * float("nan"), two, two, beta=0)


@fault("beta_zero.multiply_input", "beta_zero", ops="addmm baddbmm")
@probe(_keeps_nan)
def _(call: KernelCall) -> Any:
    """With beta = 0 the input is multiplied by 0, and NaN stays."""
    return call.honest().add_(call.first * 0) if call.values["beta"] == 0 else NOT_MET


def _keeps_out() -> bool:
    out, empty = wrap(torch.ones(2, 2)), torch.ones(2, 0)
    torch.addmm(wrap(torch.ones(2, 2)), wrap(empty), wrap(empty.t()), beta=0, out=out)
    return bool(from_device(out).any())


@fault(
    "beta_zero.empty_product_keeps_out",
    "beta_zero",
    ops="addmm baddbmm",
    at="addmm.out baddbmm.out",
)
@probe(_keeps_out)
# Some samples of addmm have K = 0.
@may_change("out_kept::addmm out_resize::addmm variants::addmm")
def _(call: KernelCall) -> Any:
    """A product over K = 0 leaves out= as it was."""
    out = call.kwargs["out"]
    return out if call.args[1].shape[-1] == 0 and not is_expanded(out) else NOT_MET


def _truncated(tensor: torch.Tensor) -> torch.Tensor:
    """The values with 10 bits of mantissa, as TF32 has them."""
    if tensor.dtype != torch.float32:
        return tensor
    bits = tensor.clone(memory_format=torch.contiguous_format).view(torch.int32)
    return bits.bitwise_and_(~0x1FFF).view(torch.float32)


_THIRDS = torch.full((4, 4), 1 / 3)


@fault("precision.truncate_mantissa", "fp32_precision", ops="mm")
@probe(lambda: wrong(torch.mm, _THIRDS, _THIRDS))
# 10 bits of mantissa are outside the tolerance of float32 as well.
@may_change("values::mm expanded_read::mm variants::mm")
def _(call: KernelCall) -> Any:
    """A float32 product reads its operands as TF32 at precision "highest" too."""
    return call.honest().copy_(call.function(*map(_truncated, call.args)))


@fault(
    "precision.bfloat16_convolution", "fp32_precision", ops="nn.functional.conv2d", at="convolution"
)
@probe(lambda: wrong(torch.nn.functional.conv2d, _THIRDS[None, None], _THIRDS[None, None, 1:, 1:]))
@may_change("values::nn.functional.conv2d expanded_read::nn.functional.conv2d")
def _(call: KernelCall) -> Any:
    """A float32 convolution rounds its operands to bfloat16."""
    rounded = [a.bfloat16().float() if isinstance(a, torch.Tensor) else a for a in call.args]
    return call.honest().copy_(call.function(*rounded))
