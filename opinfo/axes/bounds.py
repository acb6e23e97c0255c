"""The axis of bounds: elements that are equal to a bound, and the nearest numbers on both sides of it."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import torch

from opinfo.axes.axis_context import Axis, Basis, Variations, is_sorted
from opinfo.axes.defaults import arguments_of
from opinfo.axes.shapes import roomy
from opinfo.compare import Arguments
from opinfo.samples import Sample

#: The most calls for an op and dtype.
_BUDGET = 3
#: The points where activations change their formula.
_KNOTS = (0.0, -0.5, 0.5, -1.0, 1.0, -3.0, 3.0, 6.0)
#: Smaller and larger numbers are no bounds: they keep a divisor from being 0, or mean that there is no bound.
_LEAST, _MOST = 2.0**-6, 2.0**10
#: Numbers of a call are rounded to multiples of this, so that every dtype holds them.
_STEP = 0.125


def _bounds(basis: Basis) -> Variations:
    known: set[tuple[float, ...]] = set()
    numbered = [
        replace(origin, call=call)
        for origin, call in zip(basis.origins, basis.made, strict=True)
        if any(isinstance(each, float) for each in call.args) and len(call.tensors) == 1
    ]
    for base in (*basis.bases, *numbered[:_BUDGET]):
        base = replace(base, call=_rounded(basis, base.call))
        base = roomy(basis, base)
        places = [
            place
            for place, t in enumerate(base.tensors)
            if t.dtype == basis.kind and t.numel() > 1 and not is_sorted(t)
        ]
        bounds = tuple(dict.fromkeys(_bounds_of(basis, base)))
        if not places or not bounds or bounds in known:
            continue
        given = base.tensors[places[0]]
        call = basis.rebuilt(base, {places[0]: _at_bounds(basis, base, places[0], given, bounds)})
        reliable = basis.elementwise or basis.settled(call)
        if reliable and basis.accepted(call) is not None:
            known.add(bounds)
            yield base, call


def _rounded(basis: Basis, call: Arguments) -> Arguments:
    """Returns a call whose fractions are multiples of 1/8. Every dtype holds these numbers
    exactly, so that an element that equals a bound still equals it in float64."""

    def exact(value: Any) -> Any:
        if not isinstance(value, float) or not _LEAST <= abs(value) <= _MOST:
            return value
        return math.copysign(max(round(abs(value) / _STEP), 1) * _STEP, value)

    args = tuple(exact(value) for value in call.args)
    return Arguments(args, {name: exact(value) for name, value in call.kwargs.items()})


def _bounds_of(basis: Basis, base: Sample) -> Iterator[float]:
    """Yields the numbers that may be bounds of a call: its fractions and those that it leaves at their default, numbers
    that are called min or max, the points where activations change their formula, and the elements of a sorted
    operand."""
    call = base.call
    given = {n: e.default for n, e in arguments_of(basis.subject).items()} | call.kwargs
    named = [value for name, value in given.items() if "min" in name or "max" in name]
    for value in (*call.args, *given.values()):
        if isinstance(value, float) and math.isfinite(value) and abs(value) <= _MOST:
            yield from [value] if value == 0 or abs(value) >= _LEAST else []
    yield from (float(value) for value in named if type(value) is int and abs(value) <= _MOST)
    if basis.elementwise and basis.subject.id.startswith("nn.functional."):
        yield from _KNOTS
    for tensor in base.tensors:
        if tensor.dtype == basis.kind and is_sorted(tensor):
            yield from tensor.reshape(-1)[:4].tolist()


def _at_bounds(
    basis: Basis, base: Sample, place: int, given: torch.Tensor, bounds: tuple[float, ...]
) -> torch.Tensor:
    """Returns an operand of which every third element is a bound or a neighbour of a bound, in turn. The last element,
    which is in the rest after the last whole vector, is a bound."""
    found = basis.fill(base, place, given.shape)
    at = torch.tensor(bounds, dtype=torch.float64).to(basis.kind)
    # A subnormal number beside 0 may be 0 on the device.
    up, down = (
        torch.where(at == 0, math.copysign(_STEP, end), torch.nextafter(at, at.new_tensor(end)))
        for end in (math.inf, -math.inf)
    )
    among = torch.stack([at, up, at, down], 1).reshape(-1)
    flat = found.view(-1)
    step = 3 if len(flat) >= 3 * len(among) else 1
    where = flat[::step]
    where.copy_(among.repeat(-(-len(where) // len(among)))[: len(where)])
    flat[-1] = at[0]
    return found


BOUNDS = Axis(
    number=23,
    name="bounds",
    finds="A kernel that treats an element which is equal to a bound as if it were on the other side of the bound.",
    bugs=("pytorch/pytorch#120258", "pytorch/pytorch#87657"),
    budget=_BUDGET,
    layouts=("contiguous", "transposed+step_outer+offset"),
    applies=lambda basis: (
        basis.dtype == "float32"
        and not basis.free
        and not basis.keeps_values
        and "axes.loops" not in basis.families
    ),
    vary=_bounds,
    keeps_shapes=False,
)
