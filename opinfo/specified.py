"""Which calls are asked, and with which values: those whose answer is fixed by their arguments, on any device."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import torch

from opinfo.catalog import Op
from opinfo.compare import DEFAULT_TOLERANCES, Call, difference
from opinfo.reference import ValueAnswer, value_answer

#: The families of ops of which some calls have no specified answer: most ops have none of them.
PARTLY = frozenset(
    {
        *("values.drawn", "values.of_last", "values.of_any"),
        *("values.converted", "values.spread", "values.without_nan"),
    }
)

#: Upstream's map from outputs to what is unique about them.
Process: TypeAlias = "Callable[[Any], Any] | None"


def is_settled(op: Op, call: Call, process: Process, families: frozenset[str]) -> bool:
    """Whether the answer to a call, or what ``process`` finds unique about it, is fixed by its arguments."""
    if "values.drawn" in families and depends_on_seed(op, call, process):
        return False
    return not ("values.of_last" in families and depends_on_order(op, call))


def depends_on_order(op: Op, call: Call) -> bool:
    """Whether the CPU's answer is another one if the first two operands, of which each element is written where an index
    says, are gone through from the end: two elements have one place. Of the first all elements are made to differ, in
    float64, which has as many numbers: those of its tangent differ too."""
    first = call.tensors[0]
    apart = torch.arange(1, first.numel() + 1, dtype=torch.float64).reshape(first.shape)
    found = []
    for turned in (False, True):
        tensors = [apart, *call.tensors[1:]]
        if turned:
            spatial = tuple(range(max(1, tensors[0].dim() - op.spatial), tensors[0].dim()))
            tensors[:2] = [each.flip(spatial) for each in tensors[:2]]
        found.append(value_answer(op.function, call.on, tensors))
    if any(each.raises is not None for each in found):
        return False
    return difference(found[0].result, found[1].result, {}) is not None


#: With so many seeds a call is made that may depend on one: with two of them, five channels are dropped alike one time
#: in 32.
SEEDS = 6


def depends_on_seed(op: Op, call: Call, process: Process = None) -> bool:
    """Whether the CPU's answer to a call, or to the call of the negated numbers, is another one with another seed: then it
    is not the one of a device with a generator of its own, either. What raises depends on none. Negated, since rrelu
    draws for negative numbers alone, and a layout may hold a number as the negative of another."""
    floats = [each.is_floating_point() and each.layout == torch.strided for each in call.tensors]
    negated = [-each if turn else each for each, turn in zip(call.tensors, floats, strict=True)]
    unique = process or (lambda result: result)
    for tensors in (call.tensors, negated):
        first = _seeded(op, call, tensors, 0)
        for seed in range(1, SEEDS) if first.raises is None else ():
            other = _seeded(op, call, tensors, seed)
            if other.raises is not None:
                break
            if difference(unique(first.result), unique(other.result), DEFAULT_TOLERANCES):
                return True
    return False


def _seeded(op: Op, call: Call, tensors: Sequence[torch.Tensor], shift: int) -> ValueAnswer:
    """The CPU's answer with another seed, also where the op's function seeds itself."""
    inner = torch.manual_seed

    def seeded(seed: int) -> torch.Generator:
        return inner(int(seed) + shift)

    torch.manual_seed = seeded
    try:
        torch.default_generator.manual_seed(shift)
        return value_answer(op.function, call.on, tensors, mutates=True)
    finally:
        torch.manual_seed = inner


def _within(tensor: torch.Tensor, most: float) -> torch.Tensor:
    most = min(most, torch.finfo(tensor.dtype).max)
    return tensor.clamp(-most, most)


#: By family, what values become of which an op's answer is not specified.
_TAMED: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "values.converted": lambda t: t.nan_to_num(0.0, 0.0, 0.0).clamp(-128, 127),
    "values.spread": lambda t: _within(t.nan_to_num(0.0, 0.0, 0.0), 2.0**60),
    "values.without_nan": lambda t: torch.where(t.isnan(), 0, t),
}


def specified(call: Call, families: frozenset[str]) -> Call:
    """The call with values of which the answer is specified, for ops of which it is not for all."""
    for tame in (tame for family, tame in _TAMED.items() if family in families):
        tensors = [
            tame(each) if each.is_floating_point() and each.dtype in _BITS else each
            for each in call.tensors
        ]
        call = Call(*call.bind(tensors))
    return without_ties(call, families)


def without_ties(call: Call, families: frozenset[str], family: str = "values.of_any") -> Call:
    """The call, of an op that may take any of several equal elements, with an input of numbers that all differ."""
    if family not in families or call.kwargs.get("stable") or not call.tensors:
        return call
    first, *rest = call.tensors
    apart = untied(first)
    return call if apart is first else Call(*call.bind([apart, *rest]))


def all_differ(tensor: torch.Tensor) -> bool:
    """Whether no two elements are equal, and at most one is NaN."""
    ordered = tensor.flatten().sort().values  # NaN last
    return not (ordered[1:] == ordered[:-1]).any() and not ordered[-2:-1].isnan().any()


#: For each floating-point dtype the integers that hold its bits.
_BITS = {
    torch.float16: torch.int16, torch.bfloat16: torch.int16,
    torch.float32: torch.int32, torch.float64: torch.int64,
}  # fmt: skip


def untied(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor, with finite numbers that equal others made as much larger as needed for all to differ, in their order;
    the tensor itself if none do, or if it holds no floating-point numbers."""
    bits = _BITS.get(tensor.dtype)
    finite = (
        tensor[tensor.isfinite()] if bits is not None and tensor.layout == torch.strided else None
    )
    if bits is None or finite is None or all_differ(finite):
        return tensor
    # Consecutive numbers are consecutive integers, from the smallest normal one up on both sides of 0.
    about = torch.finfo(tensor.dtype)
    below = int(torch.tensor(about.tiny, dtype=tensor.dtype).view(bits)) - 1
    ranks = (finite.abs().view(bits).long() - below).clamp(min=0) * finite.sign().long()
    order = ranks.argsort(stable=True)
    steps = torch.arange(len(ranks))
    ranks[order] = (ranks[order] - steps).cummax(0).values + steps
    sizes = torch.where(ranks == 0, 0, ranks.abs() + below).to(bits).view(tensor.dtype)
    apart = tensor.clone()
    apart[tensor.isfinite()] = torch.where(ranks < 0, -sizes, sizes)
    return apart
