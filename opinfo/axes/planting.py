"""Puts a few special values among ordinary ones, for ops that are not elementwise. In such ops, special values may
spread over the whole result."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from itertools import islice

import torch

from opinfo.axes.axis_context import Basis, Variations, is_sorted
from opinfo.axes.shapes import EXTENT, roomy, starting_at
from opinfo.compare import Arguments
from opinfo.exceptions import op_family
from opinfo.samples import Sample

#: Families in which NaN and infinities spread over the result in a way that depends on how a kernel blocks its sums. LAPACK
#: may not even return for them.
_SPREADS = ("fft", "conv", "resampling", "linalg")


def planted(basis: Basis) -> Variations:
    """Yields calls with a few special values among ordinary ones, for ops that are not elementwise.

    Zeros, halves (0.5, 2.5), large and subnormal numbers are put into all operands of a call or, if that is not
    possible, into one operand per call. NaN and infinities are put into one operand per call. One call has a masked
    row. For matrix products, only a large number and NaN are used.
    """
    products = "axes.products" in basis.families
    bases = [roomy(basis, base) for base in basis.bases]
    if not products:
        yield from _ordinary(basis, bases)
    elif (large := plant(basis, 0, [101.5], bases=bases)) is not None:
        yield large
    family = op_family(basis.subject.id, basis.subject.ufunc)
    reduces = basis.subject.ufunc == "reduction"
    if basis.keeps_values:  # LAPACK computes matrix ops
        bases = [base for base in bases if all(t.dim() < 2 for t in base.tensors)]
    if reduces or (family not in _SPREADS and not basis.keeps_values):
        infinities = [math.inf, -math.inf]
        if {"values.sums", "fp32_precision"} & basis.families or products:
            # A kernel may sum in parts, so inf - inf is NaN. One infinity is allowed in a reduction.
            infinities = infinities[: reduces and not products]
        if family == "norm":
            # A mean that contains an infinity is infinite, but NaN if a kernel updates the mean element by element.
            infinities = []
        for turn, (among, places) in enumerate((([math.nan, -0.0, math.nan], 4), (infinities, 3))):
            turned = starting_at(bases, turn + 2)
            planted = (plant(basis, p, among, bases=turned) for p in range(places) if among)
            yield from filter(None, planted)
        if EXTENT.applies(basis) and "axes.keep_shapes" not in basis.families:
            long = [replace(base, call=call) for base, call in islice(EXTENT.vary(basis), 2)]
            # A sort of bits takes a NaN with the sign bit for the least number (pytorch/pytorch#190781).
            no_number = -math.nan if family == "sort" else math.nan
            for among in ([no_number], infinities) if long else ():
                if among and (in_long := plant(basis, 0, among, bases=long)) is not None:
                    yield in_long
            if family in _BY_ROWS and (in_rows := _in_many_rows(basis)) is not None:
                yield in_rows
    if "axes.masked_row" in basis.families:
        yield from islice(_masked(basis), 1)


#: Families of ops that treat each row apart, and the number of rows for which some kernels take another path.
_BY_ROWS, _ROWS = ("sort", "scan", "reduction", "softmax"), 512


def _in_many_rows(basis: Basis) -> tuple[Sample, Arguments] | None:
    """Returns a call with NaN in one of very many rows (intel/torch-xpu-ops#4839); None if there is none."""
    for base, call in EXTENT.vary(basis):
        first = call.tensors[0]
        if first.dim() and first.numel() // max(first.shape[-1], 1) > _ROWS:
            return plant(basis, 0, [math.nan], bases=[replace(base, call=call)])
    return None


#: A number beyond the range of float16.
_WIDE = 70_001.5


def _ordinary(basis: Basis, bases: list[Sample]) -> Variations:
    """Yields calls with zeros of both signs, halves (0.5, 2.5), large numbers and a subnormal number in all operands
    or, if that is not possible, in one operand per call. If the CPU's result is not reliable, smaller numbers are
    tried."""
    subnormal = torch.finfo(basis.kind).tiny / 4
    # Zero is last, in the elements after the last whole vector.
    wide = [-0.0, 0.5, _WIDE, -_WIDE, 2.5, subnormal, 0.0]
    ordinary = [subnormal, 0.5, -0.0, 2.5, -101.5, 101.5, 0.0]
    small = [0.5, subnormal, 2.5, -0.0, 0.0]
    normal = [
        0.5,
        -101.5,
        2.5,
        -0.0,
        0.0,
    ]  # for comparisons, as a device may treat a subnormal number as zero
    among = [ordinary, small, normal]
    among = [wide, *among] if torch.finfo(basis.kind).max > _WIDE else among
    every = (
        plant(basis, None, each, turn, starting_at(bases, n))
        for n, each in enumerate(among)
        for turn in (0, 1)
    )
    found = list(islice(filter(None, every), 2))
    if not found:
        one = (plant(basis, p, each, bases=bases) for p in range(3) for each in among)
        found = list(islice(filter(None, one), 2))
    yield from found


def plant(
    basis: Basis,
    which: int | None,
    among: Sequence[float],
    turn: int = 0,
    bases: Sequence[Sample] = (),
) -> tuple[Sample, Arguments] | None:
    """Returns a sample, and a copy of its call with the values ``among`` in all operands, or only in operand number
    ``which``. A small operand gets only some of the values; calls with another ``turn`` put other ones into it.

    Returns None if the CPU's result is not reliable, or if the operands got all values in calls with a smaller
    ``turn``.
    """
    for base in bases or basis.bases:
        places = [
            p
            for p, t in enumerate(base.tensors)
            if t.dtype == basis.kind and t.numel() > 1 and not is_sorted(t)
        ]
        if which is not None:
            places = places[which : which + 1]
        if turn and all(base.tensors[p].numel() >= 2 * len(among) for p in places):
            continue
        tensors = {place: _with(basis, base, place, among, turn) for place in places}
        call = basis.rebuilt(base, tensors)
        if tensors and basis.settled(call) and basis.accepted(call) is not None:
            return base, call
    return None


def _masked(basis: Basis) -> Variations:
    """Yields calls with a row of minus infinity in the last operand that has the dtype under test. This operand may be
    a mask."""
    for base in sorted(basis.bases, key=lambda s: -len(s.tensors)):
        places = [p for p, t in enumerate(base.tensors) if t.dtype == basis.kind and t.dim()]
        if not places:
            continue
        found = basis.fill(base, places[-1], base.tensors[places[-1]].shape)
        found[(0,) * (found.dim() - 1)] = -math.inf
        call = basis.rebuilt(base, {places[-1]: found})
        if basis.settled(call) and basis.accepted(call) is not None:
            yield base, call


def _with(
    basis: Basis, base: Sample, place: int, among: Sequence[float], turn: int
) -> torch.Tensor:
    """Returns a tensor of the operand's shape in which the given values replace at most half of the elements. The last
    element is always replaced."""
    given = base.tensors[place]
    found = (
        given.clone(memory_format=torch.contiguous_format)
        if basis.keeps_values
        else basis.fill(base, place, given.shape)
    )
    flat = found.view(-1)
    # Ops that only move elements may get more special values.
    count = min(len(among) * (4 if basis.moves else 1), len(flat) // 2)
    planted = [among[(turn * count + n) % len(among)] for n in range(count)]
    if basis.orders:  # all elements must differ, so only one zero may remain
        flat[flat == 0] = 0.25
        planted = [each for each in planted if each or math.copysign(1, each) < 0]
    # The first value is at the beginning, the last at the end.
    between = 1 + basis.permutation(max(len(flat) - 2, 0))[: max(len(planted) - 2, 0)]
    where = torch.cat([torch.tensor([0]), between, torch.tensor([-1])])[-len(planted) :]
    flat[where] = torch.tensor(planted, dtype=torch.float64).to(found.dtype)
    return found
