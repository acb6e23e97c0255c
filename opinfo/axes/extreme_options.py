"""The axis that sets the options of a call at or beyond their bounds: a minimum above the maximum, an end before the
start, nothing to take, an order of infinity."""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import chain, combinations, zip_longest
from typing import Any, TypeAlias

import torch

from opinfo.axes.arguments import repr_of
from opinfo.axes.axis_context import Axis, Basis, Variations
from opinfo.compare import Arguments
from opinfo.samples import Sample

#: The place of an argument in a call: its position, or its name if it is passed by name.
Place: TypeAlias = int | str

#: The most combinations of other arguments from which calls are made, and the most calls to try for each.
_KINDS, _TRIED = 6, 24


def _beyond(basis: Basis) -> Variations:
    """Yields calls with two bounds that are exchanged or equal, and then calls with one option at or beyond its end. For
    each combination of other arguments of the database's samples, one call is made before a second one is."""
    known = {basis.arguments(each) for each in basis.drawn}
    ways = [_calls(basis, base) for base in by_arguments(basis)[:_KINDS]]
    for tried in zip_longest(*ways):
        for found in tried:
            if found is None:
                continue
            base, call, exchanged = found
            text = repr_of(basis, base, call)
            if text in known and not exchanged:
                continue
            if basis.accepted(call) is not None and basis.settled(call):
                known.add(text)
                yield base, call


def by_arguments(basis: Basis) -> list[Sample]:
    """Returns one sample of the database for each combination of tensor ranks and other arguments; samples with several
    elements and several options come first."""
    held = [each for each in basis.drawn if each.tensors and 1 < each.numel <= 2**12]
    found = [*{basis.arguments(each): each for each in reversed(held)}.values()]
    return sorted(found, key=lambda each: (-len(_options(each.call)), each.index))


def _calls(basis: Basis, base: Sample) -> Iterator[tuple[Sample, Arguments, bool]]:
    """Yields changed calls of a sample, each with whether tensors were exchanged, so that its other arguments are those
    of the sample."""
    every = chain(
        ((call, True) for call in _exchanged_tensors(basis, base)),
        ((call, False) for call in _crossed(base.call)),
        ((call, False) for call in _at_ends(base)),
    )
    for number, (call, exchanged) in enumerate(every):
        if number == _TRIED:
            return
        yield base, call, exchanged


def _options(call: Arguments) -> dict[Place, Any]:
    """Returns the arguments that are numbers or lists of integers, or that may be numbers because they are None."""
    return {place: value for place, value in _places(call) if value is None or _is_number(value)}


def _places(call: Arguments) -> Iterator[tuple[Place, Any]]:
    yield from enumerate(call.args)
    yield from call.kwargs.items()


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _with(call: Arguments, changes: dict[Place, Any]) -> Arguments:
    """Returns a call with some of its arguments replaced."""
    args = tuple(changes.get(place, each) for place, each in enumerate(call.args))
    named = {k: v for k, v in changes.items() if isinstance(k, str)}
    return Arguments(args, {**call.kwargs, **named})


def _exchanged_tensors(basis: Basis, base: Sample) -> Iterator[Arguments]:
    """Yields calls in which two operands after the first, of equal dtypes and shapes, are exchanged, equal, or elementwise
    the larger and the smaller one."""
    tensors = base.tensors
    read = {*range(1, len(tensors))} - basis.subject.written_tensors(base.call)
    for one, other in combinations(sorted(read), 2):
        low, high = tensors[one], tensors[other]
        same = low.shape == high.shape and low.dtype == high.dtype and low.layout == high.layout
        if not same or low.layout != torch.strided or low.is_complex():
            continue
        for pair in (
            (torch.maximum(low, high), torch.minimum(low, high)),
            (high, low),
            (low, low.clone()),
        ):
            made = dict(zip((one, other), pair))
            yield Arguments(*base.call.bind([made.get(n, t) for n, t in enumerate(tensors)]))


def _crossed(call: Arguments) -> Iterator[Arguments]:
    """Yields calls in which the first of two numbers is greater than the second, less, or equal to it."""
    for (one, low), (other, high) in combinations(_options(call).items(), 2):
        if low is None and high is None:
            continue
        if low is None or high is None:
            given: Any = high if low is None else low
            for step in (1, -1):
                yield _with(call, {one if low is None else other: given + step})
        elif type(low) is type(high):
            if low == high:
                yield _with(call, {one: low + 1})
            yield _with(call, {one: high, other: low})
            yield _with(call, {other: low})


def _at_ends(base: Sample) -> Iterator[Arguments]:
    """Yields calls in which one number is 0, infinite, negative, as large as a dimension, or larger."""
    extents = sorted({n for t in base.tensors for n in t.shape}, reverse=True)[:2]
    beyond = [n for extent in extents for n in (extent, extent + 1, -extent, -extent - 1)]
    for place, value in _places(base.call):
        among: tuple[Any, ...] = ()
        if isinstance(value, float):
            among = (0.0, math.inf, 1.0, -math.inf, -1.0)
        elif _is_number(value):
            among = (0, *beyond)
        elif isinstance(value, (tuple, list)) and value and all(map(_is_whole, value)):
            kind = type(value)
            ends = (0, *extents[:1], *(extent + 1 for extent in extents[:1]))
            among = tuple(kind([*value[:-1], each]) for each in ends)
            among += tuple(kind([each] * len(value)) for each in ends)
        for each in among:
            if each != value:
                yield _with(base.call, {place: each})


def _is_whole(value: Any) -> bool:
    return type(value) is int


EXTREME_OPTIONS = Axis(
    number=30,
    name="extreme options",
    finds="A kernel that is wrong if a minimum exceeds the maximum, an end precedes its start, a range is empty, or an option is 0, infinite or beyond the size of a dimension.",
    bugs=("torch-spyre/torch-spyre#641", "csarofeen/pytorch#1572"),
    budget=12,
    layouts=("contiguous", "transposed+step_outer+offset"),
    keeps_shapes=True,
    # Without a schema, the function is somebody's own, which need not support other options than those of its samples. The
    # CPU's kernels of axes.keep_shapes do not check their arguments.
    applies=lambda basis: (
        bool(basis.subject.schemas)
        and not basis.free
        and not {"axes.loops", "axes.keep_shapes", "axes.unsettled"} & basis.families
    ),
    vary=_beyond,
)
