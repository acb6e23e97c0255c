"""Kernels with a fault that a public bug report describes, each named by its report."""

from __future__ import annotations

from typing import Any

import torch

from tests.kernels import right
from tests.kernels.entries import Register

public = Register()
VALUES = "layout.values"


def _row(x: torch.Tensor) -> torch.Tensor:
    """Reads the memory of a tensor as if it were contiguous."""
    span = x.untyped_storage().nbytes() // x.element_size() - x.storage_offset()
    if x.numel() > span:  # an expanded tensor
        return x.contiguous()
    return torch.as_strided(x, (x.numel(),), (1,), x.storage_offset()).view(x.shape)


@public("aten::addcdiv_", VALUES)
def pytorch_118115(
    x: torch.Tensor, a: torch.Tensor, b: torch.Tensor, *, value: Any = 1
) -> torch.Tensor:
    """addcdiv_ writes the result for a transposed self in the order of a contiguous one."""
    found = (x + value * (a * b.reciprocal())).contiguous()
    if x.dim() == 2 and x.numel() and x.stride() == (1, x.shape[0]):
        x.mT.copy_(found.view(x.mT.shape))
        return x
    return x.copy_(found)


@public("aten::clamp.Tensor", VALUES)
def pytorch_67428(x: torch.Tensor, min: Any = None, max: Any = None) -> torch.Tensor:
    """clamp does not propagate NaN in a bound."""
    found = x if min is None else torch.where(x < min, min, x)
    found = found if max is None else torch.where(found > max, max, found)
    return found


@public("aten::mm", VALUES, dtypes=("complex64",))
def pytorch_148599(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """mm ignores the conjugate bit of its second operand."""
    b = torch.conj(b) if b.is_conj() else b
    return (a.unsqueeze(-1).to(torch.complex128) * b.to(torch.complex128)).sum(1).to(a.dtype)


@public("aten::add.Tensor", VALUES)
def pytorch_84364(a: torch.Tensor, b: torch.Tensor, *, alpha: Any = 1) -> torch.Tensor:
    """An operand of one element is read at the beginning of its storage."""
    if isinstance(b, torch.Tensor) and b.numel() == 1 and a.numel() > 1:
        b = torch.as_strided(b, b.shape, b.stride(), 0)
    return right.add(a, b, alpha=alpha)


@public("aten::maximum", VALUES, dtypes=("int64",))
def pytorch_195595(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Integers pass through float32."""
    first, second = a.float(), b.float()
    return torch.where(first > second, first, second).to(torch.result_type(a, b))


@public("aten::index_put_", VALUES)
def pytorch_39227(
    x: torch.Tensor, indices: Any, values: torch.Tensor, accumulate: bool = False
) -> torch.Tensor:
    """index_put_ with accumulate refuses a value without dimensions."""
    if accumulate and not values.dim():
        raise RuntimeError("expected a value with dimensions")
    return x.copy_(torch.ops.aten._unsafe_index_put(x, indices, values, accumulate))


@public("nn.functional.scaled_dot_product_attention", VALUES)
def pytorch_181133(q: Any, k: Any, v: Any, *args: Any, **kwargs: Any) -> torch.Tensor:
    """Attention reads permuted operands as contiguous ones, if the heads are long."""
    if q.shape[-1] >= 8:
        q = _row(q)
    return _attention(q, k, v, *args, **kwargs)


@public("nn.functional.scaled_dot_product_attention", VALUES)
def xpu_5179(q: Any, k: Any, v: Any, *args: Any, **kwargs: Any) -> torch.Tensor:
    """Attention leaves the result unwritten if there is only one key, or none."""
    found = _attention(q, k, v, *args, **kwargs)
    return torch.empty_like(found) if k.shape[-2] < 2 else found


def _attention(
    q: Any,
    k: Any,
    v: Any,
    attn_mask: Any = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: Any = None,
    enable_gqa: bool = False,
) -> torch.Tensor:
    if dropout_p:
        raise NotImplementedError("no dropout")
    if enable_gqa:
        k, v = (t.repeat_interleave(q.shape[-3] // t.shape[-3], -3) for t in (k, v))
    scores = torch.matmul(q, k.mT) * (q.shape[-1] ** -0.5 if scale is None else scale)
    if is_causal:
        ahead = torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1)
        scores = scores.masked_fill(ahead, float("-inf"))
    if attn_mask is not None and attn_mask.dtype == torch.bool:
        scores = scores.masked_fill(~attn_mask, float("-inf"))
    elif attn_mask is not None:
        scores = scores + attn_mask
    return torch.matmul(right.softmax(scores, -1).nan_to_num(0.0), v)


@public("aten::abs", VALUES, dtypes=("complex64",))
def pytorch_125135(x: torch.Tensor) -> torch.Tensor:
    """abs of a strided complex tensor reads real and imaginary parts interleaved."""
    real, imaginary = (x.real, x.imag) if x.is_contiguous() else (_row(x.real), _row(x.imag))
    return torch.empty_like(x, dtype=torch.float32).copy_(torch.hypot(real, imaginary))


@public("aten::_softmax_backward_data", VALUES)
def pytorch_139740(
    gradient: torch.Tensor, output: torch.Tensor, dim: int, input_dtype: Any
) -> torch.Tensor:
    """The saved output is read as a contiguous tensor."""
    output = _row(output)
    return output * (gradient - (gradient * output).sum(dim, keepdim=True))
