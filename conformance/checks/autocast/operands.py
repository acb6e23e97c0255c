"""Operands of cases under autocast whose values are not exact in a lower precision."""

from __future__ import annotations

import torch

from conformance.checks.cases.context import CaseContext


def operand(context: CaseContext, *shape: int, first: int = 1) -> torch.Tensor:
    """Return a device tensor of the given shape with values from 0.1 to 0.9 that are not exact in a lower precision."""
    count = int(torch.Size(shape).numel())
    values = ((torch.arange(count) * 37 + 11 * first) % 101).float() * (0.8 / 101) + 0.1003
    return context.to_device(
        values.reshape(shape).clone()
    )  # a clone, because the cache does not keep views


def leaf(context: CaseContext, *shape: int, first: int = 5) -> torch.Tensor:
    return operand(context, *shape, first=first).requires_grad_()
