"""Cases of the clause streams.in_order about ops: each runs on the current stream, after the work that was queued there
before it."""

from __future__ import annotations

from typing import Any

import torch

from conformance.checks.behaviour.ops_of_families import (
    FAMILIES,
    accepted_error,
    none_implemented,
    operands_of,
    ops_of,
    wanted,
)
from conformance.checks.cases.cases import Cases
from conformance.checks.cases.context import CaseContext
from devices.failure import Kind

cases = Cases(Kind.ORDER)

#: Work that takes longer than it takes to queue an op: launches over this many elements.
_LAUNCHES, _ELEMENTS = 20, 2**20


@cases("streams.in_order", over={f"{family}_on_a_stream": (family,) for family in FAMILIES})
def on_a_stream(context: CaseContext, family: str) -> None:
    """Queue on a side stream some work, a copy that overwrites the operands, and an op of each kind of a family: the
    results must equal the CPU's for the new operands. An op that runs on another stream, or whose library uses another
    stream's workspace, may read the old operands."""
    stream = context.stream()
    busy = torch.zeros(_ELEMENTS, device=context.device)
    old, new = operands_of(family, 0), operands_of(family, 1)
    want_of: dict[str, Any] = {}
    found: dict[str, torch.Tensor] = {}
    for name, op in ops_of(family):
        there = [context.to_device(each) for each in old]
        source = [context.to_device(each) for each in new]
        try:
            op(*there)  # the first call of an op may compile, or create the library's handle
        except NotImplementedError:
            continue
        context.settle()
        with stream:
            for _ in range(_LAUNCHES):
                busy.add_(1)
            for target, each in zip(there, source, strict=True):
                target.copy_(each)
            result = op(*there)
        stream.synchronize()
        found[name], want_of[name] = result, wanted(op, new)
    if not found:
        raise NotImplementedError(none_implemented(family))
    for name, result in found.items():
        want = want_of[name]
        text = f"the result of {name} on a side stream differs from the CPU's"
        error = accepted_error(want)
        context.assert_close(result, want.to(result.dtype), text, rtol=1e-4, atol=error)
