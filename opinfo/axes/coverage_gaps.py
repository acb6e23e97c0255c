"""The last axis: it examines the calls that all other axes made for an op, and adds calls for shapes and values that
none of these calls has."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import islice, product
from typing import Any, NamedTuple

import torch

from opinfo.axes.axis_context import Axis, Basis, Variations
from opinfo.axes.growth import MOST_GROWN, groups_of, lengthened
from opinfo.axes.planting import plant
from opinfo.axes.shapes import EXTENT
from opinfo.compare import Arguments
from opinfo.samples import Sample

Shape = tuple[int, ...]


class Gap(NamedTuple):
    """A property of shapes, and sizes of rows and columns that give a shape this property. If the first operand had no
    shape with the property in any call so far, calls with such a shape are added."""

    name: str
    holds: Callable[[Shape], bool]
    rows: Sequence[int]
    columns: Sequence[int]


def _left_over(step: int, left: int) -> Callable[[Shape], bool]:
    return lambda shape: math.prod(shape) > step and math.prod(shape) % step == left


def _is_matrix(shape: Shape, holds: Callable[[int, int], bool]) -> bool:
    return len(shape) > 1 and holds(*shape[-2:])


#: Kernels process elements in vectors, blocks and tiles, and rows by threads; the shapes below exercise the ends of these.
SHAPES = (
    Gap("a multiple of 64 elements", _left_over(64, 0), (8, 16, 64), (8, 16, 64)),
    Gap(
        "one element more than a multiple of 16",
        _left_over(16, 1),
        (1, 3, 7, 17, 33),
        (3, 7, 11, 17, 33),
    ),
    Gap("three elements more than a multiple of 4", _left_over(4, 3), (1, 3, 5, 7), (3, 5, 7, 11)),
    Gap("one column", lambda s: _is_matrix(s, lambda m, n: n == 1 < m), (2, 6, 17), (1,)),
    Gap("one row", lambda s: _is_matrix(s, lambda m, n: m == 1 < n), (1,), (2, 6, 17)),
    Gap(
        "an incomplete tile in the corner",
        lambda s: _is_matrix(s, lambda m, n: min(m, n) > 128 and bool(m % 128 and n % 128)),
        (131, 258),
        (131, 137, 258),
    ),
    Gap(
        "more than 300 rows",
        lambda s: bool(s) and math.prod(s[:-1]) > 300,
        (331, 1031),
        (2, 3, 5),
    ),
    Gap("more than 65,536 elements", lambda s: math.prod(s) > 2**16, (258, 4099), (17, 258)),
)
#: Ordinary values. Those that an operand has not had are put into it together.
VALUES = (0.0, -0.0, 0.5, 101.5, -2.5)
#: The most calls to try for one gap, and the most bases to make them from.
_TRIES, _FROM = 3, 2


def _gaps(basis: Basis) -> Variations:
    shapes = [tuple(call.tensors[0].shape) for call in basis.made if call.tensors]
    if EXTENT.applies(basis):
        for gap in SHAPES:
            if not any(map(gap.holds, shapes)):
                yield from islice(_shaped(basis, gap), 1)
        yield from islice(_between_ones(basis), 1)
    if not basis.orders:
        yield from _valued(basis)


# -- shapes


def _shaped(basis: Basis, gap: Gap) -> Variations:
    """Yields calls whose first operand has the shape that a gap describes. One or two groups of dimensions get new
    sizes; the other dimensions keep their sizes or get size 1."""
    steady = basis.subject.ufunc or basis.elementwise
    for base in basis.bases[:_FROM]:
        for assigned in islice(_assigned(basis, base, gap), _TRIES):
            call = _resized(basis, base, assigned)
            answer = basis.answer(call) if call is not None else None
            if call is None or answer is None:
                continue
            small = sum(t.numel() for t in answer) <= 2 * MOST_GROWN
            if small and (steady or basis.steady(call)) and basis.accepted(call) is not None:
                yield base, call


#: A shape whose third dimension, which is the longest, lies between dimensions of one element.
_BETWEEN_ONES, _BETWEEN = (3, 1, 5, 1), 2


def _between_ones(basis: Basis) -> Variations:
    """Yields calls that reduce, scan or sort a dimension between dimensions of one element, which libraries join with
    their neighbours (pytorch/pytorch#136132)."""
    for base in basis.drawn:
        if [each.dim() for each in base.tensors] != [len(_BETWEEN_ONES)]:
            continue
        filled = basis.rebuilt(base, {0: basis.fill(base, 0, _BETWEEN_ONES)})
        dim = filled.kwargs.get("dim", next(iter(filled.args[1:2]), None))
        if type(dim) is not int:
            continue
        if "dim" in filled.kwargs:
            call = Arguments(filled.args, {**filled.kwargs, "dim": _BETWEEN})
        else:
            call = Arguments((filled.args[0], _BETWEEN, *filled.args[2:]), filled.kwargs)
        if basis.steady(call) and basis.accepted(call) is not None:
            yield base, call


Assigned = dict[frozenset[Any], int]


def _assigned(basis: Basis, base: Sample, gap: Gap) -> Iterator[Assigned]:
    """Yields sizes of groups of dimensions with which the first operand has the shape that a gap describes. Sizes that
    make the operand small come first."""
    first = tuple(base.tensors[0].shape)
    groups = [group for group, _ in groups_of(basis, base)]
    of_first = [group for group in groups if any(d[0] == 0 for d in group if isinstance(d, tuple))]
    found: list[tuple[int, int, Assigned]] = []
    for columns in of_first:
        for rows in of_first:
            same = rows == columns
            for m, n in product((0,) if same else gap.rows, gap.columns):
                for rest in (None, 1):
                    assigned = {g: rest for g in groups if rest and g not in (rows, columns)}
                    assigned |= {columns: n} if same else {rows: m, columns: n}
                    shape = _with(first, assigned)
                    if gap.holds(shape) and math.prod(shape) <= MOST_GROWN:
                        found.append((math.prod(shape), len(found), assigned))
    for _, _, assigned in sorted(found, key=lambda each: each[:2]):
        yield assigned


def _with(shape: Shape, assigned: Assigned) -> Shape:
    extents = {
        each[1]: size
        for group, size in assigned.items()
        for each in group
        if isinstance(each, tuple) and each[0] == 0
    }
    return tuple(extents.get(dim, n) for dim, n in enumerate(shape))


def _resized(basis: Basis, base: Sample, assigned: Assigned) -> Arguments | None:
    """Returns the sample's call with the given sizes in the groups of dimensions; None if a group cannot be resized.
    The groups are resized one after another."""
    now: Arguments | None = base.call
    for group, size in assigned.items():
        now = lengthened(basis, replace(base, call=now), group, size) if now is not None else None
    return now


# -- values


def _valued(basis: Basis) -> Variations:
    """Yields calls in which an operand contains ordinary values that this operand had in no earlier call. Calls for
    which the CPU's result is not reliable are left out."""
    if not basis.kind.is_floating_point or basis.kind.itemsize < 2:
        return
    tensors = [call.tensors for call in basis.made]
    most = max((len(_of(basis, each)) for each in tensors), default=0)
    for place in range(min(most, 3)):
        held = [floating[place] for each in tensors if len(floating := _of(basis, each)) > place]
        missing = [value for value in VALUES if not any(_holds(t, value) for t in held)]
        if missing:
            found = plant(basis, place, missing, bases=basis.bases)
            if found is not None:
                yield found


def _of(basis: Basis, tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    return [t for t in tensors if t.dtype == basis.kind and t.layout == torch.strided]


def _holds(tensor: torch.Tensor, value: float) -> bool:
    """Returns True if a tensor contains a value of the kind for which ``value`` stands: a zero with the sign of
    ``value``, a fraction with .5, a large number or a negative number."""
    if value == 0:
        signs = tensor.signbit() if math.copysign(1, value) < 0 else ~tensor.signbit()
        found = (tensor == 0) & signs
    elif value < 0:
        found = tensor < 0
    else:
        found = tensor.abs() > 100 if value > 100 else tensor.abs() % 1 == 0.5
    return bool(found.any())


GAPS = Axis(
    number=21,
    name="gaps",
    finds="A kernel that is wrong for a shape, or for a value of one operand, that no other axis has given to this op.",
    bugs=("pytorch/pytorch#129207",),
    budget=6,
    layouts=("contiguous", "transposed+step_outer+offset"),
    applies=lambda basis: basis.dtype == "float32" and not basis.free and bool(basis.drawn),
    vary=_gaps,
)
