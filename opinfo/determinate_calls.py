"""Finds calls whose result is determined by their arguments on every device, and changes inputs for which the result is
not determined."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from opinfo.compare import DEFAULT_TOLERANCES, Arguments, difference
from opinfo.reference import ValueAnswer, value_answer
from opinfo.subject import Subject

#: The families of ops for which some calls have no specified result. Most ops belong to none.
PARTLY = frozenset(
    {
        *("values.drawn", "values.of_last", "values.of_any"),
        *("values.converted", "values.spread", "values.without_nan"),
    }
)

#: A function from the database that maps outputs to the part that is unique, such as for signs of eigenvectors.
Process: TypeAlias = "Callable[[Any], Any] | None"


def is_settled(op: Subject, call: Arguments, process: Process, families: frozenset[str]) -> bool:
    """Returns True if the result of a call, after ``process`` is applied to it, is determined by the call's
    arguments."""
    if "values.drawn" in families and depends_on_seed(op, call, process):
        return False
    return not ("values.of_last" in families and depends_on_order(op, call))


def depends_on_order(op: Subject, call: Arguments) -> bool:
    """Returns True if the CPU's result changes when the elements are processed in reverse order, because two elements
    are written to the same position.

    The first two operands are the values and the indices to which they are written. The values are replaced by
    distinct float64 numbers, so that any change of the order changes the result.
    """
    first = call.tensors[0]
    apart = torch.arange(1, first.numel() + 1, dtype=torch.float64).reshape(first.shape)
    found = []
    for turned in (False, True):
        tensors = [apart, *call.tensors[1:]]
        if turned:
            spatial = tuple(range(max(1, tensors[0].dim() - op.spatial), tensors[0].dim()))
            tensors[:2] = [each.flip(spatial) for each in tensors[:2]]
        found.append(value_answer(op.reference, call.on, tensors))
    if any(each.raises is not None for each in found):
        return False
    return difference(found[0].result, found[1].result, {}) is not None


class _Drawing(TorchDispatchMode):
    """Notes whether an op draws random numbers, according to its tags."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.seen = False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.seen |= torch.Tag.nondeterministic_seeded in func.tags
        return func(*args, **(kwargs or {}))


def draws_random_numbers(op: Subject, call: Arguments) -> bool:
    """Returns True if the CPU draws random numbers for a call, or raises. Dropout draws none in evaluation, or where it keeps
    all elements or none, so that its result is determined by its input."""
    with _Drawing() as drawing:
        found = value_answer(op.reference, call.on, call.tensors, mutates=True)
    return drawing.seen or found.raises is not None


#: The number of seeds that a call is tried with. With only two, a call that drops each of five channels at random would
#: give equal results one time in 32.
SEEDS = 6


def depends_on_seed(op: Subject, call: Arguments, process: Process = None) -> bool:
    """Returns True if the CPU's result changes with the seed. In this case, a device that has its own generator returns
    a different result. ``process`` is applied to the results before they are compared.

    The call is also tried with negated inputs, because rrelu draws random numbers only for negative inputs, and a
    layout may negate the inputs. A call that raises does not depend on the seed.
    """
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


def _seeded(
    op: Subject, call: Arguments, tensors: Sequence[torch.Tensor], shift: int
) -> ValueAnswer:
    """Returns the CPU's result with the seed shifted by ``shift``, even if the op's function sets the seed itself."""
    inner = torch.manual_seed

    def seeded(seed: int) -> torch.Generator:
        return inner(int(seed) + shift)

    torch.manual_seed = seeded
    try:
        torch.default_generator.manual_seed(shift)
        return value_answer(op.reference, call.on, tensors, mutates=True)
    finally:
        torch.manual_seed = inner


def _within(tensor: torch.Tensor, most: float) -> torch.Tensor:
    most = min(most, torch.finfo(tensor.dtype).max)
    return tensor.clamp(-most, most)


#: By family: how input values are changed for which the result is not specified.
_TAMED: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "values.converted": lambda t: t.nan_to_num(0.0, 0.0, 0.0).clamp(-128, 127),
    "values.spread": lambda t: _within(t.nan_to_num(0.0, 0.0, 0.0), 2.0**60),
    "values.without_nan": lambda t: torch.where(t.isnan(), 0, t),
}


def specified(call: Arguments, families: frozenset[str]) -> Arguments:
    """Returns the call with inputs for which the result of the op is specified. Inputs are changed only for ops that
    leave the result for some inputs unspecified."""
    for tame in (tame for family, tame in _TAMED.items() if family in families):
        tensors = [
            tame(each) if each.is_floating_point() and each.dtype in _BITS else each
            for each in call.tensors
        ]
        call = Arguments(*call.bind(tensors))
    return without_ties(call, families)


def without_ties(
    call: Arguments, families: frozenset[str], family: str = "values.of_any"
) -> Arguments:
    """Returns the call with all elements of the input distinct, for ops that may return any of several equal
    elements. ``family`` is the family of these ops; calls of other ops are returned unchanged."""
    if family not in families or call.kwargs.get("stable") or not call.tensors:
        return call
    first, *rest = call.tensors
    apart = untied(first)
    return call if apart is first else Arguments(*call.bind([apart, *rest]))


def all_differ(tensor: torch.Tensor) -> bool:
    """Returns True if no two elements are equal and at most one is NaN."""
    ordered = tensor.flatten().sort().values  # NaN last
    return not (ordered[1:] == ordered[:-1]).any() and not ordered[-2:-1].isnan().any()


#: For each floating-point dtype the integers that hold its bits.
_BITS = {
    torch.float16: torch.int16, torch.bfloat16: torch.int16,
    torch.float32: torch.int32, torch.float64: torch.int64,
}  # fmt: skip


def untied(tensor: torch.Tensor) -> torch.Tensor:
    """Returns a tensor in which finite numbers that equal another number are replaced by slightly larger numbers, so
    that all numbers differ and the order stays. Returns the tensor itself if no number has to change or if
    it has no floating-point numbers."""
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
