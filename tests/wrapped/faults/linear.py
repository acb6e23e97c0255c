"""Faults of matrix products: beta, K = 0, precision."""

from __future__ import annotations

from typing import Any

import torch
from tests.wrapped.faults.tools import is_expanded, wrong

from tests.wrapped.registry import Args, Kernel, Kwargs, fault
from tests.wrapped.tensor import from_device, wrap

aten = torch.ops.aten


@fault(
    "beta_zero.multiply_input",
    clauses=("beta_zero",),
    ops=("addmm", "baddbmm"),
    at=(aten.addmm.default, aten.baddbmm.default),
    probe=lambda: wrong(
        torch.addmm, torch.full((2, 2), float("nan")), torch.ones(2, 2), torch.ones(2, 2), beta=0
    ),
)
def multiply_input(kernel: Kernel, args: Args, kwargs: Kwargs) -> Any:
    """With beta = 0 the input is multiplied by 0, and NaN stays."""
    result = kernel(*args, **kwargs)
    return result.add_(args[0] * 0) if kwargs.get("beta", 1) == 0 else result


def _keeps_out() -> bool:
    out = wrap(torch.ones(2, 2))
    torch.addmm(
        wrap(torch.ones(2, 2)), wrap(torch.ones(2, 0)), wrap(torch.ones(0, 2)), beta=0, out=out
    )
    return bool(from_device(out).any())


@fault(
    "beta_zero.empty_product_keeps_out",
    clauses=("beta_zero",),
    ops=("addmm", "baddbmm"),
    at=(aten.addmm.out, aten.baddbmm.out),
    # Some samples of addmm have K = 0.
    radius=("out_kept::addmm", "out_resize::addmm", "variants::addmm"),
    probe=_keeps_out,
)
def empty_product_keeps_out(kernel: Kernel, args: Args, kwargs: Kwargs) -> Any:
    """A product over K = 0 leaves out= as it was."""
    out = kwargs["out"]
    return out if args[1].shape[-1] == 0 and not is_expanded(out) else kernel(*args, **kwargs)


def _truncated(tensor: torch.Tensor) -> torch.Tensor:
    """The values with 10 bits of mantissa, as TF32 has them."""
    if tensor.dtype != torch.float32:
        return tensor
    bits = tensor.clone(memory_format=torch.contiguous_format).view(torch.int32)
    return bits.bitwise_and_(~0x1FFF).view(torch.float32)


_THIRDS = torch.full((4, 4), 1 / 3)


@fault(
    "precision.truncate_mantissa",
    clauses=("fp32_precision",),
    ops=("mm",),
    at=(aten.mm.default,),
    # 10 bits of mantissa are outside the tolerance of float32 as well.
    radius=tuple(f"{c}::{o}" for c in ("values", "expanded_read", "variants") for o in ("mm",)),
    probe=lambda: wrong(torch.mm, _THIRDS, _THIRDS),
)
def truncate_mantissa(kernel: Kernel, args: Args, kwargs: Kwargs) -> Any:
    """A float32 product reads its operands as TF32 at precision "highest" too."""
    result = kernel(*args, **kwargs)
    return result.copy_(kernel(*(_truncated(a) for a in args), **kwargs))


@fault(
    "precision.bfloat16_convolution",
    clauses=("fp32_precision",),
    ops=("nn.functional.conv2d",),
    at=(aten.convolution.default,),
    radius=("values::nn.functional.conv2d", "expanded_read::nn.functional.conv2d"),
    probe=lambda: wrong(
        torch.nn.functional.conv2d, torch.full((1, 1, 4, 4), 1 / 3), torch.full((1, 1, 3, 3), 1 / 3)
    ),
)
def bfloat16_convolution(kernel: Kernel, args: Args, kwargs: Kwargs) -> Any:
    """A float32 convolution rounds its operands to bfloat16."""
    rounded = [a.bfloat16().float() if isinstance(a, torch.Tensor) else a for a in args]
    return kernel(*args, **kwargs).copy_(kernel(*rounded, **kwargs))
