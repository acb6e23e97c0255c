"""Axes that vary values: special values, large integers, indices that repeat or lie at the edge, and elements of one
sign."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import islice

import torch

from opinfo.axes.axis_context import Axis, Basis, Variations, asking, exactly, flushed
from opinfo.axes.planting import planted
from opinfo.axes.shapes import roomy, starting_at
from opinfo.compare import DEFAULT_TOLERANCES, Arguments, tensors_of
from opinfo.samples import Sample, seed_everything

#: The number of elements after the last whole vector, for vectors of 8, 16 and 32 elements.
_TAIL = 7
_ELEMENTS = 96 + _TAIL
#: The side of square matrices: with one operand, and with several.
_SIDE, _PAIRS_SIDE = 11, 22
#: The length to which vectors are repeated: more than 2^16, and odd.
_MANY = 2**16 + 619


# -- special values of floating-point dtypes


def special_values(kind: torch.dtype) -> torch.Tensor:
    """Returns a one-dimensional tensor of special values of a floating-point dtype: NaN, infinities and zeros,
    numbers such as 0.5 and 2.5, the smallest normal number and a subnormal one, and the largest finite number, with
    both signs."""
    about, inf, nan = torch.finfo(kind), math.inf, math.nan
    among = [0.0, 0.5, 1.0, 1.5, 2.5, 101.5, about.max, about.tiny, about.tiny / 4, inf]
    return torch.tensor([nan, *among, *(-each for each in among)], dtype=torch.float64).to(kind)


#: Real and imaginary parts of complex numbers that kernels treat apart: 0, 1, -1, purely real, purely imaginary, and with
#: equal parts. All zeros are positive, because the result on a branch cut depends on their sign. There are no infinities
#: and no NaN, because no document says what complex arithmetic makes of them.
_COMPLEX = (
    *((0.0, 0.0), (1.0, 0.0), (-1.0, 0.0), (0.0, 1.0), (0.0, -1.0), (2.5, 0.0), (-101.5, 0.0)),
    *((0.0, 0.5), (0.0, -2.5), (1.0, 1.0), (-1.0, 1.0), (0.5, -2.0), (-2.5, -0.25)),
)


def complex_values(kind: torch.dtype) -> torch.Tensor:
    """Returns a one-dimensional tensor of zeros, ones, and purely real and purely imaginary numbers of a complex
    dtype."""
    return torch.complex(*torch.tensor(_COMPLEX, dtype=torch.float64).unbind(-1)).to(kind)


def _complex_specials(basis: Basis) -> Variations:
    if basis.elementwise:
        yield from islice(_vectors(basis), 2)
        return
    if basis.keeps_values or "axes.loops" in basis.families:
        return
    values = complex_values(basis.kind)
    for base in basis.bases[:2]:
        held = {p: t for p, t in enumerate(base.tensors) if t.dtype == basis.kind and t.numel() > 1}
        made = {p: values[basis.choice(len(values), t.shape)] for p, t in held.items()}
        call = basis.rebuilt(base, made)
        if made and basis.settled(call) and basis.accepted(call) is not None:
            yield base, call


def _specials(basis: Basis) -> Variations:
    if basis.kind.is_complex:
        yield from _complex_specials(basis)
        return
    if basis.returns_no_tensor and all(
        t.numel() == 1 for base in basis.bases for t in base.tensors
    ):
        yield from _one_by_one(basis)
        return
    vectors = list(islice(_vectors(basis), len(_FORMS))) if basis.elementwise else []
    if "axes.loops" in basis.families:  # the operand that counts iterations keeps its values
        yield from vectors
        return
    yield from vectors or planted(basis)
    # Some operands, such as the weight of prelu, are not vectors where another operand is one.
    varied = max((len(_floating(basis, base)) for base, _ in vectors), default=0)
    if vectors and varied < max(len(_floating(basis, base)) for base in basis.bases):
        yield from islice(planted(basis), 1)
    if basis.subject.takes_python_scalar:
        yield from _beside_a_number(basis)


def _one_by_one(basis: Basis) -> Variations:
    """Yields one call for each special value, for ops that read a single element of each tensor. All tensors have
    that value."""
    for base in basis.bases[:1]:
        for value in special_values(basis.kind):
            call = basis.rebuilt(
                base, {p: torch.full_like(t, value) for p, t in enumerate(base.tensors)}
            )
            if basis.accepted(call) is not None:
                yield base, call


#: Python numbers in place of the second operand, for which there may be a separate kernel.
_NUMBERS = (0.0, -2.5, math.inf)


def _beside_a_number(basis: Basis) -> Variations:
    """Yields calls with a vector of special values as the first operand and a Python number as the second."""
    for base in basis.bases:
        args = base.call.args
        if len(args) > 1 and all(isinstance(each, torch.Tensor) for each in args[:2]):
            for turn, number in enumerate(_NUMBERS):
                call = Arguments((args[0], number, *args[2:]), dict(base.call.kwargs))
                beside = replace(base, call=call)
                values = _arranged(basis, beside, [0], special_values(basis.kind), turn)
                found = _documented(basis, beside, [0], values)
                if found is not None:
                    yield base, found
            return


def _floating(basis: Basis, base: Sample) -> list[int]:
    """Returns the positions of the tensors of a call that can be filled with special values."""
    return [p for p, t in enumerate(base.tensors) if t.dtype == basis.kind and t.dim()]


def _vectors(basis: Basis) -> Variations:
    values = complex_values(basis.kind) if basis.kind.is_complex else special_values(basis.kind)
    loops = "axes.loops" in basis.families
    if loops:  # for NaN, torch's own kernels return uninitialized memory (pytorch/pytorch#188027)
        values = values.nan_to_num(0.25, math.inf, -math.inf)
    for base in basis.bases:
        places = [
            place
            for place, tensor in enumerate(base.tensors)
            if tensor.dtype == basis.kind and (tensor.dim() or len(base.tensors) == 1)
        ]
        if loops:
            places = places[:1]  # the other operand counts iterations
        if not places:
            continue
        for turn, formed in enumerate(_FORMS):
            call = _documented(basis, base, places, _arranged(basis, base, places, values, turn))
            if call is None:
                continue
            made = basis.rebound(call, [formed(t) if t.dim() else t for t in call.tensors])
            # Repetition moves elements from the tail of a vector into the body of another, so results are checked again.
            found = _agreeing(basis, made) if formed in (_repeated, _five_dimensional) else made
            yield base, (basis.accepted(found) if found is not None else None) or call


def _as_it_is(vector: torch.Tensor) -> torch.Tensor:
    return vector


def _as_square(vector: torch.Tensor) -> torch.Tensor:
    side = math.isqrt(vector.numel())
    return vector.reshape(side, side) if side * side == vector.numel() else vector


def _repeated(vector: torch.Tensor) -> torch.Tensor:
    return vector.repeat(_MANY // vector.numel() + 1)[-_MANY:].contiguous()


def _five_dimensional(vector: torch.Tensor) -> torch.Tensor:
    return vector.expand(2, 1, 2, 1, -1).contiguous()


_FORMS = (_as_it_is, _as_square, _repeated, _five_dimensional)

#: The special value that comes first and the one that comes last, by turn: NaN, -0, infinity, NaN; -0, NaN, a subnormal number,
#: -0.
_FIRST, _LAST = (0, 11, 10, 0), (11, 0, 9, 11)


def _arranged(
    basis: Basis, base: Sample, places: Sequence[int], values: torch.Tensor, turn: int
) -> dict[int, torch.Tensor]:
    """Returns a vector for each operand, by position. Special values are first, last and among ordinary values, in a
    different order for each ``turn``. With several operands, every pair of special values occurs."""
    count = len(values)
    if len(places) == 1:
        ends = [torch.roll(values, -_FIRST[turn]), torch.roll(values, count - 1 - _LAST[turn])]
        length = _SIDE**2 if turn == 1 else _ELEMENTS
        body = basis.fill(base, places[0], (length - 2 * count,))
        return {places[0]: torch.cat([ends[0], body, ends[1]])}
    pairs = torch.cartesian_prod(torch.arange(count), torch.arange(count))
    length = _PAIRS_SIDE**2 if turn == 1 else (len(pairs) // 64 + 1) * 64 + _TAIL
    order = basis.choice(len(pairs), (length,))
    order[basis.permutation(length)[: len(pairs)]] = torch.arange(len(pairs))
    for place, pair in ((0, _FIRST[turn]), (-1, _LAST[turn] * count + _FIRST[turn])):
        there = int((order == pair).nonzero()[0])
        order[[place, there]] = order[[there, place]]
    first, second = pairs[order].unbind(1)
    found = {}
    for number, place in enumerate(places):
        index = (
            first if number == 0 else second if number == 1 else (first + second + number) % count
        )
        found[place] = values[index].contiguous()
    return found


def _documented(
    basis: Basis, base: Sample, places: Sequence[int], tensors: dict[int, torch.Tensor]
) -> Arguments | None:
    """Returns a call with the special values for which the CPU's result is reliable, and ordinary values in place of
    the other special values; None if too few special values are left. A result is reliable if it equals three results
    in float64: the result for the same values, the result with subnormal numbers set to zero, and the result with large
    numbers made smaller by one rounding."""
    rest = {
        place: basis.fill(base, place, (len(tensors[places[0]]),))
        for place, tensor in enumerate(base.tensors)
        if tensor.dim() and place not in places
    }
    benign = {place: basis.fill(base, place, (len(tensors[place]),)) for place in places}
    chosen, left = tensors, len(tensors[places[0]])
    for _ in range(2):
        call = basis.rebuilt(base, {**rest, **chosen})
        agreed = _agreed(basis, call, [*rest, *chosen])
        if agreed is None:
            return None
        if bool(agreed.all()):
            return call if left * 3 >= len(agreed) else None
        left = int(agreed.sum())
        chosen = {
            place: torch.where(agreed, chosen[place], benign[place]).contiguous()
            for place in places
        }
    return _agreeing(basis, basis.rebuilt(base, {**rest, **chosen}))


def _agreeing(basis: Basis, call: Arguments) -> Arguments | None:
    """Returns a copy of the call in which all elements with an unreliable CPU result are replaced by one with a
    reliable result; None if more than two thirds would be replaced."""
    places = [place for place, each in enumerate(call.tensors) if each.dim()]
    agreed = _agreed(basis, call, places)
    if agreed is None or int(agreed.sum()) * 3 < agreed.numel():
        return None
    if bool(agreed.all()):
        return call
    one = int(agreed.view(-1).nonzero()[0])
    every = [
        torch.where(agreed, t, t.view(-1)[one]).contiguous() if t.dim() else t for t in call.tensors
    ]
    return basis.accepted(basis.rebound(call, every))


def _agreed(basis: Basis, call: Arguments, places: Sequence[int]) -> torch.Tensor | None:
    """Returns a mask of the elements for which the CPU's result is reliable (see ``_documented``). Returns None if no
    mask can be made: the call is rejected, the result has another shape, or the result has only integers, since casts
    of NaN to integers are undefined."""
    shape = call.tensors[places[0]].shape
    found = basis.answer(call)
    if not found or any(each.shape != shape for each in found):
        return None
    kind = found[0].dtype
    if not (kind.is_floating_point or kind.is_complex or kind == torch.bool):
        return None
    rtol, atol = DEFAULT_TOLERANCES.get(str(kind).removeprefix("torch."), (0.0, 0.0))
    agreed = torch.ones(shape, dtype=torch.bool)
    for change in (_unchanged, flushed, _rounded):
        tensors = [
            change(exactly(each), basis.kind) if each.dtype == basis.kind else each
            for each in call.tensors
        ]
        args, kwargs = call.on(tensors, torch.device("cpu"))
        with asking():
            seed_everything(0)
            try:
                wide = tensors_of(basis.subject.reference(*args, **kwargs))
            except Exception:  # the op rejects float64, or these values
                return None
        for got, want in zip(found, wide):
            if want.shape != got.shape:
                return None
            if got.is_complex() and want.is_complex():
                # No document says which infinities and NaN complex arithmetic returns.
                agreed &= torch.isclose(got, want.to(got.dtype), rtol=rtol, atol=atol)
                agreed &= got.isfinite()
            elif not (got.is_floating_point() and want.is_floating_point()):
                agreed &= got == want
            else:
                want = want.to(got.dtype)
                agreed &= torch.isclose(got, want, rtol=rtol, atol=atol, equal_nan=True)
                agreed &= (got != 0) | (torch.signbit(got) == torch.signbit(want))
    return agreed


def _unchanged(tensor: torch.Tensor, kind: torch.dtype) -> torch.Tensor:
    return tensor


def _rounded(tensor: torch.Tensor, kind: torch.dtype) -> torch.Tensor:
    """Returns a copy of a tensor in which numbers above 1000 are made smaller by one rounding (the dtype's ``eps``). If
    this changes the result of an op, as for the sine of a large number, the result is not reliable."""
    large = (tensor.abs() > 1000) & tensor.isfinite()
    return torch.where(large, tensor * (1 - torch.finfo(kind).eps), tensor)


def special_among(basis: Basis, given: torch.Tensor) -> torch.Tensor:
    """Returns a copy of a tensor with a few elements, among them the first and the last, replaced by random special
    values."""
    values = special_values(basis.kind)
    found = given.clone(memory_format=torch.contiguous_format)
    where = torch.cat([torch.tensor([0, found.numel() - 1]), basis.permutation(found.numel())[:3]])
    found.view(-1)[where] = values[basis.choice(len(values), (len(where),))]
    return found


#: One element in _IN is a special value.
_IN = 4


def special_everywhere(basis: Basis, call: Arguments) -> Arguments | None:
    """Returns a call with special values in a quarter of the elements of its largest operands, and in the last rows
    and columns, except at positions where the CPU's result is not reliable. Returns None if the result is unreliable
    at most positions or has another shape."""
    kind, values = basis.kind, special_values(basis.kind)
    shape = max((t.shape for t in call.tensors if t.dtype == kind), key=torch.Size.numel)
    places = [p for p, t in enumerate(call.tensors) if t.dtype == kind and t.shape == shape]
    mixed = {}
    for place in places:
        there = basis.choice(_IN, shape) == 0
        for dim, extent in enumerate(shape):
            there.select(dim, extent - 1).logical_or_(basis.choice(2, ()).bool())
        mixed[place] = torch.where(
            there, values[basis.choice(len(values), shape)], call.tensors[place]
        )
    made = basis.rebound(call, [mixed.get(p, t) for p, t in enumerate(call.tensors)])
    agreed = _agreed(basis, made, places)
    if agreed is None or int(agreed.sum()) * 2 < agreed.numel():
        return None
    tensors = [
        torch.where(agreed, t, call.tensors[p]).contiguous() if p in mixed else t
        for p, t in enumerate(made.tensors)
    ]
    return basis.rebound(call, tensors)


SPECIAL = Axis(
    number=4,
    name="special values",
    finds="A kernel that loses NaN, infinities, signs of zeros, fractions such as 0.5 or subnormal numbers, in any operand, in the body or in the tail of a vectorized loop, or that is wrong for a masked row, or for a complex number that is 0, 1, purely real or purely imaginary.",
    bugs=("pytorch/pytorch#67428", "pytorch/pytorch#188147", "pytorch/pytorch#147460"),
    budget=14,
    layouts=("contiguous", "contiguous+step_inner+offset", "transposed+step_outer+offset"),
    writes=1,
    keeps_shapes=True,
    applies=lambda basis: (
        (basis.kind.is_floating_point or basis.kind.is_complex)
        and not basis.free
        and basis.dtype in DEFAULT_TOLERANCES
        and not {"values.converted", "values.spread"} & basis.families
    ),
    vary=_specials,
)


# -- large integers

_INTEGERS = frozenset({"uint8", "int8", "int16", "int32", "int64"})


def large_integers(kind: torch.dtype) -> torch.Tensor:
    """Returns a one-dimensional tensor of integers that float32 or float64 cannot represent, of negative integers, and
    of the largest integers of the dtype."""
    about = torch.iinfo(kind)
    among = [0, 1, 2, 3, 5, 7, 100, 127, 2**15 + 1, 2**24 + 1, 2**24 + 3, 2**31 - 1, 2**31 + 1]
    among += [2**53 + 1, 2**53 + 3, about.max - 1, about.max]
    # The smallest integer is left out, because its absolute value and its quotient by -1 are undefined.
    among += [-each for each in among if each]
    return torch.tensor([each for each in among if about.min < each <= about.max], dtype=kind)


def _integers(basis: Basis) -> Variations:
    values = large_integers(basis.kind)
    if not basis.elementwise:
        values = values[values.double().abs() < 2**54]  # sums of a few do not overflow
    for base in basis.bases:
        places = [p for p, t in enumerate(base.tensors) if t.dim() and t.dtype == basis.kind]
        if not basis.elementwise:
            same = [p for p in places if base.tensors[p].shape == base.tensors[0].shape]
            wanted = [same, same[:1]] if same[:1] == [0] else []
            for group in wanted:
                call = basis.accepted(
                    basis.rebuilt(
                        base,
                        {
                            place: _picked(basis, base, place, values, base.tensors[place].shape)
                            for place in group
                        },
                    )
                )
                if call is not None:
                    yield base, call
                    break
            continue
        for among in (values, values[values != 0], values[(values > 0) & (values < 64)]):
            tensors = {
                place: _picked(
                    basis, base, place, values if not number else among, (_ELEMENTS * 3,)
                )
                for number, place in enumerate(places)
            }
            if (call := _without_overflow(basis, base, tensors)) is not None:
                yield base, call
                break


def _picked(
    basis: Basis, base: Sample, place: int, values: torch.Tensor, shape: Sequence[int]
) -> torch.Tensor:
    """Returns a tensor of the given shape with some of the values in random order. If the op orders elements, all
    elements of the tensor differ."""
    count = torch.Size(shape).numel()
    if basis.orders:
        if count > len(values):
            bits = torch.iinfo(values.dtype).bits
            start = {64: 2**53, 32: 2**24}.get(
                bits, 0
            )  # adjacent integers that floats cannot distinguish
            return (basis.distinct(shape).long() + start).to(values.dtype)
        return values[basis.permutation(len(values))[:count]].reshape(tuple(shape))
    return values[basis.choice(len(values), shape)]


def _without_overflow(
    basis: Basis, base: Sample, tensors: dict[int, torch.Tensor]
) -> Arguments | None:
    """Returns a call without elements whose exact result overflows the dtype or differs from the CPU's result; None if
    too few elements are left."""
    if not tensors:
        return None
    length = len(next(iter(tensors.values())))
    call = basis.rebuilt(base, tensors)
    found = basis.answer(call)
    if not found or any(each.shape != (length,) for each in found):
        return None
    wide = basis.rebuilt(base, {place: each.double() for place, each in tensors.items()})
    expected = basis.answer(wide)
    if expected is None or all(each.dtype == torch.bool for each in found):
        return call  # a comparison, which cannot overflow
    most = torch.iinfo(basis.kind).max
    agreed = torch.ones(length, dtype=torch.bool)
    for got, want in zip(found, expected):
        if want.shape != got.shape or got.dtype == torch.bool:
            continue
        if got.is_floating_point():
            rtol, atol = DEFAULT_TOLERANCES.get(str(got.dtype).removeprefix("torch."), (0.0, 0.0))
            agreed &= torch.isclose(got.double(), want.double(), rtol, atol, equal_nan=True)
        elif not got.is_complex():
            agreed &= want.double().abs() < most
    if not bool(agreed.any()) or int(agreed.sum()) * 4 < length:
        return None
    one = int(agreed.nonzero()[0])
    kept = {p: torch.where(agreed, each, each[one]).contiguous() for p, each in tensors.items()}
    return basis.accepted(basis.rebuilt(base, kept))


INTEGERS = Axis(
    number=5,
    name="large integers",
    finds="A kernel that converts integers to float32 or float64, or to fewer bits.",
    bugs=("pytorch/pytorch#195595", "ROCm/legacy-rocm-build#1432"),
    budget=3,
    layouts=("contiguous", "contiguous+step_inner+offset"),
    applies=lambda basis: (
        basis.dtype in _INTEGERS
        and not basis.free
        and "axes.loops" not in basis.families
        and "axes.small_integers" not in basis.families
    ),
    vary=_integers,
)


# -- indices


def _indices(basis: Basis) -> Variations:
    bases = basis.bases
    if basis.unique_indices:  # and others, whose calls combine what an index names twice
        bases = [*bases, *{_combination(s.call): s for s in basis.drawn if s.numel}.values()]
        bases = [*{base.index: base for base in bases}.values()]
        bases.sort(key=lambda base: _combination(base.call) == "")
    for base in bases:
        places = [
            p
            for p, t in enumerate(base.tensors)
            if t.dtype in (torch.int64, torch.int32) and t.numel() > 1
        ]
        for place in places:
            for tensor in _changed(basis, base, place):
                if (call := basis.accepted(basis.rebuilt(base, {place: tensor}))) is not None:
                    yield base, call


def _changed(basis: Basis, base: Sample, place: int) -> Iterator[torch.Tensor]:
    """Yields copies of the index tensor number ``place`` of a sample, with the last index, with negative indices,
    with one index repeated, or in reverse order."""
    given = base.tensors[place]
    extents = sorted({n for p, t in enumerate(base.tensors) if p != place for n in t.shape})
    if not basis.unique_indices or _combination(base.call):
        ends = torch.arange(given.numel()).reshape(given.shape) % 3 == 0
        for extent in reversed(extents):
            last = given.new_tensor(extent - 1)
            call = basis.rebuilt(base, {place: torch.where(ends, last, given)})
            if extent > 1 and basis.accepted(call) is not None:
                yield call.tensors[place]
                yield torch.where(ends, last - extent, given.clamp(max=extent - 1) - extent)
                break
        yield torch.full_like(given, int(given.max()))
    else:
        for extent in extents:
            if extent > int(given.max()):
                yield given - extent
    yield given.flip(0)


def _combination(call: Arguments) -> str:
    """Returns how a call combines several values for one element, such as "multiply" or "True" (it adds them up); an
    empty text if the last value wins."""
    given = [call.kwargs.get("reduce"), call.kwargs.get("accumulate"), *call.args[1:]]
    return next((str(each) for each in given if each is True or isinstance(each, str)), "")


INDICES = Axis(
    number=6,
    name="indices",
    finds="A kernel that drops or doubles the element of a repeated index, or that misreads a negative index or the last index.",
    bugs=("pytorch/pytorch#97574", "pytorch/pytorch#39227", "pytorch/pytorch#111669"),
    budget=5,
    layouts=(
        "contiguous",
        "transposed+step_outer+offset",
        "contiguous/contiguous+step_inner/contiguous",
    ),
    applies=lambda basis: (
        not basis.elementwise
        and not basis.free
        and (basis.kind.is_floating_point or basis.kind.is_complex)
    ),
    vary=_indices,
)


# -- elements of one sign


#: The factor between the elements of one operand and the next. It keeps quotients away from whole numbers, where a rounding
#: would decide the result.
_APART = 128 / 137
#: The factor for ops that only move elements. It sets a low bit of each element, so that a lost bit shows.
_FINE = 1 + 2**-13


def _signs(basis: Basis) -> Variations:
    """Yields calls with operands whose elements ascend from just above 0, are all negative, or have only two different
    values."""
    bases = [roomy(basis, base) for base in basis.bases]
    fine = _FINE if basis.moves else 1.0
    for turn, values in enumerate((ascending, negative, _two)):
        for base in starting_at(bases, turn):
            tensors = {
                place: (values(t.numel()) * fine * _APART**place).reshape(t.shape)
                for place, t in enumerate(base.tensors)
                if t.dtype == basis.kind and t.numel() > 2
            }
            call = basis.rebuilt(base, tensors)
            if tensors and basis.settled(call) and basis.accepted(call) is not None:
                yield base, call
                break


def ascending(count: int) -> torch.Tensor:
    """Returns ``count`` different numbers that ascend from above 0 to below 2, which is in the domain of most
    functions."""
    return torch.arange(1, count + 1) * (1.9 / (count + 1))


def negative(count: int) -> torch.Tensor:
    """Returns ``count`` negative multiples of 1/8, unordered. If ``count`` is greater than 41, values repeat."""
    return -((torch.arange(count) * 7) % 41 + 1) / 8


def _two(count: int) -> torch.Tensor:
    """Returns a vector of ``count`` elements with only two different positive values, one of which occurs once in
    five elements."""
    return torch.where(torch.arange(count) % 5 == 2, 1.25, 0.5)


SIGNS = Axis(
    number=14,
    name="one sign",
    finds="A kernel that initializes a maximum with zero, or that has a faulty shortcut for sorted or equal elements.",
    bugs=("uxlfoundation/oneDNN#1094",),
    budget=3,
    layouts=("contiguous",),
    keeps_shapes=True,
    applies=lambda basis: basis.dtype == "float32" and not basis.keeps_values and not basis.free,
    vary=_signs,
)
