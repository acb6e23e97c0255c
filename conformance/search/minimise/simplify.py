"""Simpler forms of a failing call, one aspect at a time: which sample, dimensions, sizes, layouts, arguments,
values.

An aspect offers a space of integer vectors in which 0 is simplest and the largest vector is the call as it is.
hypothesis searches the space and shrinks towards 0 (:mod:`conformance.search.minimise.shrink`). If the op refuses a
form, that is not a failure of the same kind, so nothing here needs to know what an op accepts.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Any, Final

import torch

from conformance.search.minimise.subject import Candidate
from opinfo.compare import Call, bit_equal, tensors_of
from opinfo.layouts import EXPAND, MEMORY, STEP, AnyLayout, FreeLayout, Layout
from opinfo.samples import Sample

Vector = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Space:
    """Vectors from all zeros to ``bounds``; ``build`` makes the candidate of one, None where it has none."""

    bounds: Vector
    build: Callable[[Vector], Candidate | None]

    @property
    def size(self) -> int:
        count = 1
        for bound in self.bounds:
            count *= bound + 1
        return count


Aspect = Callable[[Candidate], Space]


def complexity(sample: Sample) -> tuple[int, ...]:
    """How much there is to read in a call: dimensions, tensors, arguments, elements; then its place."""
    tensors = sample.tensors
    plain = len(sample.call.args) + len(sample.call.kwargs)
    dims = sum(t.dim() for t in tensors)
    return (sample.rank, dims, len(tensors), plain, sample.numel, sample.index)


def other_samples(drawn: Sequence[Sample]) -> Aspect:
    """A simpler sample of the database in place of this one."""
    ordered = sorted(drawn, key=complexity)

    def aspect(current: Candidate) -> Space:
        mine = complexity(current.sample)[:-1]
        simpler = [s for s in ordered if complexity(s)[:-1] < mine]

        def build(vector: Vector) -> Candidate:
            if vector[0] == len(simpler):
                return current
            return replace(current, sample=simpler[vector[0]])

        return Space((len(simpler),), build)

    return aspect


def fewer_dimensions(current: Candidate) -> Space:
    """One dimension less: of all tensors of the largest rank, or of one tensor.

    The second number says what happens to lists of integers among the arguments: nothing (0), or the entry of the
    dropped dimension is removed, if they list sizes (1) or dimensions (2).
    """
    tensors = current.sample.tensors
    rank = current.sample.rank
    strided = [i for i, t in enumerate(tensors) if t.layout == torch.strided and t.dim()]
    highest = [i for i in strided if tensors[i].dim() == rank]
    drops: list[dict[int, int]] = [dict.fromkeys(highest, d) for d in range(rank)]
    if len(strided) > 1:
        drops += [{i: d} for i in strided for d in dict.fromkeys((0, tensors[i].dim() - 1))]
    # A dimension of size 0 cannot be dropped: nothing would be left to select.
    drops = [d for d in drops if d and all(tensors[i].shape[dim] for i, dim in d.items())]

    def build(vector: Vector) -> Candidate | None:
        if vector[0] == len(drops):
            return None
        dropped = drops[vector[0]]
        call = current.sample.call
        how = _without_size if vector[1] == 1 else _without_dimension
        dim = next(iter(dropped.values()))
        changed = _lists((call.args, call.kwargs), lambda v: how(v, dim, rank))
        return with_tensors(
            with_call(current, Call(*changed)) if vector[1] else current,
            [t.select(dropped[i], 0) if i in dropped else t for i, t in enumerate(tensors)],
        )

    return Space((len(drops), 2), build)


def _without_size(value: list[int], dim: int, rank: int) -> list[int]:
    return [*value[:dim], *value[dim + 1 :]] if len(value) == rank else value


def _without_dimension(value: list[int], dim: int, rank: int) -> list[int]:
    places = [v % rank for v in value if -rank <= v < rank]
    return [v - (v > dim) for v in places if v != dim] if len(places) == len(value) else value


def _lists(value: Any, change: Callable[[list[int]], list[int]]) -> Any:
    """The structure with every list or tuple of whole numbers changed."""
    if isinstance(value, dict):
        return {k: _lists(v, change) for k, v in value.items()}
    if type(value) not in (list, tuple):
        return value
    if value and all(type(v) is int for v in value):
        return type(value)(change(list(value)))
    return type(value)(_lists(v, change) for v in value)


def smaller_sizes(current: Candidate) -> Space:
    """Equal sizes, wherever they occur, are made smaller together. The last number says whether integers among
    the arguments that equal them change too."""
    tensors = [t for t in current.sample.tensors if t.layout == torch.strided]
    sizes = sorted({n for t in tensors for n in t.shape if n > 1}, reverse=True)
    if not sizes:
        return Space((), lambda _: current)

    def build(vector: Vector) -> Candidate | None:
        chosen = {size: n + 1 for size, n in zip(sizes, vector, strict=False)}
        if all(size == n for size, n in chosen.items()):
            return None
        smaller = [
            t[tuple(slice(chosen.get(n, n)) for n in t.shape)] if t.layout == torch.strided else t
            for t in current.sample.tensors
        ]
        if not vector[-1]:
            return with_tensors(current, smaller)
        call = current.sample.call
        args, kwargs = _numbers(call.args, chosen), _numbers(call.kwargs, chosen)
        return with_tensors(with_call(current, Call(args, kwargs)), smaller)

    return Space((*(size - 1 for size in sizes), 1), build)


def _numbers(value: Any, chosen: dict[int, int]) -> Any:
    """The structure with whole numbers inside lists and tuples exchanged."""
    if isinstance(value, dict):
        return {k: _numbers(v, chosen) for k, v in value.items()}
    if type(value) in (list, tuple):
        return type(value)(_numbers(v, chosen) for v in value)
    return chosen.get(value, value) if type(value) is int else value


def simpler_layouts(current: Candidate) -> Space:
    """Each factor of each layout less."""
    firsts, rests = _simpler(current.first), _simpler(current.rest)
    targets = _simpler(current.target)
    alone = len(current.sample.tensors) < 2  # then the layout of the rest says nothing

    def build(vector: Vector) -> Candidate:
        first, rest, target = vector
        return replace(
            current,
            first=firsts[first],
            rest=firsts[first] if alone else rests[rest],
            target=targets[target],
        )

    return Space((len(firsts) - 1, 0 if alone else len(rests) - 1, len(targets) - 1), build)


def _simpler(layout: AnyLayout) -> list[AnyLayout]:
    """The layouts that are simpler than this one, and it, the simplest first."""
    if isinstance(layout, FreeLayout):
        free = [
            FreeLayout(order, steps, expand, offset)
            for order in dict.fromkeys(((), layout.order))
            for steps in dict.fromkeys(((), *_fewer_steps(layout.steps), layout.steps))
            for expand in dict.fromkeys((None, layout.expand))
            for offset in dict.fromkeys((0, min(layout.offset, 1), layout.offset))
        ]
        return [*_NAMED, *sorted((f for f in free if f != layout), key=_free_weight), layout]
    memory = MEMORY[: MEMORY.index(layout.memory) + 1]
    step = STEP[: STEP.index(layout.step) + 1]
    expand = EXPAND[: EXPAND.index(layout.expand) + 1]
    offset = (False, True) if layout.offset else (False,)
    found = [Layout(*factors) for factors in product(memory, step, expand, offset)]
    found.sort(key=_weight)
    return [*(f for f in found if f != layout), layout]


def _fewer_steps(steps: tuple[int, ...]) -> list[tuple[int, ...]]:
    """One step at a time undone."""
    return [(*steps[:i], 1, *steps[i + 1 :]) for i, s in enumerate(steps) if s > 1]


def _weight(layout: Layout) -> tuple[int, int, int, int, bool]:
    places = (
        MEMORY.index(layout.memory),
        STEP.index(layout.step),
        EXPAND.index(layout.expand),
    )
    return (sum(p > 0 for p in places) + layout.offset, *places, layout.offset)


def _free_weight(layout: FreeLayout) -> tuple[int, int]:
    odd = sum(s > 1 for s in layout.steps) + len(layout.order) + (layout.expand is not None)
    return (odd + (layout.offset > 0), layout.offset)


_NAMED: list[AnyLayout] = [
    *sorted(
        (Layout(*factors) for factors in product(MEMORY, STEP, EXPAND, (False, True))), key=_weight
    )
]


def simpler_arguments(current: Candidate) -> Space:
    """Optional arguments left out, lists of tensors shortened, numbers exchanged for 0, 1 and 2."""
    call = current.sample.call
    found = slots(call.args, call.kwargs)

    def build(vector: Vector) -> Candidate:
        return with_call(current, Call(*with_choices(call.args, call.kwargs, found, vector)))

    return Space(tuple(len(slot.options) for slot in found), build)


class _Drop:
    """Stands for an argument that is left out."""

    def __repr__(self) -> str:
        return "left out"


DROP: Final = _Drop()

#: Lists of numbers up to this length are simplified number by number.
_SHORT = 6


@dataclass(frozen=True, slots=True)
class Slot:
    """One place among the arguments: keys from the outside in, and what may stand there, simplest first."""

    path: tuple[int | str, ...]
    options: tuple[Any, ...]


def slots(args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Slot]:
    """The places that have something simpler, keywords first: without them a call is easiest to read."""
    found: list[Slot] = []
    for name, value in kwargs.items():
        found.append(Slot(("kwargs", name), (DROP, *_options(value))))
        found += _inside(("kwargs", name), value)
    for place, value in reversed(list(enumerate(args))):
        droppable = (DROP,) if place == len(args) - 1 and place > 0 else ()
        options = (*droppable, *_options(value))
        if options:
            found.append(Slot(("args", place), options))
        found += _inside(("args", place), value)
    return found


def _options(value: Any) -> tuple[Any, ...]:
    """Simpler values than this one."""
    if isinstance(value, bool):
        return (False,) if value else ()
    if isinstance(value, int):
        return tuple(n for n in (0, 1, 2) if n < abs(value))
    if isinstance(value, float):
        return tuple(n for n in (0.0, 1.0, 2.0) if n != value and not n > abs(value))
    if isinstance(value, complex):
        return tuple(n for n in (0j, 1 + 0j) if n != value and abs(n) <= abs(value))
    if type(value) in (list, tuple) and len(value) > 1 and _only_tensors(value):
        return tuple(value[:count] for count in range(1, len(value)))
    return ()


def _only_tensors(value: Sequence[Any]) -> bool:
    return all(isinstance(v, torch.Tensor) for v in value)


def _inside(path: tuple[int | str, ...], value: Any) -> list[Slot]:
    if type(value) not in (list, tuple) or len(value) > _SHORT or tensors_of(value):
        return []
    return [Slot((*path, i), options) for i, v in enumerate(value) if (options := _options(v))]


def with_choices(
    args: tuple[Any, ...], kwargs: dict[str, Any], places: Sequence[Slot], vector: Sequence[int]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The arguments with option ``vector[n]`` at place ``n``; past the last option it stays as it is."""
    new_args, new_kwargs = list(args), dict(kwargs)
    dropped = False
    for slot, choice in sorted(
        zip(places, vector, strict=True), key=lambda pair: len(pair[0].path)
    ):
        if choice >= len(slot.options):
            continue
        option, (side, key, *inner) = slot.options[choice], slot.path
        if side == "kwargs":
            if key not in new_kwargs:
                continue
            if option is DROP:
                del new_kwargs[str(key)]
            else:
                new_kwargs[str(key)] = _exchanged(new_kwargs[str(key)], inner, option)
        elif option is DROP:
            dropped = True
        else:
            place = int(key)
            new_args[place] = _exchanged(new_args[place], inner, option)
    if dropped:
        new_args.pop()
    return tuple(new_args), new_kwargs


def _exchanged(value: Any, path: Sequence[int | str], option: Any) -> Any:
    if not path:
        return option
    place = int(path[0])
    items = list(value)
    items[place] = _exchanged(items[place], path[1:], option)
    return type(value)(items)


def simpler_values(current: Candidate) -> Space:
    """Zeros, ones, or 0, 1, 2, … in place of each tensor's own values."""
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
    """The simplest fill that gives the tensor's values; 3 for values of its own."""
    if tensor.layout != torch.strided or not tensor.numel():
        return 0
    for fill in range(3):
        if bit_equal(_filled(tensor, fill), tensor):
            return fill
    return 3


def _filled(tensor: torch.Tensor, fill: int) -> torch.Tensor:
    if fill == 3:
        return tensor
    if fill < 2:
        return torch.full(tensor.shape, fill, dtype=torch.int64).to(tensor.dtype)
    count = torch.arange(tensor.numel()).reshape(tensor.shape)
    if tensor.dtype == torch.bool:
        count = count % 2
    return count.to(tensor.dtype)


def with_tensors(current: Candidate, tensors: Sequence[torch.Tensor]) -> Candidate:
    """The candidate with other tensors, made contiguous where they are strided."""
    plain = [
        t.clone(memory_format=torch.contiguous_format) if t.layout == torch.strided else t
        for t in tensors
    ]
    args, kwargs = current.sample.call.bind(plain)
    return with_call(current, Call(args, dict(kwargs)))


def with_call(current: Candidate, call: Call) -> Candidate:
    """The candidate with another call."""
    return replace(current, sample=replace(current.sample, call=call))
