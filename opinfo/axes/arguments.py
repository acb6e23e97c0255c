"""Axes of arguments: numbers and flags at their ends, operands of another dtype, 0-d tensors and Python scalars."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from itertools import chain, islice, zip_longest
from typing import Any

import torch

from opinfo.axes.basis import MOST, Axis, Basis, Variations, asking
from opinfo.axes.shapes import MAIN
from opinfo.compare import Call, difference, tensors_of
from opinfo.samples import Sample


def _ends(basis: Basis) -> Variations:
    yield from islice(_idle(basis), 1)
    known = {basis.arguments(s) for s in basis.drawn}
    for base in basis.bases:
        if basis.multiplies:  # sums of products times a factor are exact
            given = enumerate(base.tensors)
            whole = {p: basis.fill(base, p, t.shape) for p, t in given if t.dtype == basis.kind}
            base = replace(base, call=basis.rebuilt(base, whole))
        before = basis.answer(base.call)
        for call in islice(_in_turn(base), _TURNS):
            changed = repr_of(basis, base, call)
            if changed in known or (answer := basis.answer(call)) is None:
                continue
            told = before is None or difference(before, answer, {}) is not None
            if not told and "-1" not in changed:
                continue  # ignoring it would not show; a negative dimension is another way to name one
            if basis.taken(call) is not None:
                known.add(changed)
                yield base, call


#: Changes of one sample that are tried.
_TURNS = 6


def _idle(basis: Basis) -> Variations:
    """Calls that have nothing to do: the result is what the first operand holds."""
    if basis.dtype != ("float32" if "float32" in basis.op.dtypes else "int64"):
        return
    for base in basis.bases[:2]:
        first = base.tensors[0]
        others = partial(_nothing, shape=first.shape)
        for call in islice(_changed(base, others), 2 * _TURNS):
            answer = basis.answer(call)
            if answer and difference(answer[:1], [first], {}) is None and basis.taken(call):
                yield base, call


def _nothing(value: Any, shape: torch.Size) -> Iterator[Any]:
    """What says to do nothing: no steps, one copy, the extents that there are."""
    if isinstance(value, tuple) and value and all(type(each) is int for each in value):
        count = len(value)
        among: tuple[Any, ...] = (tuple(shape[-count:]), (0,) * count, (1,) * count)
    elif type(value) is int:
        among = (0, 1, *shape[-1:])
    else:
        among = (0.0, 1.0) if isinstance(value, float) else ()
    yield from (each for each in among if each != value)


def repr_of(basis: Basis, base: Sample, call: Call) -> str:
    """The arguments of a call that are no tensors."""
    return basis.arguments(Sample(0, call, base.process))


def _in_turn(base: Sample) -> Iterator[Call]:
    """The call with one argument changed: a flag turned, a number at an end of a dimension, 0 or negative."""
    extents = sorted({n for t in base.tensors for n in t.shape}, reverse=True)
    return _changed(base, lambda value: _values(value, extents))


def _changed(base: Sample, others: Callable[[Any], Iterator[Any]]) -> Iterator[Call]:
    """The call with one argument changed to each of the others that there are for it."""
    args, kwargs = base.call.args, base.call.kwargs
    changed = [
        [Call((*args[:place], other, *args[place + 1 :]), dict(kwargs)) for other in others(value)]
        for place, value in enumerate(args)
    ]
    changed += [
        [Call(args, {**kwargs, name: other}) for other in others(value)]
        for name, value in kwargs.items()
    ]
    for calls in zip_longest(*changed):  # each argument in turn, not all values of the first one
        yield from (call for call in calls if call is not None)


def _values(value: Any, extents: list[int]) -> Iterator[Any]:
    if isinstance(value, bool):
        yield not value
    elif isinstance(value, int):
        yield from (each for each in dict.fromkeys((*extents[:2], 0, -1, 1)) if each != value)
    elif isinstance(value, tuple) and value and all(type(each) is int for each in value):
        yield from (other for n in (1, 0, 2) if (other := (*value[:-1], n)) != value)
    elif isinstance(value, float):
        yield from (each for each in (0.0, 2.0, -1.5) if each != value)


ENDS = Axis(
    number=7,
    name="arguments",
    finds="A kernel that ignores an argument, that is wrong where it is 0, negative, or as large as a dimension, or that returns its operand where there is nothing to do.",
    bugs=("pytorch/pytorch#189664",),
    budget=5,
    layouts=("contiguous", "transposed+step_outer+offset"),
    applies=lambda basis: not basis.free and not basis.keeps_values,
    vary=_ends,
)


# -- operands of another kind


def _operands(basis: Basis) -> Variations:
    if basis.op.ufunc != "binary":
        yield from _of_another_kind(basis)
        return
    for base in basis.bases:
        args = base.call.args
        if len(args) < 2 or not all(isinstance(each, torch.Tensor) for each in args[:2]):
            continue
        first, number = basis.fill(base, 0, MAIN), basis.pool(base, 1)[0]
        for other in _kinds(basis, number):
            for pair in ((first, other), (basis.fill(base, 0, ()), basis.fill(base, 1, MAIN))):
                call = Call((*pair, *args[2:]), dict(base.call.kwargs))
                if basis.taken(call) is not None:
                    yield base, call
                if pair[1] is not other:
                    break
        return


def _of_another_kind(basis: Basis) -> Variations:
    """The calls of ops of other operands, where the CPU takes one of them as a number; or in another dtype, where the
    documentation says that it may have one: kernels of other devices may refuse what the CPU's take besides."""
    wide = [torch.complex128] if basis.kind.is_complex else [torch.float64, torch.int64]
    kinds: dict[torch.dtype, list[torch.dtype]] = {}
    if "axes.promotes" in basis.families:
        kinds[basis.kind] = wide
    if "axes.int32_index" in basis.families:
        kinds[torch.int64] = [torch.int32]
    tried = [(base, place) for base in basis.bases[:2] for place in range(len(base.tensors))]
    made: set[tuple[int, str]] = set()
    for base, place in tried if not basis.keeps_values else ():
        given = base.tensors[place]
        if len(base.tensors) < 2 or not given.numel():
            continue
        others = [("0-d", given.reshape(-1)[0].clone())] if given.dim() else []
        others += [
            (str(kind), given.to(kind))
            for kind in kinds.get(given.dtype, [])
            if kind != given.dtype
        ]
        for name, other in others:
            if (place, name) in made:
                continue
            call = basis.rebuilt(base, {place: other})
            if basis.taken(call) is not None:
                made.add((place, name))
                yield base, call


def _kinds(basis: Basis, number: torch.Tensor) -> Iterator[Any]:
    yield number.clone()
    if basis.op.takes_python_scalar:
        yield number.item()
    for kind in (torch.int64, torch.float32, torch.bool):
        if kind != basis.kind and not (kind == torch.int64 and basis.dtype == "bool"):
            yield (basis.choice(3, MAIN) + 1).to(kind)


OPERANDS = Axis(
    number=8,
    name="operands",
    finds="A kernel that reads a 0-d operand, a Python scalar or an operand of another dtype wrongly.",
    bugs=("ROCm/legacy-rocm-build#1432", "pytorch/pytorch#84364"),
    budget=5,
    layouts=("contiguous", "transposed+step_outer+offset"),
    applies=lambda basis: not basis.free and "axes.loops" not in basis.families,
    vary=_operands,
)


# -- how much is made of nothing


def _counts(basis: Basis) -> Variations:
    """Calls without tensors whose result is large, by each of their numbers; of calls with numbers of each type in turn."""
    by_type: dict[tuple[type, ...], list[Sample]] = {}
    for base in basis.drawn:
        by_type.setdefault(tuple(map(type, base.call.args)), []).append(base)
    known: set[tuple[tuple[int, ...], ...]] = set()
    for base in filter(None, chain(*zip_longest(*by_type.values()))):
        # Of extents those of each call after another: long ones, and then more of them.
        tried = [*_changed(base, _many)]
        turn = len(known) % max(len(tried), 1)
        for call in (*tried[turn:], *tried[:turn]):
            shapes = _on_meta(basis, call)
            large = _LARGE < max(map(math.prod, shapes), default=0) <= MOST
            if large and shapes not in known and basis.taken(call) is not None:
                known.add(shapes)
                yield base, call
                break


def _on_meta(basis: Basis, call: Call) -> tuple[tuple[int, ...], ...]:
    """The shapes of what a call without tensors makes: on the meta device, as it may be more than fits into memory. Empty
    where it names no device, or is refused."""
    args, kwargs = call.on([], torch.device("meta"))
    if kwargs.get("device") is None:
        return ()
    with asking():
        try:
            return tuple(tuple(t.shape) for t in tensors_of(basis.op.function(*args, **kwargs)))
        except Exception:  # of any type, as in _meta
            return ()


#: Elements that a result must have to be large.
_LARGE = 1024


def _many(value: Any) -> Iterator[Any]:
    """Larger numbers than this one: past 1,024 and past 16 bits, odd."""
    if type(value) is int:
        yield from (2057, -2057, 65_551)
    elif isinstance(value, float):
        yield from (2057.5, -2057.5)
    elif isinstance(value, tuple) and value and all(type(each) is int for each in value):
        yield from ((*value[:-1], 2057), (4099, 2, 1, 3, 1), (4099, *value[1:]))


COUNTS = Axis(
    number=17,
    name="counts",
    finds="A kernel that makes a tensor of numbers alone, and is wrong past a block of elements.",
    bugs=("pytorch/pytorch#58551", "pytorch/pytorch#18363"),
    budget=4,
    layouts=("contiguous",),
    applies=lambda basis: (
        bool(basis.drawn) and not basis.free and not any(s.tensors for s in basis.drawn)
    ),
    vary=_counts,
    writes=2,
)


# -- calls that are refused


def _refused(basis: Basis) -> Variations:
    """One call of each sort of what does not fit: operands, numbers, names, ranks."""
    every = [_unknown, _other_ranks]
    if "axes.keep_shapes" not in basis.families:  # else other extents may not be refused
        every = [_other_extents, _far, *every]
    for misfits in every:
        call = next(_refusals(basis, misfits), None)
        if call is not None:
            yield call


def _refusals(basis: Basis, misfits: Callable[[Sample], Iterator[Call]]) -> Variations:
    for base in basis.bases[:2]:
        for call in islice(misfits(base), _MISFITS):
            if basis.decisions.decide(partial(_is_refused, basis, base.call, call)):
                yield base, call


def _is_refused(basis: Basis, taken: Call, call: Call) -> bool:
    """Whether every device has to refuse a call that was made of one that it takes."""
    error = basis.refusal(call)
    if error is None:
        return False
    documented = isinstance(error, IndexError) and "Dimension out of range" in str(error)
    return documented or (_meta(basis, taken) and not _meta(basis, call))


#: Calls that are tried for one that is refused.
_MISFITS = 5


def _other_extents(base: Sample) -> Iterator[Call]:
    """The call with an operand that does not fit the others, or the op: a matrix that is not square."""
    tensors = base.tensors
    for place, tensor in enumerate(tensors):
        if tensor.dim() and tensor.shape[-1] > 1:
            longer = torch.cat([tensor, tensor[..., :2]], dim=-1)
            changed = [longer if n == place else each for n, each in enumerate(tensors)]
            yield Call(*base.call.bind(changed))


def _far(base: Sample) -> Iterator[Call]:
    """The call with a number that no dimension has, or an extent that is negative."""

    def far(value: Any) -> Iterator[Any]:
        if type(value) is int:
            yield _FAR
        elif isinstance(value, tuple) and value and all(type(each) is int for each in value):
            yield (*value[:-1], -_FAR)

    return _changed(base, far)


def _unknown(base: Sample) -> Iterator[Call]:
    """The call with a name that nothing has."""
    return _changed(base, lambda value: iter(["unknown"] if isinstance(value, str) else []))


def _other_ranks(base: Sample) -> Iterator[Call]:
    """The call whose first operand has no dimensions, or too many."""
    first, *others = base.tensors or [torch.empty(0)]
    if base.tensors:
        for shape in ((), [1] * 7):
            yield Call(*base.call.bind([first.new_zeros(shape), *others]))


#: No tensor has as many dimensions.
_FAR = 70


def _meta(basis: Basis, call: Call) -> bool:
    """Whether meta tensors, which have no kernels, take the call: they refuse what every device has to refuse."""
    args, kwargs = call.on([each.to("meta") for each in call.tensors], torch.device("meta"))
    with asking():
        try:
            basis.op.function(*args, **kwargs)
        except Exception:  # of any type: some have no kernel, and refuse the unchanged call too
            return False
    return True


REFUSED = Axis(
    number=11,
    name="refused",
    finds="A kernel that does not check its arguments, or whose error is lost.",
    bugs=("pytorch/pytorch#170507", "intel/torch-xpu-ops#5233"),
    budget=4,
    layouts=("contiguous",),
    keeps_shapes=True,
    applies=lambda basis: basis.dtype == ("float32" if "float32" in basis.op.dtypes else "int64"),
    vary=_refused,
)
