"""Finds which dimensions of a call must grow together, and makes calls with a different size in these dimensions."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Sequence
from itertools import product
from typing import Any

import torch

from opinfo.axes.axis_context import MOST, Basis
from opinfo.compare import Arguments
from opinfo.samples import Sample

#: The most elements of a call in which one dimension is long.
MOST_GROWN = 110_000
#: The size with which growth of a dimension is tried: greater than 32, and odd.
_SMALL = 37
#: The most groups of dimensions to try for one call.
TRIES = 24


def groups_of(basis: Basis, base: Sample) -> list[tuple[frozenset[Any], float]]:
    """Returns the groups of a call's dimensions that must be enlarged together for the CPU to accept the call, each
    with the number of elements that the call gains per unit of size. A group is a set of (tensor, dimension) pairs. The
    group also contains the size of these dimensions (a number) if that size must be changed in the arguments of the
    call, too.

    The groups are cached for each basis sample, because several axes need them.
    """
    if base.index not in basis.groups:
        basis.groups[base.index] = [*_groups(basis, base)]
    return basis.groups[base.index]


def _groups(basis: Basis, base: Sample) -> Iterator[tuple[frozenset[Any], float]]:
    dims = [(p, d) for p, t in enumerate(base.tensors) for d, n in enumerate(t.shape) if n > 1]
    done: set[Any] = set()
    tried = 0
    for dim in dims:
        if dim in done:
            continue
        for group in _candidates(base, dims, dim):
            if (tried := tried + 1) > TRIES:
                return
            call = lengthened(basis, base, group, _SMALL)
            answer = basis.answer(call) if call is not None else None
            if call is None or answer is None or not any(t.numel() for t in answer):
                continue
            done |= group
            held = sum(t.numel() for t in (*call.tensors, *answer))
            yield group, held / _SMALL
            break


def _candidates(
    base: Sample, dims: Sequence[tuple[int, int]], dim: tuple[int, int]
) -> Iterator[frozenset[Any]]:
    extent = base.tensors[dim[0]].shape[dim[1]]
    yield frozenset([dim])
    others: dict[int, list[tuple[int, int]]] = {}
    for each in dims:
        if each[0] != dim[0] and base.tensors[each[0]].shape[each[1]] == extent:
            others.setdefault(each[0], []).append(each)
    options = [[*reversed(each), None] for each in others.values()]
    for number, picked in enumerate(product(*options)):
        if number >= 8:
            break
        partners = [each for each in picked if each is not None]
        if partners:
            yield frozenset([dim, *partners])
    same = [each for each in dims if base.tensors[each[0]].shape[each[1]] == extent]
    yield frozenset([*same, extent])


def dims_of(group: Collection[Any]) -> list[tuple[int, int]]:
    return [each for each in group if not isinstance(each, int)]


def lengthened(
    basis: Basis,
    base: Sample,
    group: frozenset[Any],
    size: int,
    shortened: Sequence[Collection[Any]] = (),
) -> Arguments | None:
    """Returns a sample's call with size ``size`` in the dimensions of ``group`` and size 1 in the ``shortened``
    dimensions. If ``group`` also contains a number (see ``groups_of``), ``size`` replaces this number in all lists among
    the arguments.

    Returns None if a tensor becomes too large, or if indices that must not repeat would be resized."""
    shapes = {place: list(each.shape) for place, each in enumerate(base.tensors) if each.dim()}
    extents = [each for each in group if isinstance(each, int)]
    for each, extent in (*((g, 1) for g in shortened), (group, size)):
        for place, dim in dims_of(each):
            shapes[place][dim] = extent
    if any(math.prod(shape) > (MOST if shortened else MOST_GROWN) for shape in shapes.values()):
        return None
    grown = {place for each in (group, *shortened) for place, _ in dims_of(each)}
    numbers = (torch.int32, torch.int64)
    if basis.unique_indices and any(base.tensors[place].dtype in numbers for place in grown):
        return None
    floating = basis.kind.is_floating_point or basis.kind.is_complex
    shapes = {
        place: shape
        for place, shape in shapes.items()
        if place in grown or (floating and base.tensors[place].dtype == basis.kind)
    }
    tensors = {place: basis.fill(base, place, shape) for place, shape in shapes.items()}
    call = basis.rebuilt(base, tensors)
    if basis.multiplies:  # make alpha and beta whole numbers too, so that results are exact
        kwargs = {
            name: 2 if isinstance(each, float) else each for name, each in call.kwargs.items()
        }
        call = Arguments(call.args, kwargs)
    if not extents:
        return call

    def named(value: Any) -> Any:
        if isinstance(value, (list, tuple)):
            swapped = [
                size if type(each) is int and each in extents else named(each) for each in value
            ]
            return type(value)(swapped) if type(value) in (list, tuple) else tuple(swapped)
        return value

    return Arguments(
        tuple(named(each) for each in call.args),
        {name: named(value) for name, value in call.kwargs.items()},
    )
