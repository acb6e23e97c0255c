"""Cases about collectives whose operands are views. A collective must give the right values or refuse the views, and
must not change other memory."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

import torch

from conformance.checks.cases.cases import Cases
from conformance.checks.cases.context import CaseContext
from conformance.suites.distributed.collective_calls import (
    COLLECTIVES,
    VARIANTS,
    Collective,
    Views,
)
from conformance.suites.distributed.groups import Ranks, join
from conformance.suites.distributed.reductions import is_declared
from conformance.suites.distributed.views import (
    LAYOUTS,
    SHAPE,
    STEPPED_AT_OFFSET,
    VALUES,
    Operand,
    check_input,
    check_result,
    put,
)
from devices.failure import Kind

cases = Cases(Kind.VALUES)

#: The views of plan quick. The others differ from these in one property less, or only in their values.
QUICK = ("stepped", "padded", "transposed")


def _cases_of_views(names: tuple[str, ...]) -> dict[str, tuple[str, str, str]]:
    """Returns the arguments of the cases with the views ``names``, by case name. A collective that works in place has
    one case for each view; any other has one with the view as input and one with the view as output."""
    found = {}
    for name, collective in COLLECTIVES.items():
        for view in names:
            if collective.inputs is None:
                found[f"{name}_{view}"] = (name, "tensor", view)
                continue
            found[f"{name}_input_{view}"] = (name, "input", view)
            if view != "expanded":  # no target can hold different values in one place
                found[f"{name}_output_{view}"] = (name, "output", view)
    return found


def _run(context: CaseContext, name: str, role: str, view: str) -> None:
    """Makes the call of the collective ``name`` on this rank, with the operands of the role (inputs or outputs) in
    the given view, and checks the values that the rank received."""
    ranks, collective = join(context), COLLECTIVES[name]
    views = Views(
        inputs=view if role in ("input", "tensor") else "contiguous",
        outputs=view if role in ("output", "tensor") else "contiguous",
    )
    about = (ranks.index, ranks.count, views)
    inputs = [
        put(ranks, values, views.inputs)
        for values in (collective.inputs(*about) if collective.inputs is not None else [])
    ]
    outputs = [put(ranks, values, views.outputs) for values in collective.outputs(*about)]
    given, taken = [each.tensor for each in inputs], [each.tensor for each in outputs]
    refused = ranks.attempt(lambda: collective.call(ranks, given, taken))
    at = f"{name}, {role} {view}"
    if refused and view != "contiguous":
        context.check(True, "a collective neither refused a view nor gave the right values for it")
        context.note(f"refused: {refused}")
        return
    context.check(not refused, "a collective refused contiguous tensors", found=refused, at=at)
    for operand in inputs:
        check_input(ranks, operand, at)
    for operand, want in zip(outputs, collective.wanted(*about)):
        check_result(ranks, operand, want, at)


@cases(
    "distributed.collectives",
    over={name: (name, "tensor", "contiguous") for name in COLLECTIVES},
    ranks=2,
)
@cases("distributed.collectives", over=_cases_of_views(QUICK), ranks=2)
@cases(
    "distributed.collectives",
    over=_cases_of_views(tuple(view for view in LAYOUTS if view not in (*QUICK, "contiguous"))),
    ranks=2,
    more=True,
)
@cases(
    "distributed.collectives",
    over=_cases_of_views(("contiguous", *QUICK)),
    variants={"4 ranks": (4,)},
    ranks=4,
    more=True,
)
def views(context: CaseContext, name: str, role: str, view: str, count: int = 2) -> None:
    """The operands of a collective are views: with an offset, a step or gaps between rows, transposed, in
    channels_last, expanded or lazily conjugated. All ranks receive the right values, or the call is refused. Inputs,
    and the bytes around inputs and outputs, do not change. Contiguous tensors are not refused."""
    context.pooled(_run, name, role, view, ranks=count)


# -- other shapes and dtypes

#: What is taken of the operands. Of one for all ranks, as much is taken of the part of each rank.
SHAPES: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "all elements": lambda x: x,
    "one dimension": lambda x: x.flatten(),
    "one column": lambda x: x[..., :1],
    "few elements": lambda x: x[:, :1, :1, :1].flatten(),
    "one element": lambda x: x[:: SHAPE[0], :1, :1, :1].flatten(),
    "an odd number of elements": lambda x: x[:: SHAPE[0], :, :1].flatten(),
    "many elements": lambda x: x.repeat(1, 1, 1, 50),
}


@dataclass(frozen=True, slots=True)
class _Call:
    """A call of a collective: its operands, and the values that the outputs must have after it."""

    at: str
    collective: Collective
    inputs: list[Operand]
    outputs: list[Operand]
    wanted: list[torch.Tensor | None]

    def make(self, ranks: Ranks) -> None:
        given, taken = [each.tensor for each in self.inputs], [each.tensor for each in self.outputs]
        self.collective.call(ranks, given, taken)

    def check(self, ranks: Ranks) -> None:
        for operand in self.inputs:
            check_input(ranks, operand, self.at)
        for operand, want in zip(self.outputs, self.wanted):
            check_result(ranks, operand, want, self.at)


#: The dtypes of which operands of all shapes are given, the second because float32 has few digits; of others, of two shapes.
WHOLE = ("float32", "float64")
#: Multiplies the values of the last call with these operands, which is another one for some collectives.
LAST = 4


def _prepare(ranks: Ranks, name: str, shape: str, views: Views) -> _Call:
    of = VARIANTS if views.times == LAST else COLLECTIVES
    collective, index = of[name], (ranks.index, ranks.count)
    change = SHAPES[shape]
    given = collective.inputs(*index, views) if collective.inputs is not None else []
    return _Call(
        f"{name}, {shape} of {views.dtype}, values times {views.times}",
        collective,
        [put(ranks, change(each), views.inputs) for each in given],
        [put(ranks, change(each), views.outputs) for each in collective.outputs(*index, views)],
        [None if want is None else change(want) for want in collective.wanted(*index, views)],
    )


def _calls(
    context: CaseContext, name: str, dtypes: Iterable[str], views: Views
) -> list[tuple[str, Views]]:
    """Returns the shape and the views of each call that a case makes. Each call is repeated with other values,
    because a backend may wrongly return the result of the previous call, and then with another root if the
    collective has one."""
    found = [
        (shape, dtype)
        for dtype in dtypes
        if dtype in context.descriptor.dtypes
        for shape in (SHAPES if dtype in WHOLE else ("all elements", "one dimension"))
    ]
    again = (1, 2, LAST) if name in VARIANTS else (1, 2)
    return [
        (shape, replace(views, values=dtype, times=times))
        for shape, dtype in found
        for times in again
    ]


def _make_all(ranks: Ranks, calls: list[_Call]) -> tuple[str, str]:
    """Makes the calls one after another, until a call is refused. Returns the reason of the refusal, and the
    description of the last call that was made; two empty texts if no call was refused."""
    at = ""

    def make() -> None:
        nonlocal at
        for call in calls:
            at = call.at
            call.make(ranks)

    refused = ranks.attempt(make)
    return refused, at if refused else ""


def _in_other_shapes(context: CaseContext, name: str) -> None:
    ranks = join(context)
    sums = [dtype for dtype in VALUES if is_declared(context, "SUM", dtype)]
    must = [dtype for dtype in sums if dtype != "complex64"]  # gloo gathers no complex tensors
    made = [_prepare(ranks, name, *each) for each in _calls(context, name, must, Views())]
    refused, at = _make_all(ranks, made)
    context.check(not refused, "a collective refused contiguous tensors", found=refused, at=at)
    for dtype in [each for each in VALUES if each not in must]:  # in the same order on every rank
        more = [_prepare(ranks, name, *each) for each in _calls(context, name, [dtype], Views())]
        refused, at = _make_all(ranks, more)
        if refused:
            context.note(f"{at}: {refused}")
        else:
            made += more
    for call in made:
        call.check(ranks)


@cases(
    "distributed.collectives",
    over={f"{name}_other_shapes": (name,) for name in COLLECTIVES},
    ranks=2,
)
def shapes(context: CaseContext, name: str) -> None:
    """A collective receives contiguous tensors: a vector, a matrix of one column, tensors of one element, of few, of
    an odd number and of many elements, and tensors of other dtypes; each call is made twice, with different values.
    All ranks must receive the right values; inputs and the bytes around the operands must not change."""
    context.pooled(_in_other_shapes, name, ranks=2)


def _stepped_in_other_shapes(context: CaseContext, name: str) -> None:
    ranks = join(context)
    view = STEPPED_AT_OFFSET
    roles = {"input": Views(inputs=view), "output": Views(outputs=view)}
    if COLLECTIVES[name].inputs is None:
        roles = {"tensor": Views(view, view)}
    for role, views in roles.items():
        wanted = _calls(context, name, VALUES, views)
        made = [_prepare(ranks, name, *each) for each in wanted]
        if _make_all(ranks, made)[0]:
            made = _make_until_refused(ranks, name, role, wanted)
        for call in made:
            call.check(ranks)


def _make_until_refused(
    ranks: Ranks, name: str, role: str, wanted: Iterable[tuple[str, Views]]
) -> list[_Call]:
    """Makes the calls ``wanted``, one after another, and returns those that are not refused. After a refusal,
    further calls of the same dtype are left out; if the very first call was refused, all calls are left out. A
    backend that refuses a view once refuses it again, and after each refusal the ranks need a new group, which takes
    long."""
    made: list[_Call] = []
    refusing: set[str] = set()
    for shape, views in wanted:
        if views.values in refusing:
            continue
        call = _prepare(ranks, name, shape, views)
        refused, at = _make_all(ranks, [call])
        if not refused:
            made.append(call)
            continue
        ranks.context.check(True, "a view is neither refused nor right")
        ranks.context.note(f"{role}, {at}: {refused}")
        if not made:
            break
        refusing.add(views.values)
    return made


@cases(
    "distributed.collectives",
    over={f"{name}_stepped_shapes": (name,) for name in COLLECTIVES},
    ranks=2,
    more=True,
)
def stepped_shapes(context: CaseContext, name: str) -> None:
    """A collective receives views with a step and an offset: a vector, a matrix of one column, tensors of one
    element, of few, of an odd number and of many elements, and tensors of other dtypes. All ranks must receive the
    right values, or the call must be refused; inputs and the bytes around the operands must not change."""
    context.pooled(_stepped_in_other_shapes, name, ranks=2)
