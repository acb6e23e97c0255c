"""Cases of the clause device.placement about ops: their values do not depend on the device index and on the thread."""

from __future__ import annotations

from collections.abc import Callable
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

cases = Cases(Kind.VALUES)


def _tried(context: CaseContext, family: str, index: int, seed: int) -> dict[str, Any]:
    """Returns the results of the ops of a family on a device index, each with its index, copied to the CPU. For an op that
    the device does not implement, there is no result. Raises NotImplementedError if it implements none of them."""
    there = [context.to_device(each, index) for each in operands_of(family, seed)]
    found: dict[str, Any] = {}
    for name, op in ops_of(family):
        try:
            result = op(*there)
        except NotImplementedError:
            continue
        found[name] = (result.device.index, result.to("cpu"))
    if not found:
        raise NotImplementedError(none_implemented(family))
    return found


def _judge(context: CaseContext, family: str, found: dict[str, Any], seed: int, at: str) -> None:
    ops: dict[str, Callable[..., torch.Tensor]] = dict(ops_of(family))
    for name, (_, result) in found.items():
        want = wanted(ops[name], operands_of(family, seed))
        text = f"the result of {name} differs from the CPU's"
        error = accepted_error(want)
        context.assert_close(result, want.to(result.dtype), text, at, rtol=1e-4, atol=error)


@cases(
    "device.placement",
    over={f"{family}_on_each_index": (family,) for family in FAMILIES},
    requires={"multi_device"},
    indices=2,
)
def on_each_index(context: CaseContext, family: str) -> None:
    """Call a few ops of a family on each device index, while that index is current and while another is: the results must
    be on that index and equal the CPU's."""
    implemented = sorted(_tried(context, family, 0, seed=0))
    for index in context.indices[:2]:
        for current in (index, 1 - index):
            with context.on(current):
                found = _tried(context, family, index, seed=index)
            at = f"on index {index} while index {current} is current"
            context.same(sorted(found), implemented, f"other ops are implemented {at}")
            elsewhere = {name: place for name, (place, _) in found.items() if place != index}
            context.same(elsewhere, {}, f"a result {at} is on another index", Kind.DEVICE)
            _judge(context, family, found, index, at)


@cases("device.placement", over={f"{family}_in_threads": (family,) for family in FAMILIES})
def in_threads(context: CaseContext, family: str) -> None:
    """Call a few ops of a family in two new threads at the same time, and then in the main thread: the results must equal
    the CPU's."""
    both = context.together(
        lambda: _tried(context, family, 0, seed=0), lambda: _tried(context, family, 0, seed=1)
    )
    in_main = _tried(context, family, 0, seed=2)
    for seed, found in enumerate((*both, in_main)):
        at = "in the main thread" if seed == 2 else "in one of two new threads"
        context.same(sorted(found), sorted(in_main), f"other ops are implemented {at}")
        _judge(context, family, found, seed, at)
