"""The axis that gives the elements of an operand a large common offset, or makes all of them small or large."""

from __future__ import annotations

import math
from dataclasses import replace

import torch

from opinfo.axes.axis_context import Axis, Basis, Variations
from opinfo.axes.extreme_options import by_arguments
from opinfo.axes.shapes import EXTENT
from opinfo.compare import DEFAULT_TOLERANCES, Arguments
from opinfo.samples import Sample

#: At most two operands are changed, one at a time. The first is changed beside up to four combinations of the other
#: arguments.
_OPERANDS, _KINDS = 2, 4
#: The smallest offset.
_LEAST = 4.0


def _magnitudes(basis: Basis) -> Variations:
    """Yields calls in which all elements of one operand have a large positive or negative offset, are small, or are
    large, beside ordinary elements of the other operands. A call is left out if the CPU's result is not reliable, or
    if roundings of the operands change it, unless that is taken into account where results are compared. Then yields
    calls with elements of the first operand that are smaller still.

    Integers of 8 bits are large in all operands, which have a long dimension: sums of their products do not fit the
    digits of float32."""
    if not basis.kind.is_floating_point:
        yield from _large_integers(basis)
        return
    kinds = {basis.arguments(each): each for each in reversed(by_arguments(basis))}
    kinds |= {basis.arguments(each): each for each in reversed(basis.bases)}
    bases = [*reversed(kinds.values())][:_KINDS]
    turns = [(base, 0) for base in bases]
    turns[1:1] = [(base, place) for base in bases[:1] for place in range(1, _OPERANDS)]
    for base, turn in turns:
        places = [p for p, t in enumerate(base.tensors) if t.dtype == basis.kind and t.numel() > 1]
        if len(places) > turn:
            yield from _reliable(basis, base, places[turn], _ways(basis.kind))
    for base in bases:
        places = [p for p, t in enumerate(base.tensors) if t.dtype == basis.kind and t.numel() > 1]
        if places:
            yield from _reliable(basis, base, places[0], _tiny(basis.kind))


def _reliable(
    basis: Basis, base: Sample, place: int, ways: list[list[tuple[float, float]]]
) -> Variations:
    """Yields, for each list of factors and offsets, the first call with a reliable result."""
    for way in ways:
        calls = (_changed(basis, base, place, *each) for each in way)
        call = next((each for each in calls if _is_reliable(basis, each)), None)
        if call is not None:
            yield base, call


def _tiny(kind: torch.dtype) -> list[list[tuple[float, float]]]:
    """Returns factors that make all elements so small that their norm is below a usual epsilon: for float32 below 1e-6, and
    below 1e-12. A default of 1e-8 in place of 1e-12 changes no result for larger elements."""
    digits = -math.log2(torch.finfo(kind).eps)
    return [[(2.0 ** -math.floor(each * digits), 0.0)] for each in (1, 2)]


def _ways(kind: torch.dtype) -> list[list[tuple[float, float]]]:
    """Returns factors and offsets of elements. From each list, the first entry that gives a reliable result on the CPU is
    used. Half of a dtype's digits are left for the differences of elements with the largest offset."""
    half = math.floor(-math.log2(torch.finfo(kind).eps) / 2)
    offsets = [2.0**n for n in range(half, 0, -1) if 2.0**n >= _LEAST]
    scales = [[(2.0**-half, 0.0)], [(2.0**half, 0.0)]]
    return [*([(1.0, sign * each) for each in offsets] for sign in (1, -1)), *scales]


def _changed(basis: Basis, base: Sample, place: int, factor: float, offset: float) -> Arguments:
    given = basis.fill(base, place, base.tensors[place].shape)
    if factor != 1:  # of the largest element, whatever the range of the database's samples
        largest = float(given.abs().nan_to_num(0.0, 0.0, 0.0).max()) or 1.0
        factor *= 2.0 ** -math.frexp(largest)[1]
    return basis.rebuilt(base, {place: given * factor + offset})


#: Every sixteenth element is odd. All others are the integer of the largest size.
_ODD = 16


def _large_integers(basis: Basis) -> Variations:
    """Yields calls in which all operands have the integer of the largest size, and a few the next smaller one. A sum of a
    thousand products of 8 bits, which may be odd, is then just above 2^24."""
    info = torch.iinfo(basis.kind)
    largest, step = (info.min, 1) if info.min else (info.max, -1)
    for base, call in EXTENT.vary(basis):
        made = {
            place: largest + step * (basis.choice(_ODD, t.shape) == 0).to(basis.kind)
            for place, t in enumerate(call.tensors)
            if t.dtype == basis.kind
        }
        changed = basis.rebuilt(replace(base, call=call), made)
        if made and basis.accepted(changed) is not None:
            yield base, changed


def _is_reliable(basis: Basis, call: Arguments) -> bool:
    if basis.accepted(call) is None or not basis.settled(call):
        return False
    return "values.conditioned" in basis.families or basis.steady(call)


MAGNITUDES = Axis(
    number=28,
    name="magnitudes",
    finds="A kernel that loses the differences of elements with a large mean, whose running maximum begins at 0, whose epsilon or threshold has another size, or that adds integers as floating-point numbers.",
    bugs=("pytorch/executorch#16727",),
    budget=28,
    layouts=("contiguous", "contiguous+step_inner+offset"),
    applies=lambda basis: (
        (basis.dtype in DEFAULT_TOLERANCES or basis.kind in (torch.int8, torch.uint8))
        and not basis.kind.is_complex
        and not basis.elementwise
        and not basis.free
        and not basis.keeps_values
    ),
    vary=_magnitudes,
)
