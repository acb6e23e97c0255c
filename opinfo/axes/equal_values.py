"""Axes of values that are equal: elements of one operand (ties), two operands that are alike, and zeros and ones, whose
truth values are the same."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import islice

import torch

from opinfo.axes.axis_context import Axis, Basis, Variations
from opinfo.compare import Arguments
from opinfo.samples import Sample

# -- ties


def _ties(basis: Basis) -> Variations:
    stable = [s for s in basis.drawn if s.call.kwargs.get("stable") is True]
    made: list[tuple[Sample, Arguments]] = []
    for base in [s for s in stable if s.numel > 2] or basis.bases:
        shape = max(base.tensors[0].shape, (9, 7), key=math.prod)
        few = basis.choice(2 if basis.dtype == "bool" else 3, shape).to(basis.kind)
        if (call := basis.accepted(basis.rebuilt(base, {0: few}))) is not None:
            made.append((base, call))
            yield base, call
        if len(made) == 2:
            break
    yield from islice(_ties_far_apart(basis, made), 1)


#: Longer than the rows that libraries sort or reduce in one block, with some elements left over.
_LONG_ROW = 4099


def _ties_far_apart(basis: Basis, made: Sequence[tuple[Sample, Arguments]]) -> Variations:
    """Yields calls like those with ties whose rows are so long that equal elements are in several blocks of a kernel."""
    for base, call in made:
        given = [value for value in call.args[1:] if type(value) is int]
        dim = call.kwargs.get("dim", given[0] if given else None)
        shape = [2] * call.tensors[0].dim()
        if dim is None or not shape:
            shape = [_LONG_ROW]
        else:
            shape[dim] = _LONG_ROW
        few = basis.choice(2 if basis.dtype == "bool" else 3, shape).to(basis.kind)
        if (long := basis.accepted(basis.rebuilt(base, {0: few}))) is not None:
            yield base, long


TIES = Axis(
    number=10,
    name="ties",
    finds="A kernel that does not return the index of the first of several equal elements, although the documentation promises that index, also where equal elements are in different blocks of a long row.",
    bugs=("pytorch/pytorch#93630", "pytorch/pytorch#41781"),
    budget=3,
    layouts=("contiguous", "transposed+step_outer+offset"),
    applies=lambda basis: "axes.ties" in basis.families,
    vary=_ties,
)


# -- two operands that are alike

#: Shapes: more than 65,536 elements, incomplete tiles, short rows and columns, and a short vector.
_ALIKE = ((4099, 17), (131, 137), (5, 3, 7), (17,))


def _alike(basis: Basis) -> Variations:
    """Yields calls with two equal operands, and calls with operands that differ only in the last, first or middle
    element, for ops that return one value for two whole tensors. For random operands, nearly all calls of such an op
    would return the same value."""
    pairs = [base for base in basis.bases if [t.dim() > 0 for t in base.tensors] == [True, True]]
    for number, shape in enumerate(_ALIKE if pairs else ()):
        first = basis.fill(pairs[0], 0, shape)
        count = first.numel()
        for place in (None, (count - 1, 0, count // 2)[number % 3]):
            second = first.clone()
            if place is not None:
                flat = second.view(-1)
                one = flat[place].clone()
                flat[place] = ~one if basis.kind == torch.bool else one + 1 + one.abs()
            yield from _pair(basis, pairs[0], first, second)
    if basis.kind.is_floating_point:
        for base in pairs:
            with_nan = basis.fill(base, 0, _ALIKE[-1])
            with_nan[5] = math.nan
            yield from _pair(basis, base, with_nan, with_nan.clone())


def _pair(basis: Basis, base: Sample, *tensors: torch.Tensor) -> Variations:
    call = basis.rebuilt(base, dict(enumerate(tensors)))
    if basis.accepted(call) is not None:
        yield base, call


ALIKE = Axis(
    number=18,
    name="alike",
    finds="A kernel that compares whole tensors, and misses the element in which they differ, or finds a difference between equal tensors.",
    bugs=("pytorch/pytorch#77750",),
    budget=2 * len(_ALIKE) + 4,
    layouts=("contiguous", "transposed+step_outer+offset", "contiguous/transposed"),
    applies=lambda basis: basis.returns_no_tensor,
    vary=_alike,
)


# -- truth values that differ


def _truths(basis: Basis) -> Variations:
    """Yields calls with zeros in every second column, with zeros alone, and with ones alone. Nearly all results for the
    database's operands are the same truth value, so a kernel that always returns it would be right."""
    for base in sorted(basis.bases, key=lambda s: min(t.dim() for t in s.tensors) < 2):
        places = [p for p, t in enumerate(base.tensors) if t.dtype == basis.kind and t.dim()]
        halves = {p: _in_every_second_column(base.tensors[p]) for p in places}
        zeros = {p: torch.zeros_like(base.tensors[p]) for p in places}
        ones = {p: torch.ones_like(base.tensors[p]) for p in places}
        for tensors in (halves, zeros, ones) if places else ():
            if (call := basis.accepted(basis.rebuilt(base, tensors))) is not None:
                yield base, call


def _in_every_second_column(tensor: torch.Tensor) -> torch.Tensor:
    """Returns a tensor of ones and zeros. In each row, zeros and ones alternate."""
    columns = torch.arange(tensor.shape[-1]) % 2
    return columns.to(tensor.dtype).expand(tensor.shape).contiguous()


TRUTHS = Axis(
    number=26,
    name="truth values",
    finds="A kernel that returns the same truth value for all elements.",
    bugs=("pytorch/pytorch#82663",),
    budget=6,
    layouts=("contiguous", "contiguous+expand_first", "transposed+step_outer+offset"),
    applies=lambda basis: bool(basis.bases),
    vary=_truths,
    writes=3,
    family="axes.truths",
)
