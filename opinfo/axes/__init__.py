"""Samples by axis. An axis is a kind of variation that the database's samples lack, such as large sizes or special
values. Each axis makes samples for every op to which it applies."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import islice

import torch

from opinfo.axes.acceptance_cache import Changed, Decisions
from opinfo.axes.arguments import COUNTS, ENDS, OPERANDS, REFUSED
from opinfo.axes.axis_context import Basis, asking
from opinfo.axes.bounds import BOUNDS
from opinfo.axes.combined import DRAWN, layouts_of
from opinfo.axes.coverage_gaps import GAPS
from opinfo.axes.defaults import DEFAULTS
from opinfo.axes.equal_values import ALIKE, TIES, TRUTHS
from opinfo.axes.extreme_options import EXTREME_OPTIONS
from opinfo.axes.handwritten import WRITTEN
from opinfo.axes.magnitudes import MAGNITUDES
from opinfo.axes.matrices import GROWN
from opinfo.axes.middle import MIDDLE
from opinfo.axes.opposites import OPPOSITE
from opinfo.axes.options import OPTIONS
from opinfo.axes.points import POINTS
from opinfo.axes.shapes import EMPTY, EQUAL, EXTENT, LONG, RANK, SIZE
from opinfo.axes.single_elements import SINGLE
from opinfo.axes.values import INDICES, INTEGERS, SIGNS, SPECIAL
from opinfo.catalog import dtype_name
from opinfo.determinate_calls import PARTLY, is_settled, specified
from opinfo.exceptions import exceptions
from opinfo.samples import Sample, choose, draw
from opinfo.subject import Subject

AXES = (
    *(RANK, SIZE, EXTENT, SPECIAL, INTEGERS, INDICES, ENDS, OPERANDS),
    *(EMPTY, TIES, REFUSED, LONG, EQUAL, SIGNS, GROWN, DRAWN),
    *(COUNTS, ALIKE, WRITTEN, DEFAULTS, GAPS, OPTIONS, BOUNDS, MIDDLE),
    *(POINTS, TRUTHS),
)

#: Axes that plans leave out, because a plan has hundreds of ops. Only single kernels are judged on their samples.
FURTHER = (OPPOSITE, EXTREME_OPTIONS, SINGLE, MAGNITUDES)

#: The most samples of each axis of plans, by its name.
BUDGETS = {axis.name: axis.budget for axis in AXES}

#: Axes whose values decide what an op of truth values answers. The database's values often have one answer alone, such as
#: that no element is NaN, so that a kernel that always answers so would pass in the expanded layouts of its samples.
_TELLING = (SPECIAL, WRITTEN)

#: The number of the database's samples that are run in all layouts, if no sample of the axes is.
_WHOLE = 3
#: Prefixes of dtypes that lack the arithmetic that the axes use to change values.
_STORED_ONLY = ("float8", "float4")
#: The layouts of all other samples: contiguous; expanded in the first dimension, or in the second of three; and one of the
#: remaining kinds in turn.
_CONTIGUOUS, _EXPANDED, _EXPANDED_WITHIN = "contiguous", "contiguous+expand_first", "free:expand=1"
_IN_TURN = (
    "contiguous+step_inner+offset",
    "transposed+step_outer+offset",
    "channels_last",
    "contiguous/transposed",
)
FEW = (_CONTIGUOUS, _EXPANDED, _EXPANDED_WITHIN, *_IN_TURN)


def samples_of(
    op: Subject,
    dtype: str,
    count: int,
    declared: Collection[str] = (),
    drawn: list[Sample] | None = None,
    decisions: Decisions | None = None,
) -> list[Sample]:
    """Returns the samples of a plan for an op and dtype: ``count`` of the database's samples, and the samples of the
    axes. They are the same in every process.

    A sample of an axis is left out if it has a tensor of a dtype that is not ``declared``. ``drawn`` are the database's
    samples, if the caller already has them. ``decisions`` has cached answers to yes-or-no questions about the CPU.
    """
    drawn = draw(op, dtype) if drawn is None else drawn
    decisions = decisions or Decisions()
    try:
        made = _axis_samples(op, dtype, drawn, declared, decisions)
    except Changed:
        made = _axis_samples(op, dtype, drawn, declared, decisions.anew())
    if not op.checks_sizes:
        sizes = {_sizes(each) for each in drawn}
        made = [each for each in made if _sizes(each) in sizes]
    whole = 0 if any(sample.layouts is None for sample in made) else _WHOLE
    chosen = choose(drawn, count)
    if all(sample.geometries is None for sample in chosen):  # recorded calls keep their layouts
        chosen = thinned(chosen, whole)
    if op.layouts is None:
        return [*chosen, *made]
    return [replace(each, layouts=_within(each.layouts, op.layouts)) for each in (*chosen, *made)]


def further_samples(
    op: Subject, dtype: str, drawn: Sequence[Sample], decisions: Decisions | None = None
) -> list[Sample]:
    """Returns the samples of the axes that plans leave out. ``drawn`` are the samples of torch's database. ``decisions``
    has cached answers to yes-or-no questions about the CPU."""
    budgets = {axis.name: axis.budget for axis in FURTHER}

    def made(decisions: Decisions) -> list[Sample]:
        with asking():
            found = list(by_axis(op, dtype, drawn, budgets=budgets, decisions=decisions))
        decisions.save()
        return found

    decisions = decisions or Decisions()
    try:
        return made(decisions)
    except Changed:
        return made(decisions.anew())


def _sizes(sample: Sample) -> tuple[torch.Size, ...]:
    return tuple(each.shape for each in sample.tensors)


def _within(layouts: Sequence[str] | None, allowed: tuple[str, ...]) -> tuple[str, ...]:
    """Returns those of ``layouts`` that are ``allowed``; the first allowed layout if none of them is."""
    if layouts is None:
        return allowed
    return tuple(each for each in layouts if each in allowed) or allowed[:1]


def _axis_samples(
    op: Subject, dtype: str, drawn: list[Sample], declared: Collection[str], decisions: Decisions
) -> list[Sample]:
    with asking():
        made = list(by_axis(op, dtype, drawn, declared, decisions=decisions))
    decisions.save()
    return made


def thinned(chosen: list[Sample], count: int) -> list[Sample]:
    """Returns the samples ``chosen``, most of them restricted to fewer layouts. The ``count`` samples that differ
    most from each other keep all layouts of the covering set. Each of the remaining samples gets three layouts: a
    contiguous layout, an expanded layout, and a third layout, whose kind changes from sample to sample."""
    whole = {sample.index for sample in choose(chosen, count)} if count else set()
    found = []
    for number, sample in enumerate(chosen):
        if sample.index not in whole:
            within = number % 2 and sample.rank > 2
            expanded = _EXPANDED_WITHIN if within else _EXPANDED
            turn = _IN_TURN[number % len(_IN_TURN)]
            sample = replace(sample, layouts=(_CONTIGUOUS, expanded, turn))
        found.append(sample)
    return found


def by_axis(
    op: Subject,
    dtype: str,
    drawn: Sequence[Sample],
    declared: Collection[str] = (),
    budgets: Mapping[str, int] = BUDGETS,
    decisions: Decisions | None = None,
) -> Iterator[Sample]:
    """Yields the samples of every axis that applies to an op, at most ``budgets[axis]`` samples of each. Axes without a
    budget are skipped."""
    families = exceptions().families_of(*op.names) | op.own_families
    if dtype.startswith(_STORED_ONLY):
        return
    basis = Basis(op, dtype, drawn, families, decisions or Decisions())
    partly = bool(families & PARTLY)
    basis.made = [sample.call for sample in basis.upstream]
    basis.origins = list(basis.upstream)
    for axis in (axis for axis in (*AXES, *FURTHER) if axis.name in budgets):
        if "axes.keep_shapes" in families and not axis.keeps_shapes:
            continue
        if (axis.family and axis.family not in families) or not axis.applies(basis):
            continue
        basis.for_axis(axis.name)
        for number, (base, call) in enumerate(islice(axis.vary(basis), budgets[axis.name])):
            # Layouts are drawn before any sample is left out, so that they are the same for every device.
            layouts = axis.layouts or layouts_of(basis)
            if axis in _TELLING and basis.decides:
                layouts = (*layouts, _EXPANDED)
            if axis.mixed and len(call.tensors) > 1:
                layouts = (*layouts[:-1], axis.mixed[number % len(axis.mixed)])
            if partly:
                # Asked before any sample is left out, because answers are cached in the order of the questions.
                settled = partial(is_settled, op, call, base.process, families)
                if not basis.decisions.decide(settled):
                    continue
            basis.made.append(call)
            basis.origins.append(base)
            if declared and not {dtype_name(t.dtype) for t in call.tensors} <= set(declared):
                continue
            if partly:
                call = specified(call, families)
            yield Sample(
                index=1000 * axis.number + number,
                call=call,
                process=base.process,
                axis=axis.name,
                layouts=None if number < axis.whole else layouts,
                reads_only=number >= axis.writes,
                origin=base.index,
            )
