"""Simpler variants of a failing call, one aspect at a time: sample, dimensions, sizes, layouts, arguments, values.

An aspect offers a space of integer vectors. The zero vector is the simplest variant, and the largest vector is the call
as it is. Hypothesis searches the space and shrinks towards zero (:mod:`conformance.search.minimise.shrink`). The module
does not need to know which calls an op accepts: if the op rejects a variant, the failure is of another kind, and the
variant is not used.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import product
from operator import le
from typing import Any, Final

import torch

from conformance.search.minimise.candidates import Candidate, copies
from opinfo.compare import Arguments, bit_equal, tensors_of
from opinfo.layouts import EXPAND, MEMORY, STEP, AnyLayout, FreeLayout, Layout
from opinfo.samples import Sample

Vector = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Space:
    """A space of simpler calls: the integer vectors from all zeros to ``bounds``. ``build`` returns the call that
    belongs to a vector, or None if no call belongs to it."""

    bounds: Vector
    build: Callable[[Vector], Candidate | None]


Aspect = Callable[[Candidate], Space]


def complexity(sample: Sample) -> tuple[int, ...]:
    """Returns a sort key for how complex a call is to read: the numbers of dimensions, tensors, arguments and elements."""
    tensors = sample.tensors
    plain = len(sample.call.args) + len(sample.call.kwargs)
    return (sample.rank, sum(t.dim() for t in tensors), len(tensors), plain, sample.numel)


def other_samples(drawn: Sequence[Sample], current: Candidate) -> Space:
    """Returns the space of calls in which the sample is replaced by a simpler sample of the database."""
    mine = complexity(current.sample)
    simpler = sorted((each for each in drawn if complexity(each) < mine), key=complexity)
    return Space((len(simpler),), lambda vector: replace(current, sample=simpler[vector[0]]))


def fewer_dimensions(current: Candidate) -> Space:
    """Returns the space of calls in which one dimension is dropped, either from all tensors of the largest rank or from
    one tensor.

    The second number of a vector says how lists of integers among the arguments are changed. 0: the lists are not
    changed. 1: the integers are treated as sizes, and the size of the dropped dimension is removed. 2: the integers are
    treated as numbers of dimensions, the dropped dimension is removed, and the other dimensions are renumbered.
    """
    tensors = current.sample.tensors
    rank = current.sample.rank
    strided = [i for i, t in enumerate(tensors) if t.layout == torch.strided and t.dim()]
    highest = [i for i in strided if tensors[i].dim() == rank]
    drops: list[dict[int, int]] = [dict.fromkeys(highest, d) for d in range(rank)]
    if len(strided) > 1:
        drops += [{i: d} for i in strided for d in dict.fromkeys((0, tensors[i].dim() - 1))]
    # A dimension of size 0 cannot be dropped, because it has no element to select.
    drops = [d for d in drops if d and all(tensors[i].shape[dim] for i, dim in d.items())]

    def build(vector: Vector) -> Candidate | None:
        if vector[0] == len(drops):
            return None
        dropped = drops[vector[0]]
        dim = next(iter(dropped.values()))

        def shorter(value: Any) -> Any:
            if type(value) not in (list, tuple) or not all(type(n) is int for n in value):
                return value
            left = value
            if vector[1] == 1 and len(value) == rank:
                left = [*value[:dim], *value[dim + 1 :]]
            elif vector[1] == 2 and all(-rank <= n < rank for n in value):
                left = [n % rank - (n % rank > dim) for n in value if n % rank != dim]
            return type(value)(left)

        selected = [t.select(dropped[i], 0) if i in dropped else t for i, t in enumerate(tensors)]
        return with_tensors(_with_arguments(current, shorter), selected)

    return Space((len(drops), 2), build)


def _with_arguments(current: Candidate, change: Callable[[Any], Any]) -> Candidate:
    """Returns the candidate with ``change`` applied to each argument and to each part of an argument."""
    call = current.sample.call
    return with_call(current, Arguments(*_changed((call.args, call.kwargs), change)))


def _changed(value: Any, change: Callable[[Any], Any]) -> Any:
    """Returns a copy of nested lists, tuples and dicts in which ``change`` is applied to every part, the outermost
    first. Parts inside a part that ``change`` replaced are not visited."""
    changed = change(value)
    if changed is value and isinstance(value, dict):
        return {key: _changed(each, change) for key, each in value.items()}
    if changed is value and type(value) in (list, tuple):
        return type(value)(_changed(each, change) for each in value)
    return changed


def smaller_sizes(current: Candidate) -> Space:
    """Returns the space of calls with smaller sizes; equal sizes stay equal. The last number of a vector says whether
    an integer argument that is equal to a size changes together with that size."""
    tensors = [t for t in current.sample.tensors if t.layout == torch.strided]
    sizes = sorted({n for t in tensors for n in t.shape if n > 1}, reverse=True)

    def build(vector: Vector) -> Candidate | None:
        chosen = {size: n + 1 for size, n in zip(sizes, vector, strict=False)}
        if all(size == n for size, n in chosen.items()):
            return None
        smaller = [
            t[tuple(slice(chosen.get(n, n)) for n in t.shape)] if t.layout == torch.strided else t
            for t in current.sample.tensors
        ]
        numbers = chosen if vector[-1] else {}
        change = _with_arguments(current, lambda v: numbers.get(v, v) if type(v) is int else v)
        return with_tensors(change, smaller)

    return Space((*(size - 1 for size in sizes), int(bool(sizes))), build)


def simpler_layouts(current: Candidate) -> Space:
    """Returns the space of calls whose tensors and ``out=`` target have simpler layouts."""
    firsts, rests = _simpler(current.first), _simpler(current.rest)
    targets = _simpler(current.target)
    alone = len(current.sample.tensors) < 2  # then there is no rest to lay out

    def build(vector: Vector) -> Candidate:
        first, target = firsts[vector[0]], targets[vector[2]]
        rest = first if alone else rests[vector[1]]
        return replace(current, first=first, rest=rest, target=target)

    return Space((len(firsts) - 1, 0 if alone else len(rests) - 1, len(targets) - 1), build)


def _simpler(layout: AnyLayout) -> list[AnyLayout]:
    """Returns the layouts that are simpler than ``layout``, followed by ``layout`` itself, the simplest first."""
    if isinstance(layout, Layout):
        mine = _factors(layout)
        return [each for each in NAMED if all(map(le, _factors(each), mine))]
    steps = layout.steps
    fewer_steps = [(*steps[:i], 1, *steps[i + 1 :]) for i, step in enumerate(steps) if step > 1]
    forms = product(
        ((), layout.order),
        ((), *fewer_steps, steps),
        (None, layout.expand),
        (0, min(layout.offset, 1), layout.offset),
    )
    free = {FreeLayout(*form): None for form in forms}
    return [*NAMED, *sorted((f for f in free if f != layout), key=_free_weight), layout]


def _factors(layout: Layout) -> tuple[int, int, int, int]:
    """Returns one number for each property of a layout (memory order, step, expand, offset); the number is 0 if the
    property has its simplest value."""
    return (
        MEMORY.index(layout.memory),
        STEP.index(layout.step),
        EXPAND.index(layout.expand),
        int(layout.offset),
    )


def _weight(layout: Layout) -> tuple[int, ...]:
    factors = _factors(layout)
    return (sum(map(bool, factors)), *factors)


def _free_weight(layout: FreeLayout) -> tuple[int, int]:
    odd = sum(s > 1 for s in layout.steps) + len(layout.order) + (layout.expand is not None)
    return (odd + (layout.offset > 0), layout.offset)


#: All named layouts, the simplest first.
NAMED: Final = sorted(
    (Layout(*factors) for factors in product(MEMORY, STEP, EXPAND, (False, True))), key=_weight
)


def simpler_arguments(current: Candidate) -> Space:
    """Returns the space of calls without some optional arguments, with shorter lists of tensors, and with numbers
    replaced by 0, 1 and 2."""
    call = current.sample.call
    found = slots(call)
    bounds = tuple(len(slot.options) for slot in found)
    return Space(bounds, lambda vector: with_call(current, with_choices(call, found, vector)))


#: Marks an argument that is left out.
DROP: Final = object()

#: Lists of numbers up to this length are simplified number by number.
_SHORT = 6


@dataclass(frozen=True, slots=True)
class Slot:
    """One place among the arguments of a call: the keys that lead to the place from the outside in, and the values that
    may be put there, the simplest first."""

    path: tuple[int | str, ...]
    options: tuple[Any, ...]


def slots(call: Arguments) -> list[Slot]:
    """Returns the places among the arguments for which a simpler value exists. Keyword arguments come first, because a
    call without them is easiest to read."""
    found: list[Slot] = []
    for name, value in call.kwargs.items():
        found.append(Slot(("kwargs", name), (DROP, *_options(value))))
        found += _inside(("kwargs", name), value)
    for place, value in reversed(list(enumerate(call.args))):
        droppable = (DROP,) if place == len(call.args) - 1 and place > 0 else ()
        if options := (*droppable, *_options(value)):
            found.append(Slot(("args", place), options))
        found += _inside(("args", place), value)
    return found


def _options(value: Any) -> tuple[Any, ...]:
    """Returns simpler values of the same type as ``value``."""
    if isinstance(value, bool):
        return (False,) if value else ()
    if isinstance(value, int):
        return tuple(n for n in (0, 1, 2) if n < abs(value))
    if isinstance(value, float):
        return tuple(n for n in (0.0, 1.0, 2.0) if n != value and not n > abs(value))
    if isinstance(value, complex):
        return tuple(n for n in (0j, 1 + 0j) if n != value and abs(n) <= abs(value))
    if type(value) in (list, tuple) and all(isinstance(v, torch.Tensor) for v in value):
        return tuple(value[:count] for count in range(1, len(value)))
    return ()


def _inside(path: tuple[int | str, ...], value: Any) -> list[Slot]:
    if type(value) not in (list, tuple) or len(value) > _SHORT or tensors_of(value):
        return []
    return [Slot((*path, i), options) for i, v in enumerate(value) if (options := _options(v))]


def with_choices(call: Arguments, places: Sequence[Slot], vector: Vector) -> Arguments:
    """Returns the call with option ``vector[n]`` at place ``n``. An index past the last option keeps the value."""
    held: dict[str, Any] = {"args": [*call.args], "kwargs": {**call.kwargs}}
    chosen = [
        (slot.path, slot.options[choice])
        for slot, choice in zip(places, vector, strict=True)
        if choice < len(slot.options)
    ]
    for path, option in chosen:
        if option is not DROP:
            held = _exchanged(held, path, option)
    for (side, key), _ in (each for each in chosen if each[1] is DROP):
        del held[str(side)][key]
    return Arguments(tuple(held["args"]), held["kwargs"])


def _exchanged(value: Any, path: Sequence[int | str], option: Any) -> Any:
    """Returns a copy of a nested structure with ``option`` at the place to which the keys in ``path`` lead."""
    if not path:
        return option
    items: Any = value.copy() if isinstance(value, dict) else list(value)
    items[path[0]] = _exchanged(value[path[0]], path[1:], option)
    return type(value)(items)


def simpler_values(current: Candidate) -> Space:
    """Returns the space of calls in which the values of each tensor are replaced by zeros, ones, or 0, 1, 2, …."""
    tensors = current.sample.tensors
    bounds = tuple(map(_fill_of, tensors))

    def build(vector: Vector) -> Candidate:
        filled = [
            t if bound == 0 else _filled(t, fill)
            for t, bound, fill in zip(tensors, bounds, vector, strict=True)
        ]
        return with_tensors(current, filled)

    return Space(bounds, build)


def _fill_of(tensor: torch.Tensor) -> int:
    """Returns the number of the simplest fill (0: zeros, 1: ones, 2: 0, 1, 2, …) that gives the tensor's values; 3 if
    none does."""
    if tensor.layout != torch.strided or not tensor.numel():
        return 0
    return next((fill for fill in range(3) if bit_equal(_filled(tensor, fill), tensor)), 3)


def _filled(tensor: torch.Tensor, fill: int) -> torch.Tensor:
    if fill == 3:
        return tensor
    if fill < 2:
        return torch.full(tensor.shape, fill, dtype=torch.int64).to(tensor.dtype)
    count = torch.arange(tensor.numel()).reshape(tensor.shape)
    return (count % 2 if tensor.dtype == torch.bool else count).to(tensor.dtype)


#: The aspects that are simplified, in this order.
ASPECTS: Final[tuple[Aspect, ...]] = (
    fewer_dimensions,
    smaller_sizes,
    simpler_layouts,
    simpler_arguments,
    simpler_values,
)

#: The aspects that keep the sizes of tensors, and the arguments that may have to fit them.
KEEPING_SIZES: Final[tuple[Aspect, ...]] = (simpler_layouts, simpler_values)


def with_tensors(current: Candidate, tensors: Sequence[torch.Tensor]) -> Candidate:
    """Returns the candidate with the given tensors in place of its own. Given tensors that are strided are copied to
    contiguous ones."""
    args, kwargs = current.sample.call.bind(copies(tensors))
    return with_call(current, Arguments(args, dict(kwargs)))


def with_call(current: Candidate, call: Arguments) -> Candidate:
    return replace(current, sample=replace(current.sample, call=call))
