"""Accepts each result of an attention for keys and values that its mask removes and that are NaN or infinite.

The documented formula adds minus infinity to a removed score, which leaves a NaN, and multiplies the value by 0. A kernel
may as well overwrite the score, or skip the key, because a removed element takes no part in the attention
(torch.nn.functional.scaled_dot_product_attention). Only such rows are concerned: a NaN or infinity that a query attends to
reaches its row of the result. Repro scripts contain these functions, which need only torch.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch

from opinfo.compare import Tolerances

#: The most products of weights and values. Calls with more have no special values.
_MOST = 2**24


def with_masked_scores(
    read: Any,
    want: Any,
    arguments: Callable[[list[torch.Tensor], torch.device], Any],
    values: Sequence[torch.Tensor],
    tolerances: Tolerances,
) -> Any:
    """Returns ``read``, the result of an attention, with the elements of ``want``, the CPU's result, at the places where
    the element of ``read`` is right although it differs. ``values`` are the operands, and ``arguments`` makes the
    arguments of the call from them. Other results are returned unchanged."""
    if not (isinstance(read, torch.Tensor) and isinstance(want, torch.Tensor)):
        return read
    if read.shape != want.shape or read.dtype != want.dtype:
        return read
    finite = all(bool(each.isfinite().all()) for each in values[1:3])  # key and value
    if finite or want.numel() * values[1].shape[-2] > _MOST:
        return read
    args, kwargs = arguments(list(values), torch.device("cpu"))
    rows, others = _results_beside_mask(*args, **kwargs)
    rtol, atol = tolerances.get(str(want.dtype).removeprefix("torch."), (0.0, 0.0))
    right = torch.zeros(want.shape, dtype=torch.bool)
    for each in others:
        right |= torch.isclose(read, each.to(want.dtype), rtol=rtol, atol=atol, equal_nan=True)
    return torch.where(rows.unsqueeze(-1) & right, want, read)


def _results_beside_mask(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attn_mask: torch.Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> tuple[torch.Tensor, list[torch.Tensor]]:
    """Returns the rows of the result, as a mask, of whose query a removed key or value has an element that is not finite;
    and two results in float64: that of a kernel which overwrites removed scores, and that of one which also skips the
    values."""
    heads = query.shape[-3] if query.dim() > 2 else 1
    q, k, v = (each.double() for each in (query, key, value))
    if enable_gqa:
        k, v = (each.repeat_interleave(heads // each.shape[-3], -3) for each in (k, v))
    scores = q @ k.mT * (1 / math.sqrt(query.shape[-1]) if scale is None else scale)
    removed = torch.zeros_like(scores, dtype=torch.bool)
    if attn_mask is not None and attn_mask.dtype == torch.bool:
        removed = removed | ~attn_mask
    elif attn_mask is not None:
        removed = removed | (attn_mask == -math.inf)
        scores = scores + attn_mask
    if is_causal:
        removed = removed | torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1)
    special = ~(k.isfinite().all(-1) & v.isfinite().all(-1)).unsqueeze(-2)
    weights = scores.masked_fill(removed, -math.inf).softmax(-1)
    weights = weights.masked_fill(removed.all(-1, keepdim=True), 0.0)
    terms = weights.unsqueeze(-1) * v.unsqueeze(-3)
    skipped = terms.masked_fill(removed.unsqueeze(-1), 0.0)
    return (removed & special).any(-1), [terms.sum(-2), skipped.sum(-2)]
