"""Compares two results that the same op computed in the same lower precision."""

from __future__ import annotations

import torch

from conformance.checks.cases.closeness import largest
from conformance.checks.cases.context import CaseContext
from devices.failure import Kind

#: Accepted difference of two results in one dtype, in multiples of its eps times the largest element.
ROUNDINGS = 16.0


def assert_close_in(
    context: CaseContext,
    computed: torch.dtype,
    found: torch.Tensor,
    want: torch.Tensor,
    text: str,
    *,
    may_overflow: bool = False,
) -> None:
    """Checks that two tensors differ by at most a few roundings in the dtype ``computed``. Their own dtypes may differ.

    An element of ``want`` that is not finite fails the check. With ``may_overflow``, the check passes if the element of
    ``found`` is not finite either: one may be NaN and the other an infinity, because an overflow may give both.
    """
    context.same(tuple(found.shape), tuple(want.shape), text, kind=Kind.SHAPE)
    mine, theirs = (_nan_if_not_finite(context, each) for each in (found, want))
    atol = ROUNDINGS * torch.finfo(computed).eps * max(largest(theirs), 1e-3)
    context.assert_close(mine, theirs, text, atol=atol, equal_nan=may_overflow)


def _nan_if_not_finite(context: CaseContext, tensor: torch.Tensor) -> torch.Tensor:
    """Returns a copy of the tensor on the CPU in float64, with NaN in place of each element that is not finite."""
    there = context.from_device(tensor.detach()).double()
    return there.masked_fill(~there.isfinite(), torch.nan)
