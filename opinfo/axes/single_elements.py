"""The axis that gives a call operands without dimensions, or with one element, beside each combination of its other
arguments."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import zip_longest

import torch

from opinfo.axes.axis_context import Axis, Basis, Variations
from opinfo.axes.extreme_options import by_arguments
from opinfo.compare import Arguments
from opinfo.samples import Sample

#: The most combinations of other arguments from which calls are made.
_KINDS = 6


def _single(basis: Basis) -> Variations:
    """Yields calls in which one operand has no dimensions, or one element, although it has several in the database's
    sample. Calls that the CPU rejects are left out, and calls of elementwise ops, for which another axis makes them."""
    ways = [_calls(basis, base) for base in by_arguments(basis)[:_KINDS]]
    for tried in zip_longest(*ways):
        for base, call in (each for each in tried if each is not None):
            if basis.accepted(call) is not None and basis.settled(call):
                yield base, call


def _calls(basis: Basis, base: Sample) -> Iterator[tuple[Sample, Arguments]]:
    written = basis.subject.written_tensors(base.call)
    for place in reversed(range(len(base.tensors))):
        given = base.tensors[place]
        if place in written or given.layout != torch.strided or given.numel() < 2:
            continue
        for shape in ((), (1,)):
            yield base, basis.rebuilt(base, {place: given.reshape(-1)[:1].reshape(shape).clone()})


SINGLE = Axis(
    number=27,
    name="single elements",
    finds="A kernel that is wrong for an operand without dimensions or with one element, together with some other argument.",
    bugs=("pytorch/pytorch#39227",),
    budget=8,
    layouts=("contiguous", "contiguous+step_inner+offset"),
    # Without a schema, the function is somebody's own, whose samples have the numbers of dimensions that it supports.
    applies=lambda basis: (
        bool(basis.subject.schemas)
        and not basis.elementwise
        and not basis.free
        and not basis.keeps_values
    ),
    vary=_single,
)
