"""Cases of the clause streams.in_order about ops: each runs on the current stream, after the work that was queued there
before it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
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
from conformance.checks.behaviour.queued_work import hold_stream
from conformance.checks.cases.cases import Cases
from conformance.checks.cases.context import CaseContext
from conformance.checks.cases.held_streams import WaitingCall
from devices.failure import Kind

cases = Cases(Kind.ORDER)


@cases("streams.in_order", over={f"{family}_on_a_stream": (family,) for family in FAMILIES})
def on_a_stream(context: CaseContext, family: str) -> None:
    """Queue on a busy side stream a copy that overwrites the operands, and an op of each kind of a family: the results must
    equal the CPU's for the new operands. An op that runs on another stream reads the old operands, and an op whose
    library uses another stream's workspace may read a wrong workspace."""
    stream = context.stream()
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
        queue = partial(_overwritten, stream, op, there, source)
        # Some ops block the host until they know their result: then the stream goes on at once.
        with hold_stream(context, stream) as hold, WaitingCall(queue) as call:
            if call.is_early():
                hold.give_others_a_turn()
            hold.release()
        stream.synchronize()
        found[name], want_of[name] = call.value, wanted(op, new)
    if not found:
        raise NotImplementedError(none_implemented(family))
    for name, result in found.items():
        want = want_of[name]
        text = f"the result of {name} on a side stream differs from the CPU's"
        error = accepted_error(want)
        context.assert_close(result, want.to(result.dtype), text, rtol=1e-4, atol=error)


def _overwritten(
    stream: Any,
    op: Callable[..., torch.Tensor],
    operands: Sequence[torch.Tensor],
    source: Sequence[torch.Tensor],
) -> torch.Tensor:
    """Queues on a stream copies that overwrite the operands, and the op. Returns the result of the op."""
    with stream:
        for target, each in zip(operands, source, strict=True):
            target.copy_(each)
        return op(*operands)
