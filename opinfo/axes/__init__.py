"""Samples by axis: what upstream's samples do not vary, tried on every op that an axis applies to."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import islice

from opinfo.axes.arguments import COUNTS, ENDS, OPERANDS, REFUSED
from opinfo.axes.basis import Basis, asking
from opinfo.axes.decisions import Changed, Decisions
from opinfo.axes.defaults import DEFAULTS
from opinfo.axes.drawn import DRAWN, layouts_of
from opinfo.axes.gaps import GAPS
from opinfo.axes.matrices import GROWN
from opinfo.axes.shapes import EMPTY, EQUAL, EXTENT, LONG, RANK, SIZE
from opinfo.axes.values import ALIKE, INDICES, INTEGERS, SIGNS, SPECIAL, TIES
from opinfo.axes.written import WRITTEN
from opinfo.catalog import Op, dtype_name
from opinfo.exceptions import exceptions
from opinfo.samples import Sample, choose, draw
from opinfo.specified import PARTLY, is_settled, specified

AXES = (
    *(RANK, SIZE, EXTENT, SPECIAL, INTEGERS, INDICES, ENDS, OPERANDS),
    *(EMPTY, TIES, REFUSED, LONG, EQUAL, SIGNS, GROWN, DRAWN),
    *(COUNTS, ALIKE, WRITTEN, DEFAULTS, GAPS),
)

#: The most samples of each axis, by its name.
BUDGETS = {axis.name: axis.budget for axis in AXES}

#: Upstream's samples that are laid out in the whole covering set of layouts, where no sample of the axes is.
_WHOLE = 3
#: Dtypes without the arithmetic that values are changed with.
_STORED_ONLY = ("float8", "float4")
#: The cases in which each of the others is laid out: contiguous, expanded, where there are three dimensions also in the
#: middle, and one of each other sort in turn.
_CONTIGUOUS, _EXPANDED, _EXPANDED_WITHIN = "contiguous", "contiguous+expand_first", "free:expand=1"
_IN_TURN = (
    "contiguous+step_inner+offset",
    "transposed+step_outer+offset",
    "channels_last",
    "contiguous/transposed",
)
FEW = (_CONTIGUOUS, _EXPANDED, _EXPANDED_WITHIN, *_IN_TURN)


def samples_of(
    op: Op,
    dtype: str,
    count: int,
    declared: Collection[str] = (),
    drawn: list[Sample] | None = None,
    decisions: Decisions | None = None,
) -> list[Sample]:
    """What a plan takes: ``count`` of upstream's samples, and those of the axes, the same whenever they are drawn.

    Samples of the axes that have a tensor of a dtype that is not ``declared`` are left out. ``drawn`` are upstream's
    samples, if they have been drawn, and ``decisions`` what the CPU has said of the calls, if that is kept.
    """
    drawn = draw(op, dtype) if drawn is None else drawn
    decisions = decisions or Decisions()
    try:
        made = _made(op, dtype, drawn, declared, decisions)
    except Changed:
        made = _made(op, dtype, drawn, declared, decisions.anew())
    whole = 0 if any(sample.layouts is None for sample in made) else _WHOLE
    return [*thinned(choose(drawn, count), whole), *made]


def _made(
    op: Op, dtype: str, drawn: list[Sample], declared: Collection[str], decisions: Decisions
) -> list[Sample]:
    with asking():
        made = list(by_axis(op, dtype, drawn, declared, decisions=decisions))
    decisions.keep()
    return made


def thinned(chosen: list[Sample], count: int) -> list[Sample]:
    """The samples, of which the ``count`` that differ most keep the whole covering set. Each of the others is contiguous,
    expanded in the first dimension or, every other one, in the second of three, and in one more of the few cases, in turn."""
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
    op: Op,
    dtype: str,
    drawn: Sequence[Sample],
    declared: Collection[str] = (),
    budgets: Mapping[str, int] = BUDGETS,
    decisions: Decisions | None = None,
) -> Iterator[Sample]:
    """The samples of every axis that applies to an op, at most so many of each; of none that ``budgets`` does not name."""
    families = exceptions().families_of(op.id)
    if dtype.startswith(_STORED_ONLY):
        return
    basis = Basis(op, dtype, drawn, families, decisions or Decisions())
    partly = bool(families & PARTLY)
    basis.made = [sample.call for sample in basis.upstream]
    for axis in (axis for axis in AXES if axis.name in budgets):
        if "axes.keep_shapes" in families and not axis.keeps_shapes:
            continue
        if (axis.family and axis.family not in families) or not axis.applies(basis):
            continue
        basis.for_axis(axis.name)
        for number, (base, call) in enumerate(islice(axis.vary(basis), budgets[axis.name])):
            # Drawn before any is left out, so that they are the same for every device.
            layouts = axis.layouts or layouts_of(basis)
            if axis.mixed and len(call.tensors) > 1:
                layouts = (*layouts[:-1], axis.mixed[number % len(axis.mixed)])
            if partly:
                # Asked before any is left out, too: answers are kept in the order of questions.
                settled = partial(is_settled, op, call, base.process, families)
                if not basis.decisions.decide(settled):
                    continue
            basis.made.append(call)
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
