"""Cases of the clause graphs.callables: functions and modules that make_graphed_callables captures."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from conformance.checks.behaviour.graph_capture import (
    counting,
)
from conformance.checks.cases.cases import Cases
from conformance.checks.cases.context import CaseContext
from devices.failure import Kind

cases = Cases(Kind.VALUES)


def _square(x: torch.Tensor) -> torch.Tensor:
    return x * x


#: Functions, and the number of their arguments.
FUNCTIONS: dict[str, tuple[Callable[..., Any], int]] = {
    "one_argument": (_square, 1),
    "two_of_each": (lambda x, y: (x * y, x - y), 2),
    "unused_input": (lambda x, y: x * 3, 2),
}


def _gradients(
    context: CaseContext, function: Callable[..., Any], values: list[torch.Tensor]
) -> list[torch.Tensor | None]:
    """Returns the results of a function, and the gradients of a weighted sum of the results with respect to
    the inputs."""
    given = [context.to_device(each).requires_grad_() for each in values]
    results = function(*given)
    several = results if isinstance(results, tuple) else (results,)
    total: Any = sum((each * (place + 2)).sum() for place, each in enumerate(several))
    total.backward()
    context.settle()
    gradients = [each.grad for each in given]
    return [each.detach() for each in several] + gradients


def _compared(
    context: CaseContext,
    graphed: Callable[..., Any],
    eager: Callable[..., Any],
    values: list[torch.Tensor],
) -> None:
    """Checks that two functions return the same results and gradients for the given values."""
    got, want = (_gradients(context, function, values) for function in (graphed, eager))
    for place, (mine, theirs) in enumerate(zip(got, want, strict=True)):
        if mine is not None and theirs is not None:
            context.equal(mine, theirs, f"result or gradient {place} differs from eager execution")
            continue
        zero = theirs is None or not context.from_device(theirs).any()
        context.check(
            mine is None and zero,
            f"result or gradient {place} exists in only one of graphed and eager execution",
        )


@cases("graphs.callables", over={name: (name,) for name in FUNCTIONS})
def a_function(context: CaseContext, name: str) -> None:
    """A function made by make_graphed_callables gives the same results and gradients as the eager function in
    each call."""
    function, count = FUNCTIONS[name]
    sample = tuple(context.to_device(counting(4, start=1)).requires_grad_() for _ in range(count))
    unused = name == "unused_input"
    graphed = context.own("graph_callables")(function, sample, allow_unused_input=unused)
    for step in range(3):
        values = [counting(4, start=step + place) for place in range(count)]
        _compared(context, graphed, function, values)


def _module(context: CaseContext) -> torch.nn.Module:
    made = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.ReLU(), torch.nn.Linear(3, 2))
    with torch.no_grad():
        for place, each in enumerate(made.parameters()):
            each.copy_((counting(*each.shape, start=place) % 5 - 2) / 4)
    return made.to(context.device)


@cases("graphs.callables")
def a_module(context: CaseContext) -> None:
    """A module made by make_graphed_callables gets the same gradients as the eager module in each of three
    training steps."""
    eager, source = _module(context), _module(context)
    graphed = context.own("graph_callables")(source, (context.to_device(counting(2, 4)),))
    for step in range(3):
        x = context.to_device(counting(2, 4, start=step))
        for each in (eager, graphed):
            each.zero_grad()
            (each(x) * (step + 1)).sum().backward()
        context.settle()
        for (name, mine), theirs in zip(graphed.named_parameters(), eager.parameters()):
            got, want = mine.grad, theirs.grad
            context.check(got is not None and want is not None, f"{name} has no gradient")
            if got is not None and want is not None:
                context.equal(
                    got, want, f"the gradient of {name} in step {step} differs from eager execution"
                )
        with torch.no_grad():
            for each in (*graphed.parameters(), *eager.parameters()):
                each.sub_(each.grad, alpha=0.125)


@cases("graphs.callables", requires={"autocast"})
def under_autocast(context: CaseContext) -> None:
    """A module is graphed under autocast with cache_enabled=False. It gives the same results as the eager
    module under autocast."""
    eager, source, x = _module(context), _module(context), context.to_device(counting(2, 4))
    with torch.autocast(context.kind, dtype=torch.bfloat16, cache_enabled=False):
        graphed = context.own("graph_callables")(source, (x,))
        for step in range(2):
            given = context.to_device(counting(2, 4, start=step))
            got, want = graphed(given), eager(given)
            context.settle()
            context.same(got.dtype, torch.bfloat16, "the result has the wrong dtype")
            context.equal(got, want, f"the result of call {step} differs from eager execution")


@cases("graphs.callables")
def several(context: CaseContext) -> None:
    """Two functions are graphed together and called one after the other. They give the same results and
    gradients as eager execution."""
    samples = tuple((context.to_device(counting(4)).requires_grad_(),) for _ in range(2))
    first, second = context.own("graph_callables")((_square, _square), samples)
    for step in range(2):
        values = [counting(4, start=step)]
        _compared(context, lambda x: second(first(x)), lambda x: _square(_square(x)), values)
