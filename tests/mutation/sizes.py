"""Mutants of large tensors: an op is right up to a limit, and wrong past it, in front of the op that a case of the size suite
calls on the CPU.

The name of a mutant is ``cell|change``: ``bmm@65536 batches|slices past 65,535 are zero``. A change that leaves every
result of the case as it was, because it does not apply to results of this kind, is equivalent.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from random import Random
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from conformance import contract
from conformance.checks.cases.cases import BehaviourCase
from conformance.suites import planned_cases
from opinfo.compare import tensors_of
from tests.mutation.kernels import Result
from tests.planting.calls import NOT_MET, Effect, KernelCall
from tests.size.planting import CLAUSE, case_named, tried_here

#: Cases that need more bytes than this are left out.
MEMORY = 2**30

#: What becomes of a result: takes the result, the dimension that exceeds the limit (None: all elements together), the limit.
Spoil = Callable[[torch.Tensor, "int | None", int], torch.Tensor]


class _Refused(RuntimeError):
    """An error as a driver raises it."""


def _gathered(place: Callable[[torch.Tensor, int], torch.Tensor]) -> Spoil:
    """Slices are those of another place."""

    def spoil(result: torch.Tensor, dim: int | None, limit: int) -> torch.Tensor:
        flat = result if dim is not None else result.reshape(-1)
        index = place(torch.arange(flat.shape[dim or 0]), limit)
        moved = flat.index_select(dim or 0, index.clamp(0, flat.shape[dim or 0] - 1))
        return moved.reshape(result.shape)

    return spoil


def _filled(start: Callable[[int, int], int], value: float | None = None) -> Spoil:
    """Slices from a place on are zero, or have another value; None for the value adds one."""

    def spoil(result: torch.Tensor, dim: int | None, limit: int) -> torch.Tensor:
        flat = (result if dim is not None else result.reshape(-1)).clone()
        count = flat.shape[dim or 0]
        first = max(min(start(count, limit), count - 1), 0)
        part = flat.narrow(dim or 0, first, count - first)
        if value is None:
            part.logical_not_() if part.dtype == torch.bool else part.add_(1)
        else:
            part.fill_(value)
        return flat.reshape(result.shape)

    return spoil


def _of_numbers(change: Callable[[torch.Tensor, int], torch.Tensor]) -> Spoil:
    """Integers that are places or counts are changed, as are results of one element."""

    def spoil(result: torch.Tensor, dim: int | None, limit: int) -> torch.Tensor:
        counts = result.dtype == torch.int64 or result.numel() == 1
        return change(result, limit).to(result.dtype) if counts else result

    return spoil


def _raises(message: str) -> Spoil:
    def spoil(result: torch.Tensor, dim: int | None, limit: int) -> torch.Tensor:
        raise _Refused(message)

    return spoil


CHANGES: dict[str, Spoil] = {
    "an index in 16 bits": _gathered(lambda index, limit: index % 2**16),
    "an index modulo the limit": _gathered(lambda index, limit: index % limit),
    "an index in float32": _gathered(lambda index, limit: index.float().long()),
    "an index that stops at the limit": _gathered(lambda index, limit: index.clamp(max=limit - 1)),
    "an index in 15 bits and a sign": _gathered(lambda index, limit: torch.where(index >= limit // 2, index - limit // 2, index)),
    "slices past the limit come one late": _gathered(lambda index, limit: torch.where(index >= limit, index - 1, index)),
    "slices past a grid of 65,535 are zero": _filled(lambda count, limit: 65535, 0),
    "slices past the limit are zero": _filled(lambda count, limit: limit, 0),
    "the last slice is zero": _filled(lambda count, limit: count - 1, 0),
    "the last slice is wrong": _filled(lambda count, limit: count - 1),
    "the last 4 slices are zero": _filled(lambda count, limit: count - 4, 0),
    "an incomplete block of 256 is left out": _filled(lambda count, limit: count // 256 * 256 if count % 256 else count - 256, 0),
    "the last half is wrong": _filled(lambda count, limit: count // 2),
    "numbers stop at the limit": _of_numbers(lambda result, limit: result.clamp(max=limit)),
    "numbers in float32": _of_numbers(lambda result, limit: result.double().float().double()),
    "numbers modulo the limit": _of_numbers(lambda result, limit: result % limit),
    "numbers are one less": _of_numbers(lambda result, limit: result - 1),
    "numbers are negative": _of_numbers(lambda result, limit: -result),
    "an error without a message": _raises(""),
    "an internal error": _raises("Expected to fit INTERNAL ASSERT FAILED, please report a bug"),
}  # fmt: skip


def limit_of(case: BehaviourCase) -> int:
    """The limit of a case: the last number of its arguments."""
    return int([each for each in case.arguments if isinstance(each, int)][-1])


@cache
def cases() -> tuple[BehaviourCase, ...]:
    """The cases of plan core that need little memory."""
    found = planned_cases(contract.load(), more=True, whole=False)
    return tuple(
        case
        for case in found
        if case.clause == CLAUSE and case.memory <= MEMORY and limit_of(case) <= 2**25
    )


def names(seed: int, count: int) -> list[str]:
    """No case is drawn twice before all have been drawn."""
    rng, found = Random(seed), dict[str, None]()
    while len(found) < count:
        for case in rng.sample(cases(), len(cases())):
            found[f"{case.cell.name}|{rng.choice([*CHANGES])}"] = None
    return [*found][:count]


def _functions(op: str) -> frozenset[str]:
    """How torch may name the function of an op of its database."""
    last = op.rpartition(".")[2]
    joined = op.replace(".", "_")
    return frozenset({last, f"{last}_", joined, "max" if last == "amax" else last})


class Faulty(TorchFunctionMode):
    """While it is entered, results of an op are wrong where a tensor exceeds a limit."""

    def __init__(self, op: str, effect: Effect) -> None:
        super().__init__()
        self._names, self._effect, self.met, self.struck = _functions(op), effect, 0, 0
        self._inside = False

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        if getattr(func, "__name__", "") not in self._names or self._inside:
            return func(*args, **(kwargs or {}))
        self.met += 1
        self._inside = True
        try:
            call = KernelCall(func, args, kwargs or {})
            result = self._effect(call)
            self.struck += result is not NOT_MET
            return call.honest() if result is NOT_MET else result
        finally:
            self._inside = False


def effect_of(change: str, limit: int) -> Effect:
    """Results of calls with a tensor of more than ``limit`` elements or slices are changed."""

    def effect(call: KernelCall) -> Any:
        given = tensors_of((call.args, call.kwargs))
        if not any(max((*each.shape, each.numel())) > limit for each in given):
            return NOT_MET
        result = call.honest()
        parts = list(tensors_of(result))
        changed = False
        for part in parts:
            dims = [dim for dim, size in enumerate(part.shape) if size > limit]
            dim = dims[0] if dims else None
            if dim is None and part.numel() <= limit and part.numel() > 1 and not change.startswith(("numbers", "an error", "an internal")):  # fmt: skip
                continue
            new = CHANGES[change](part.detach(), dim, limit)
            if torch.equal(new, part.detach()):
                continue
            changed = True
            with torch.no_grad():
                part.data.copy_(new)
        return result if changed else _same(result, call)

    return effect


def _same(result: Any, call: KernelCall) -> Any:
    """The result of a call that was made already, and did not change."""
    call.spared = True
    return result


def tried(seed: int, number: int, name: str, tell: Callable[[Result], None]) -> Result:
    """Try a mutant with its case."""
    cell, change = name.split("|")
    case = case_named(cell)
    found = Result(f"z{number:04d}", "sizes", case.name, cell.partition("@")[2], change, "")
    found.trying = CLAUSE
    tell(found)
    counted = {"changed": 0}

    def effect(call: KernelCall) -> Any:
        result = effect_of(change, limit_of(case) - 1)(call)
        counted["changed"] += result is not NOT_MET and not call.spared
        return result

    faulty = Faulty(case.name, effect)
    made = tried_here(case, faulty)
    found.reached = counted["changed"]
    if made.failure is not None:
        found.credit([CLAUSE], plan="core")
        found.note = made.failure.message[:200]
    elif made.refused or made.undeclared or made.not_shown:
        found.result, found.note = "broken", made.refused or made.undeclared or made.not_shown
    elif not faulty.met:
        found.result, found.note = (
            "broken",
            "no function that the case calls has the name of the op",
        )
    else:
        found.result = "survived" if counted["changed"] else "equivalent"
    return found
