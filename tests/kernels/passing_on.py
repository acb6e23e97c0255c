"""Kernels that pass each call on to the op that they replace: they delegate, and nothing else is wrong with them."""

from __future__ import annotations

from typing import Any

import torch

from tests.kernels import references
from tests.kernels.entries import Register

passing_on = Register()
DELEGATES = "kernel.delegates"


@passing_on("aten::t_", DELEGATES)
def transpose_in_place(*args: Any) -> Any:
    return torch.ops.aten.t_(*args)


@passing_on("aten::cumsum.out", DELEGATES)
def cumsum_into(*args: Any, **kwargs: Any) -> Any:
    return torch.ops.aten.cumsum.out(*args, **kwargs)


@passing_on("aten::empty_strided.out", DELEGATES)
def empty_into(*args: Any, **kwargs: Any) -> Any:
    return torch.ops.aten.empty_strided.out(*args, **kwargs)


@passing_on("aten::masked_fill_.Scalar", DELEGATES)
def masked_fill_in_place(*args: Any, **kwargs: Any) -> Any:
    return torch.ops.aten.masked_fill_.Scalar(*args, **kwargs)


@passing_on("", DELEGATES, reference=references.attention, samples=references.heads, shapes=False)
def attention_as_its_reference(*args: Any) -> Any:
    """It calls the op of its reference, and not the reference."""
    return torch.nn.functional.scaled_dot_product_attention(*args)
