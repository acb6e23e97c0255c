"""The axis of random combinations: sizes, values, arguments and layouts are drawn together. The combinations are the
same in every process."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch

from opinfo.axes.axis_context import Axis, Basis, Variations
from opinfo.axes.growth import groups_of, lengthened
from opinfo.axes.shapes import same_shape, shaped
from opinfo.axes.values import ascending, negative, special_among, special_everywhere
from opinfo.compare import Arguments
from opinfo.exceptions import op_family
from opinfo.layouts import FreeLayout, LayoutCase, covering_set
from opinfo.samples import Sample

#: The number of samples of an op, and the number of layouts of each.
_SAMPLES, _LAYOUTS = 6, 2
#: Sizes that fill vectors and blocks of kernels exactly, and sizes one below and one above.
_SIZES = (1, 1, 2, 3, 4, 7, 8, 15, 16, 17, 31, 33, 64, 65, 130, 257, 1025)
#: The most elements of one tensor.
_MOST = 20_000
_TRIES = 3 * _SAMPLES


def _combined_calls(basis: Basis) -> Variations:
    bases = basis.bases
    norm = op_family(basis.subject.id, basis.subject.ufunc) == "norm"

    def takes(call: Arguments) -> bool:
        # A norm must not be a mere rounding error, since gradients divide by it.
        return (not norm or basis.steady(call)) and basis.accepted(call) is not None

    for turn in range(_TRIES if bases else 0):
        base = bases[turn % len(bases)]
        call = _of_other_sizes(basis, base)
        if call is None or not takes(call):
            continue
        changed = _of_other_values(basis, call)
        if changed is not None and basis.settled(changed) and takes(changed):
            call = changed
        yield base, call


def _pick(basis: Basis, among: Sequence[Any]) -> Any:
    return among[int(basis.choice(len(among), ()))]


def _of_other_sizes(basis: Basis, base: Sample) -> Arguments | None:
    """Returns a sample's call with random sizes, either of all tensors that share a shape or of dimensions that must
    grow together; None if that is impossible."""
    if basis.shape_free:
        shape = [_pick(basis, _SIZES) for _ in range(_pick(basis, (1, 2, 2, 3, 3, 4)))]
        while math.prod(shape) > _MOST:
            shape[shape.index(max(shape))] = _pick(basis, _SIZES)
        shapes: list[Sequence[int]] = [shape]
        if _pick(basis, (0, 0, 1)):  # one time in three, one operand is broadcast
            shapes = [shape, [_pick(basis, (1, n)) for n in shape]]
        return shaped(basis, base, shapes) if same_shape(basis, base) else None
    call: Arguments | None = None
    for group, _ in groups_of(basis, base):
        made = lengthened(basis, base, group, _pick(basis, _SIZES))
        if made is None or max(t.numel() for t in made.tensors) > _MOST:
            continue
        if basis.answer(made) is not None:
            base, call = replace(base, call=made), made
    return call


def _of_other_values(basis: Basis, call: Arguments) -> Arguments | None:
    """Returns a call with one of its operands filled with values of one kind, or with special values in all operands;
    None if the values of the call should not change."""
    places = [p for p, t in enumerate(call.tensors) if t.dtype == basis.kind and t.numel() > 1]
    if not places or not basis.kind.is_floating_point or basis.orders:
        return None
    # Losses without reduction are elementwise too.
    by_element = basis.elementwise or op_family(basis.subject.id, basis.subject.ufunc) == "loss"
    if by_element and _pick(basis, (0, 1)):
        found = special_everywhere(basis, call)
        if found is not None:
            return found
    fills: tuple[Callable[[torch.Tensor], torch.Tensor] | None, ...] = (
        *(None, None),
        lambda t: ascending(t.numel()).reshape(t.shape),
        lambda t: negative(t.numel()).reshape(t.shape),
        lambda t: torch.full_like(t, 0.5),
        lambda t: special_among(basis, t),
        lambda t: special_among(basis, t),
    )
    fill, place = _pick(basis, fills), _pick(basis, places)
    if fill is None:
        return None
    tensors = [
        fill(t).to(t.dtype).contiguous() if p == place else t for p, t in enumerate(call.tensors)
    ]
    return basis.rebound(call, tensors)


def layouts_of(basis: Basis) -> tuple[str, ...]:
    """Returns the names of the layout cases for one random sample, drawn at random from the covering set. Layouts that
    differ only in dimensions of size 1 are left out, because most random shapes have none."""
    ids = [case.id for case in covering_set().cases if not _of_ones(case)]
    return tuple(_pick(basis, ids) for _ in range(_LAYOUTS))


def _of_ones(case: LayoutCase) -> bool:
    return isinstance(case.first, FreeLayout) and case.first.ones is not None


DRAWN = Axis(
    number=16,
    name="drawn",
    finds="A kernel that is wrong only for a combination, such as one extent with one argument, or one value in one layout.",
    bugs=("pytorch/pytorch#122916",),
    budget=_SAMPLES,
    layouts=(),
    applies=lambda basis: (
        basis.dtype in ("float32", "int64", "complex64")
        and not basis.keeps_values
        and not basis.free
        and "axes.loops" not in basis.families
    ),
    vary=_combined_calls,
)
