"""Cases about collectives whose operands are views. A collective must give the right values or refuse the views, and
must not change other memory."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch

from conformance.checks.cases.cases import Cases
from conformance.checks.cases.context import CaseContext
from conformance.suites.distributed.collective_calls import COLLECTIVES, Views
from conformance.suites.distributed.groups import join
from conformance.suites.distributed.views import LAYOUTS, check_input, check_result, put
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
    """Makes the call of one rank, and checks the values that the rank received."""
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


# -- other shapes

#: What is taken of the operands, of which the first dimension is divided among the ranks.
SHAPES: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "one dimension": lambda x: x.flatten(),
    "one column": lambda x: x[..., :1],
    "few elements": lambda x: x[:, :1, :1, :1].flatten(),
    "many elements": lambda x: x.repeat(1, 1, 1, 50),
    "another dtype": lambda x: (
        x.double() * (1 + 2.0**-30)
    ),  # sums are exact, and float32 does not have them
}


def _in_other_shapes(context: CaseContext, name: str) -> None:
    ranks, collective = join(context), COLLECTIVES[name]
    about = (ranks.index, ranks.count, Views())
    for at, change in SHAPES.items():
        given = collective.inputs(*about) if collective.inputs is not None else []
        inputs = [put(ranks, change(values), "contiguous") for values in given]
        outputs = [
            put(ranks, change(values), "contiguous") for values in collective.outputs(*about)
        ]
        operands = [each.tensor for each in inputs], [each.tensor for each in outputs]
        text = "a collective refused contiguous tensors"
        ranks.must_accept(partial(collective.call, ranks, *operands), text, f"{name}, {at}")
        for operand in inputs:
            check_input(ranks, operand, f"{name}, {at}")
        for operand, want in zip(outputs, collective.wanted(*about)):
            wanted = None if want is None else change(want)
            check_result(ranks, operand, wanted, f"{name}, {at}")


@cases(
    "distributed.collectives",
    over={f"{name}_other_shapes": (name,) for name in COLLECTIVES},
    ranks=2,
)
def shapes(context: CaseContext, name: str) -> None:
    """The operands of a collective are contiguous tensors: one-dimensional, of one column, with few and with many
    elements, and of float64. All ranks receive the right values. Inputs, and the bytes around the operands, do not
    change."""
    context.pooled(_in_other_shapes, name, ranks=2)
