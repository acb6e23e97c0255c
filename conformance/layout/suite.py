"""The layout suite of one item: every check, in an order in which the gentlest comes first."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from typing import Any

import torch

from conformance.layout import (
    addressing,
    calls,
    determinism,
    inplace,
    linear,
    memory_format,
    out,
    overlap,
    promotion,
    reductions,
    special,
    variants,
)
from conformance.layout.context import ItemContext
from opinfo.seeding import direct_seeding

CHECKS: tuple[Callable[[ItemContext], None], ...] = (
    calls.check,
    variants.check,
    out.check,
    inplace.check,
    overlap.check,
    determinism.check,
    addressing.check,
    memory_format.check,
    promotion.check,
    special.check,
    linear.check,
    reductions.check,
)

#: Those that look at the samples: the others make tensors of their own, whatever the samples are.
SAMPLED: tuple[Callable[[ItemContext], None], ...] = (
    calls.check,
    variants.check,
    out.check,
    inplace.check,
    overlap.check,
    determinism.check,
)


def run(
    ctx: ItemContext, checks: Sequence[Callable[[ItemContext], None]] = CHECKS
) -> list[dict[str, Any]]:
    """Run the selected clauses of one (op, dtype); the outcome of each, in the contract's order."""
    if ctx.recorder:
        _check(ctx, checks)
    return [record.document() for record in ctx.recorder.cells.values()]


def _check(ctx: ItemContext, checks: Sequence[Callable[[ItemContext], None]]) -> None:
    precision = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("highest")
    kind = ctx.device.torch_device.type
    always = torch.is_warn_always_enabled()
    # A warning that torch gives once a process would be seen in one cell only.
    torch.set_warn_always(True)
    try:
        with torch.no_grad(), warnings.catch_warnings(), direct_seeding(kind):
            warnings.simplefilter("ignore")
            for check in checks:
                check(ctx)
            # A failure of queued work belongs to the item that queued it, not to the next.
            ctx.device.synchronise()
    finally:
        torch.set_float32_matmul_precision(precision)
        torch.set_warn_always(always)
