"""Axes of what is alike: extents that are equal, or 1; elements that have one sign, or are in order."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from opinfo.axes.basis import Axis, Basis, Variations
from opinfo.axes.shapes import groups_of, lengthened, shaped
from opinfo.compare import Call
from opinfo.samples import Sample

#: A matrix that is square, a row and a column of one, and a number.
_SHAPES = ((6, 6), (1, 9), (9, 1), ())
#: The extent that all dimensions are given.
_EQUAL = 6


def _extents(basis: Basis) -> Variations:
    if basis.shape_free:
        for shape in _SHAPES:
            for base in basis.bases:
                if (call := basis.taken(shaped(basis, base, [shape]))) is not None:
                    yield base, call
                    break
        return
    bases = sorted(basis.bases, key=lambda s: -max(t.dim() for t in s.tensors))
    for calls in (_equal, _single):
        seen: set[str] = set()
        for base in bases:
            for call in calls(basis, base):
                sign = str([tuple(t.shape) for t in call.tensors])
                if sign not in seen and basis.taken(call) is not None:
                    seen.add(sign)
                    yield base, call
                    break
            if seen:
                break


def _equal(basis: Basis, base: Sample) -> Iterator[Call]:
    """The call with one extent in all dimensions, or in those of the first operand and what grows with them."""
    every = {(p, d): n for p, t in enumerate(base.tensors) for d, n in enumerate(t.shape)}
    longer = {dim for dim, n in every.items() if n > 1}
    groups = [group for group, _ in groups_of(basis, base)]
    first = frozenset().union(*(g for g in groups if any(d[0] == 0 for d in g if d in longer)))
    for group in frozenset(every), frozenset(longer), first:
        if group and (call := lengthened(basis, base, group, _EQUAL)) is not None:
            yield call


def _single(basis: Basis, base: Sample) -> Iterator[Call]:
    """The call with one dimension, and what grows with it, of size 1: the last one first."""
    for group, _ in reversed(groups_of(basis, base)):
        if (call := lengthened(basis, base, group, 1)) is not None:
            yield call


EQUAL = Axis(
    number=13,
    name="equal extents",
    finds="A kernel that takes a matrix for its transpose, or a dimension of size 1 for the last one, where sizes do not tell.",
    bugs=("pytorch/pytorch#116333", "pytorch/pytorch#78611"),
    budget=4,
    layouts=("contiguous", "transposed+step_outer+offset"),
    applies=lambda basis: (
        basis.dtype in ("float32", "int64") and not basis.keeps_values and not basis.free
    ),
    vary=_extents,
)


# -- elements of one sign


#: Between the elements of one operand and the next: no quotient of two is near a whole number, where a rounding decides.
_APART = 128 / 137


def _signs(basis: Basis) -> Variations:
    """Calls in which the elements ascend from above 0, and in which none is positive."""
    for values in (_ascending, _negative):
        for base in basis.bases:
            tensors = {
                place: (values(t.numel()) * _APART**place).reshape(t.shape)
                for place, t in enumerate(base.tensors)
                if t.dtype == basis.kind and t.numel() > 2
            }
            call = basis.rebuilt(base, tensors)
            if tensors and basis.settled(call) and basis.taken(call) is not None:
                yield base, call
                break


def _ascending(count: int) -> torch.Tensor:
    """From above 0 to below 2, all different: in the domain of most functions."""
    return torch.arange(1, count + 1) * (1.9 / (count + 1))


def _negative(count: int) -> torch.Tensor:
    """Multiples of 1/8 below 0, in no order, each more than once where there are more than 40."""
    return -((torch.arange(count) * 7) % 41 + 1) / 8


SIGNS = Axis(
    number=14,
    name="one sign",
    finds="A kernel that begins a maximum at zero, or takes a short cut for elements that are in order.",
    bugs=("uxlfoundation/oneDNN#1094",),
    budget=2,
    layouts=("contiguous",),
    applies=lambda basis: basis.dtype == "float32" and not basis.keeps_values and not basis.free,
    vary=_signs,
)
