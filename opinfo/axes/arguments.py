"""Axes that vary arguments: extreme numbers and flipped flags, operands of another dtype, 0-d tensors and Python
scalars."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import chain, islice, zip_longest
from typing import Any

import torch

from opinfo.axes.axis_context import MOST, Axis, Basis, Variations, asking
from opinfo.axes.shapes import MAIN
from opinfo.compare import Arguments, difference, replace_tensors, tensors_of
from opinfo.samples import Sample


def _ends(basis: Basis) -> Variations:
    yield from islice(_idle(basis), 1)
    known = {basis.arguments(s) for s in basis.drawn}
    for base in basis.bases:
        if basis.multiplies:  # whole numbers: sums of products times a factor are exact
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
                continue  # a kernel that ignores the argument would pass; a negative dimension names the same one
            if basis.accepted(call) is not None:
                known.add(changed)
                yield base, call


#: The most changes to try for one sample.
_TURNS = 6


def _idle(basis: Basis) -> Variations:
    """Yields calls in which the op has nothing to do, so that the result equals the first operand."""
    if basis.dtype != ("float32" if "float32" in basis.subject.dtypes else "int64"):
        return
    for base in basis.bases[:2]:
        first = base.tensors[0]
        others = partial(_nothing, shape=first.shape)
        for call in islice(_changed(base, others), 2 * _TURNS):
            answer = basis.answer(call)
            if answer and difference(answer[:1], [first], {}) is None and basis.accepted(call):
                yield base, call


def _nothing(value: Any, shape: torch.Size) -> Iterator[Any]:
    """Yields values for an argument with which a call may have nothing to do: zero steps, one copy, or the sizes
    that the tensor already has. ``value`` is the argument's present value, ``shape`` the shape of the first operand."""
    if isinstance(value, tuple) and value and all(type(each) is int for each in value):
        count = len(value)
        among: tuple[Any, ...] = (tuple(shape[-count:]), (0,) * count, (1,) * count)
    elif type(value) is int:
        among = (0, 1, *shape[-1:])
    else:
        among = (0.0, 1.0) if isinstance(value, float) else ()
    yield from (each for each in among if each != value)


def repr_of(basis: Basis, base: Sample, call: Arguments) -> str:
    """Returns the arguments of a call as text, without the tensors."""
    return basis.arguments(Sample(0, call, base.process))


def _in_turn(base: Sample) -> Iterator[Arguments]:
    """Yields copies of a sample's call with one argument changed: a flag is flipped, or a number is set to 0, to a
    negative value or to the size of a dimension."""
    extents = sorted({n for t in base.tensors for n in t.shape}, reverse=True)
    return _changed(base, lambda value: _values(value, extents))


def _changed(base: Sample, others: Callable[[Any], Iterator[Any]]) -> Iterator[Arguments]:
    """Yields copies of a sample's call with one argument changed to each of the values that ``others`` yields for its
    present value."""
    args, kwargs = base.call.args, base.call.kwargs
    changed = [
        [
            Arguments((*args[:place], other, *args[place + 1 :]), dict(kwargs))
            for other in others(value)
        ]
        for place, value in enumerate(args)
    ]
    changed += [
        [Arguments(args, {**kwargs, name: other}) for other in others(value)]
        for name, value in kwargs.items()
    ]
    for calls in zip_longest(
        *changed
    ):  # one value for each argument in turn, before the second value of the first argument
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
    finds="A kernel that ignores an argument, that is wrong if an argument is 0, negative, or as large as a dimension, or that returns its operand itself if there is nothing to do.",
    bugs=("pytorch/pytorch#189664",),
    budget=5,
    layouts=("contiguous", "transposed+step_outer+offset"),
    applies=lambda basis: not basis.free and not basis.keeps_values,
    vary=_ends,
)


# -- operands of another kind


def _operands(basis: Basis) -> Variations:
    if basis.subject.ufunc != "binary":
        yield from _of_another_kind(basis)
        return
    for base in basis.bases:
        args = base.call.args
        if len(args) < 2 or not all(isinstance(each, torch.Tensor) for each in args[:2]):
            continue
        first, number = basis.fill(base, 0, MAIN), basis.pool(base, 1)[0]
        if basis.subject.takes_python_scalar and not hasattr(
            torch.Tensor, f"__r{basis.subject.id}__"
        ):
            ahead = Arguments(
                (basis.pool(base, 0)[0].item(), basis.fill(base, 1, MAIN), *args[2:]),
                dict(base.call.kwargs),
            )
            if basis.accepted(ahead) is not None:
                yield base, ahead
        pairs = [(first, other) for other in _kinds(basis, number)]
        pairs.insert(1, (basis.fill(base, 0, ()), basis.fill(base, 1, MAIN)))
        for pair in pairs:
            call = _with_ties(basis, Arguments((*pair, *args[2:]), dict(base.call.kwargs)))
            if basis.accepted(call) is not None:
                yield base, call
        return


def _with_ties(basis: Basis, call: Arguments) -> Arguments:
    """Returns a call of two operands in which every second element is equal to that of the other operand, if the op
    compares: numbers of different dtypes are rarely equal by chance, so the results would not depend on where a kernel
    reads them. The call of any other op is returned unchanged."""
    first, *others = call.tensors
    if not others or first.shape != others[0].shape or first.dtype == others[0].dtype:
        return call
    found = basis.answer(call)
    if not found or any(each.dtype != torch.bool for each in found):
        return call
    ties = (torch.arange(first.numel()) % 2 == 0).view(first.shape)
    return basis.rebound(call, [torch.where(ties, others[0].to(first.dtype), first), *others])


def _of_another_kind(basis: Basis) -> Variations:
    """Yields calls with one operand replaced by a 0-d tensor, if the CPU accepts it, or converted to another dtype, if
    the documentation allows that dtype. Other dtypes that the CPU accepts are not used, because other devices may
    reject them. A few calls have Python numbers in place of operands."""
    yield from islice(_numbers(basis), 2)
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
            if basis.accepted(call) is not None:
                made.add((place, name))
                yield base, call


def _numbers(basis: Basis) -> Variations:
    """Yields calls with Python numbers in place of operands other than the first: of one of them, and of all."""
    seen: set[frozenset[int]] = set()
    for base in basis.bases[:2] if not basis.keeps_values else ():
        places = [
            p for p, t in enumerate(base.tensors) if p and t.numel() and t.dtype == basis.kind
        ]
        for some in (frozenset(places), *(frozenset([place]) for place in places)):
            if not some or some in seen or not base.tensors[0].numel():
                continue
            ids = {id(base.tensors[place]) for place in some}
            numbered = replace_tensors(
                (base.call.args, base.call.kwargs), partial(_number_of, among=ids)
            )
            call = Arguments(*numbered)
            if basis.accepted(call) is not None:
                seen.add(some)
                yield base, call


def _number_of(tensor: torch.Tensor, among: Collection[int]) -> Any:
    """Returns the first element of a tensor as a number if its ``id`` is ``among`` the given ones; otherwise the tensor."""
    return tensor.reshape(-1)[0].item() if id(tensor) in among else tensor


def _kinds(basis: Basis, number: torch.Tensor) -> Iterator[Any]:
    yield number.clone()
    if basis.subject.takes_python_scalar:
        yield number.item()
    for kind in (torch.int64, torch.float32, torch.bool):
        if kind != basis.kind and not (kind == torch.int64 and basis.dtype == "bool"):
            yield (basis.choice(3, MAIN) + 1).to(kind)


OPERANDS = Axis(
    number=8,
    name="operands",
    finds="A kernel that reads a 0-d operand, a Python scalar or an operand of another dtype wrongly.",
    bugs=("ROCm/legacy-rocm-build#1432", "pytorch/pytorch#84364"),
    budget=7,
    layouts=("contiguous", "transposed+step_outer+offset"),
    applies=lambda basis: not basis.free and "axes.loops" not in basis.families,
    vary=_operands,
)


# -- large results of calls without tensors


def _counts(basis: Basis) -> Variations:
    """Yields calls without tensor arguments that return a large tensor, because a number among their arguments is
    larger than in the database's samples. There are calls for each combination of argument types."""
    by_type: dict[tuple[type, ...], list[Sample]] = {}
    for base in basis.drawn:
        by_type.setdefault(tuple(map(type, base.call.args)), []).append(base)
    known: set[tuple[tuple[int, ...], ...]] = set()
    for base in filter(None, chain(*zip_longest(*by_type.values()))):
        # Start at another change each time, so that calls with long and with many dimensions are used.
        tried = [*_changed(base, _many)]
        turn = len(known) % max(len(tried), 1)
        for call in (*tried[turn:], *tried[:turn]):
            shapes = _on_meta(basis, call)
            large = _LARGE < max(map(math.prod, shapes), default=0) <= MOST
            if large and shapes not in known and basis.accepted(call) is not None:
                known.add(shapes)
                yield base, call
                break


def _on_meta(basis: Basis, call: Arguments) -> tuple[tuple[int, ...], ...]:
    """Returns the shapes of the results of a call without tensor arguments. The call runs on the meta device, because
    the result may not fit into memory. The tuple is empty if the call has no ``device`` argument or raises."""
    args, kwargs = call.on([], torch.device("meta"))
    if kwargs.get("device") is None:
        return ()
    with asking():
        try:
            return tuple(
                tuple(t.shape) for t in tensors_of(basis.subject.reference(*args, **kwargs))
            )
        except Exception:  # an exception of any type, as in _meta
            return ()


#: A result with more elements than this is large.
_LARGE = 1024


def _many(value: Any) -> Iterator[Any]:
    """Yields larger values for an argument: values beyond 1,024 or beyond 16 bits, most of them odd."""
    if type(value) is int:
        yield from (2057, -2057, 65_551)
    elif isinstance(value, float):
        yield from (2057.5, -2057.5)
    elif isinstance(value, tuple) and value and all(type(each) is int for each in value):
        yield from ((*value[:-1], 2057), (4099, 2, 1, 3, 1), (4099, *value[1:]))


COUNTS = Axis(
    number=17,
    name="counts",
    finds="A kernel that creates a tensor from numbers, and is wrong if the tensor has more elements than one block processes.",
    bugs=("pytorch/pytorch#58551", "pytorch/pytorch#18363"),
    budget=4,
    layouts=("contiguous",),
    applies=lambda basis: (
        bool(basis.drawn) and not basis.free and not any(s.tensors for s in basis.drawn)
    ),
    vary=_counts,
    writes=2,
)


# -- calls that must raise


def _refused(basis: Basis) -> Variations:
    """Yields calls that must raise an error, at most one call for each reason: the size of an operand, a dimension
    number, a name, or the rank of an operand is wrong, a matrix is singular, or an operand has no elements. If no such call has a flag that is
    set, one call with a flag and a wrong size follows: a flag selects another kernel, with checks of its own."""
    every = [_unknown, _other_ranks]
    if "axes.singular" in basis.families:
        every = [*every, _of_zeros]
    if "axes.keep_shapes" not in basis.families:  # with this family, other extents may be accepted
        every = [_other_extents, _far, *every, _without_elements]
    for misfits in every:
        call = next(_refusals(basis, basis.bases[:2], misfits), None)
        if call is not None:
            yield call
    if "axes.keep_shapes" not in basis.families and not any(map(_has_flag, basis.bases[:1])):
        flagged = [base for base in basis.bases if _has_flag(base)]
        yield from islice(_refusals(basis, flagged[:1], _other_extents), 1)


def _has_flag(base: Sample) -> bool:
    """Returns True if an argument of a sample's call is True."""
    return any(value is True for value in (*base.call.args, *base.call.kwargs.values()))


def _refusals(
    basis: Basis, bases: Sequence[Sample], misfits: Callable[[Sample], Iterator[Arguments]]
) -> Variations:
    for base in bases:
        for call in islice(misfits(base), _MISFITS):
            if basis.decisions.decide(partial(_is_refused, basis, base.call, call)):
                yield base, call


def _is_refused(basis: Basis, taken: Arguments, call: Arguments) -> bool:
    """Returns True if every device must reject ``call``, which was made from an accepted call ``taken``."""
    error = basis.refusal(call)
    if error is None:
        return False
    documented = any(each in str(error) for each in _DOCUMENTED)
    return documented or (_meta(basis, taken) and not _meta(basis, call))


#: Parts of messages with which the CPU refuses arguments that no device may accept, even if the meta device accepts them:
#: a dimension that does not exist, the maximum of no elements (pytorch/pytorch#17750), values that do not fit an index, and
#: a matrix that has no inverse or no factors (pytorch/pytorch#165870).
_DOCUMENTED = (
    "Dimension out of range",
    "Expected reduction dim",
    "cannot be broadcast to indexing result",
    *("input matrix is singular", "is not positive-definite", "is zero and using it on lu_solve"),
)


#: The most calls to try until one is rejected.
_MISFITS = 5


def _other_extents(base: Sample) -> Iterator[Arguments]:
    """Yields copies of a sample's call in which the last dimension of one operand does not fit the other operands or
    the op."""
    tensors = base.tensors
    for place, tensor in enumerate(tensors):
        if tensor.dim() and tensor.shape[-1] > 1:
            longer = torch.cat([tensor, tensor[..., :2]], dim=-1)
            changed = [longer if n == place else each for n, each in enumerate(tensors)]
            yield Arguments(*base.call.bind(changed))


def _far(base: Sample) -> Iterator[Arguments]:
    """Yields copies of a sample's call with a dimension number that no tensor has, or with a negative size."""

    def far(value: Any) -> Iterator[Any]:
        if type(value) is int:
            yield _FAR
        elif isinstance(value, tuple) and value and all(type(each) is int for each in value):
            yield (*value[:-1], -_FAR)

    return _changed(base, far)


def _unknown(base: Sample) -> Iterator[Arguments]:
    """Yields copies of a sample's call with an unknown name in place of a string argument."""
    return _changed(base, lambda value: iter(["unknown"] if isinstance(value, str) else []))


def _other_ranks(base: Sample) -> Iterator[Arguments]:
    """Yields copies of a sample's call in which the first operand has no dimensions or seven dimensions."""
    first, *others = base.tensors or [torch.empty(0)]
    if base.tensors:
        for shape in ((), [1] * 7):
            yield Arguments(*base.call.bind([first.new_zeros(shape), *others]))


def _of_zeros(base: Sample) -> Iterator[Arguments]:
    """Yields a copy of a sample's call with zeros in place of matrices: they have no inverse."""
    first, *others = base.tensors or [torch.empty(0)]
    if first.dim() > 1 and (first.is_floating_point() or first.is_complex()):
        yield Arguments(*base.call.bind([torch.zeros_like(first), *others]))


def _without_elements(base: Sample) -> Iterator[Arguments]:
    """Yields copies of a sample's call in which a size of all operands is 0, or each size: the largest of no elements does
    not exist. The operands must have one shape, so that they fit each other."""
    shapes = {each.shape for each in base.tensors if each.numel()}
    if len(shapes) != 1 or () in shapes:
        return
    (shape,) = shapes
    for empty in ((*shape[:-1], 0), (0, *shape[1:]), (0,) * len(shape)):
        yield Arguments(*base.call.bind([each.new_zeros(empty) for each in base.tensors]))


#: A number that is larger than the rank of any tensor.
_FAR = 70


def _meta(basis: Basis, call: Arguments) -> bool:
    """Returns True if a call succeeds on the meta device, which checks arguments but computes nothing. Every device
    must reject a call that the meta device rejects."""
    args, kwargs = call.on([each.to("meta") for each in call.tensors], torch.device("meta"))
    with asking():
        try:
            basis.subject.reference(*args, **kwargs)
        except (
            Exception
        ):  # an exception of any type: some ops do not work on the meta device at all
            return False
    return True


REFUSED = Axis(
    number=11,
    name="refused",
    finds="A kernel that does not check its arguments, or whose error message is lost.",
    bugs=("pytorch/pytorch#170507", "intel/torch-xpu-ops#5233", "pytorch/pytorch#77406"),
    budget=6,
    layouts=("contiguous",),
    keeps_shapes=True,
    applies=lambda basis: (
        basis.dtype == ("float32" if "float32" in basis.subject.dtypes else "int64")
    ),
    vary=_refused,
)
