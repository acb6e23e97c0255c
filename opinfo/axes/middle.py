"""The axis of middle sizes: more rows than 16 bits count, each of a few elements, and sums of ten thousand terms."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from itertools import islice
from typing import Any

from opinfo.axes.axis_context import MOST, Axis, Basis, Variations
from opinfo.axes.growth import dims_of, groups_of, lengthened
from opinfo.axes.shapes import EXTENT
from opinfo.compare import Arguments
from opinfo.exceptions import op_family
from opinfo.samples import Sample

#: More rows than 16 bits count, and an odd number; the sizes to try for the other dimensions.
_ROWS, _WIDTHS = 65_539, (None, 3, 2, 1)
#: More terms than fit a block; the sizes to try for the other dimensions.
_TERMS, _HEIGHTS = 10_007, (3, 2, 1)
#: More than half a million terms, for ops that read a row as a whole.
_LONG = 2**19 - 21
#: Small sizes, which show how the result grows; no other dimension has the first of them.
_SMALL = (37, 257)
_UNUSUAL = _SMALL[0]
_BY_ROWS = ("reduction", "scan", "sort", "softmax")
_DTYPES = ("float32", "complex64", "bfloat16")


def _middle_sizes(basis: Basis) -> Variations:
    yield from islice(_grown(basis, _rows, _ROWS, _WIDTHS), 1)
    yield from islice(_grown(basis, _rows_of_matrices, _ROWS, (1,)), 1)
    yield from islice(_long(basis, _TERMS, _HEIGHTS), 1)
    family = op_family(basis.subject.id, basis.subject.ufunc)
    if family in _BY_ROWS and basis.dtype == "float32":
        yield from islice(_long(basis, _LONG, (1,)), 1)


def _long(basis: Basis, size: int, others: Sequence[int | None]) -> Variations:
    """Yields calls with a long dimension, those that add, scan or sort it first."""
    yield from _grown(basis, _terms, size, others)
    yield from _grown(basis, _last, size, others)


#: A group of dimensions that grow together, each as the position of a tensor and a dimension.
_Group = frozenset[Any]
_Pick = Callable[[Basis, Sample], "_Group | None"]


def _rows(basis: Basis, base: Sample) -> _Group | None:
    """Returns the group of the first dimension of the first operand."""
    groups = (group for group, _ in groups_of(basis, base))
    return next((group for group in groups if (0, 0) in group), None)


def _rows_of_matrices(basis: Basis, base: Sample) -> _Group | None:
    return _rows(basis, base) if base.tensors[0].dim() == 2 else None


def _terms(basis: Basis, base: Sample) -> _Group | None:
    """Returns the group of the dimension that a call names, or of one that the result does not have."""
    first, groups = base.tensors[0], [group for group, _ in groups_of(basis, base)]
    named = base.call.kwargs.get("dim", next(iter(base.call.args[1:2]), None))
    if type(named) is int and -first.dim() <= named < first.dim():
        return next((group for group in groups if (0, named % first.dim()) in group), None)
    for group in (g for g in groups if any(d[0] == 0 for d in dims_of(g))):
        call = lengthened(basis, base, group, _UNUSUAL)
        answer = basis.answer(call) if call is not None else None
        if answer and not any(_UNUSUAL in t.shape for t in answer):
            return group
    return None


def _last(basis: Basis, base: Sample) -> _Group | None:
    """Returns the group of the last dimension of the first operand."""
    last = (0, base.tensors[0].dim() - 1)
    return next((group for group, _ in groups_of(basis, base) if last in group), None)


def _grown(basis: Basis, pick: _Pick, size: int, others: Sequence[int | None]) -> Variations:
    """Yields calls in which one group of dimensions is long. All other dimensions keep their size, or have the first of
    the sizes ``others`` that the CPU accepts."""
    for base in basis.bases:
        grown = pick(basis, base) if base.tensors[0].dim() else None
        if grown is None:
            continue
        groups = [group for group, _ in groups_of(basis, base) if group != grown]
        for other in others:
            call = _sized(basis, base, grown, size, groups, other)
            small = [_sized(basis, base, grown, each, groups, other) for each in _SMALL]
            if call is not None and _takes(basis, call, [each for each in small if each]):
                yield base, call
                break


def _sized(
    basis: Basis,
    base: Sample,
    grown: frozenset[Any],
    size: int,
    others: Sequence[Collection[Any]],
    width: int | None,
) -> Arguments | None:
    """Returns a sample's call in which a group of dimensions has the size ``size``, and the dimensions of the other groups
    have size ``width`` unless it is None. Returns None if a tensor becomes too large."""
    now: Sample | None = base
    for group in others if width is not None else ():
        if now is not None and dims_of(group):
            made = lengthened(basis, now, frozenset(group), width or 1)
            now = replace(now, call=made) if made is not None else None
    if now is None or not _fits(now, grown, size):
        return None
    return lengthened(basis, now, grown, size, [()])


def _fits(base: Sample, grown: frozenset[Any], size: int) -> bool:
    """Returns True if no tensor becomes larger than a call may have."""
    dims = dims_of(grown)
    return all(
        math.prod(size if (p, d) in dims else n for d, n in enumerate(t.shape)) <= MOST // 2
        for p, t in enumerate(base.tensors)
    )


def _takes(basis: Basis, call: Arguments, small: Sequence[Arguments]) -> bool:
    """Returns True if the CPU accepts a call and its result is reliable. In 16 bits and for complex numbers, it must equal
    the result in float64, because sums need not be exact. ``small`` are calls with the sizes ``_SMALL`` in place of the
    large one: if their results show that the result grows with the square of the size, the call is not made."""
    norm = op_family(basis.subject.id, basis.subject.ufunc) == "norm"
    wide = basis.dtype != "float32"

    def is_linear() -> bool:
        held = [sum(t.numel() for t in basis.answer(each) or ()) for each in small]
        return len(held) == 2 and 0 < held[1] * _SMALL[0] <= 2 * held[0] * _SMALL[1]

    return basis.is_reliable(call, steady=norm or wide, settled=wide, first=is_linear)


MIDDLE = Axis(
    number=24,
    name="middle",
    finds="A kernel that is wrong for more rows than 16 bits count, each of a few elements, or that adds ten thousand terms imprecisely.",
    bugs=("pytorch/pytorch#40022", "pytorch/pytorch#121583"),
    budget=4,
    layouts=("contiguous",),
    applies=lambda basis: (
        EXTENT.applies(basis)
        and basis.dtype in _DTYPES
        and "axes.quadratic" not in basis.families
        and "axes.loops" not in basis.families
    ),
    vary=_middle_sizes,
)
