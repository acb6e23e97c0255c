"""graphs.lifecycle, graphs.callables: graphs kept, reset, dumped, destroyed; callables made into graphs."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from conformance.behaviour.cases import Cases
from conformance.behaviour.context import Context
from conformance.graphs.capturing import captured, counting, new_graph, replay, there

cases = Cases()


@cases("graphs.lifecycle", over={"kept": (False,), "kept_and_instantiated": (True,)})
def keep_graph(context: Context, ask: bool) -> None:
    """A kept graph is instantiated when that is asked for, or by its first replay."""
    x = there(context, counting(4))
    with captured(context, graph=new_graph(context, keep_graph=True)) as graph:
        x.add_(1)
    if ask:
        graph.instantiate()
    replay(context, graph, times=2)
    context.equal(x, counting(4) + 2, "two replays")


@cases("graphs.lifecycle")
def reset(context: Context) -> None:
    """After reset a graph holds nothing, and refuses to be replayed."""
    x = there(context, counting(4))
    with captured(context) as graph:
        x.add_(1)
    graph.reset()
    with context.stream():
        context.raises(RuntimeError, graph.replay, text="replay after reset raises")
    context.settle()
    context.equal(x, counting(4), "nothing was done")


@cases("graphs.lifecycle")
def captured_again(context: Context) -> None:
    """After reset a graph is captured again, and replays the new work alone."""
    x = there(context, counting(4))
    with captured(context) as graph:
        x.add_(1)
    replay(context, graph)
    graph.reset()
    with captured(context, graph=graph):
        x.mul_(3)
    replay(context, graph, times=2)
    context.equal(x, (counting(4) + 1) * 9, "the new work, twice")


@cases(
    "graphs.lifecycle",
    over={"reset_while_queued": ("reset",), "destroyed_while_queued": ("deleted",)},
    requires={"streams"},
)
def destroyed_while_queued(context: Context, how: str) -> None:
    """What is queued of a graph is done, though the graph is gone by then; its memory is not reused before."""
    x, stream = there(context, counting(4096)), context.stream()
    with captured(context, stream) as graph:
        y = x * 2
        x.add_(y)
    del y
    context.settle()
    with context.hold(stream) as hold:
        with stream:
            graph.replay()
            if how == "reset":
                graph.reset()
            del graph
            noise = [torch.zeros(4096, device=context.device) for _ in range(4)]
        hold.must_be_in_flight()
        hold.release()
    context.settle()
    context.equal(x, counting(4096) * 3, "the queued replay")
    for each in noise:
        context.equal(each, torch.zeros(4096), "what was allocated meanwhile")


@cases("graphs.lifecycle")
def debug_dump(context: Context) -> None:
    """debug_dump writes a file where debugging was enabled before the capture."""
    x, graph = there(context, counting(4)), new_graph(context)
    graph.enable_debug_mode()
    with captured(context, graph=graph):
        x.add_(1)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "graph.dot"
        graph.debug_dump(str(path))
        context.check(path.is_file() and path.stat().st_size > 0, "debug_dump writes a file")
    replay(context, graph)
    context.equal(x, counting(4) + 1, "the graph is replayed as ever")


# Callables


def _square(x: torch.Tensor) -> torch.Tensor:
    return x * x


def _two(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    return x * y, x - y


def _first(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return x * 3


FUNCTIONS: dict[str, tuple[Callable[..., Any], int]] = {
    "one_argument": (_square, 1),
    "two_of_each": (_two, 2),
    "unused_input": (_first, 2),
}


def _gradients(
    context: Context, function: Callable[..., Any], values: list[torch.Tensor]
) -> list[torch.Tensor | None]:
    """The results, and the gradients of their sum, weighted differently."""
    given = [context.to_device(each).requires_grad_() for each in values]
    results = function(*given)
    several = results if isinstance(results, tuple) else (results,)
    total: Any = sum((each * (place + 2)).sum() for place, each in enumerate(several))
    total.backward()
    context.settle()
    return [*(each.detach() for each in several), *(each.grad for each in given)]


def _compared(
    context: Context, got: list[torch.Tensor | None], want: list[torch.Tensor | None]
) -> None:
    for place, (mine, theirs) in enumerate(zip(got, want, strict=True)):
        zero = theirs is None or not bool(context.from_device(theirs).any())
        if mine is None or theirs is None:
            context.check(mine is None and zero, f"result or gradient {place} is none, as eagerly")
        else:
            context.equal(mine, theirs, f"result or gradient {place}")


@cases("graphs.callables", over={name: (name,) for name in FUNCTIONS})
def a_function(context: Context, name: str) -> None:
    """A graphed function gives the eager results and gradients, call after call."""
    function, count = FUNCTIONS[name]
    sample = tuple(context.to_device(counting(4, start=1)).requires_grad_() for _ in range(count))
    graphed = context.own("graph_callables")(
        function, sample, allow_unused_input=name == "unused_input"
    )
    for step in range(3):
        values = [counting(4, start=step + place) for place in range(count)]
        _compared(
            context, _gradients(context, graphed, values), _gradients(context, function, values)
        )


def _module(context: Context) -> torch.nn.Module:
    made = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.ReLU(), torch.nn.Linear(3, 2))
    with torch.no_grad():
        for place, each in enumerate(made.parameters()):
            each.copy_((counting(*each.shape, start=place) % 5 - 2) / 4)
    return made.to(context.device)


@cases("graphs.callables")
def a_module(context: Context) -> None:
    """A graphed module trains as the eager one does."""
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
            context.check(got is not None and want is not None, f"{name} has a gradient")
            if got is not None and want is not None:
                context.equal(got, want, f"the gradient of {name}, step {step}")
        with torch.no_grad():
            for each in (*graphed.parameters(), *eager.parameters()):
                each.sub_(each.grad, alpha=0.125)


@cases("graphs.callables", requires={"autocast"})
def under_autocast(context: Context) -> None:
    """A module graphed under autocast, without its cache, gives what it gives eagerly there."""
    eager, source, x = _module(context), _module(context), context.to_device(counting(2, 4))
    with torch.autocast(context.kind, dtype=torch.bfloat16, cache_enabled=False):
        graphed = context.own("graph_callables")(source, (x,))
        for step in range(2):
            given = context.to_device(counting(2, 4, start=step))
            got, want = graphed(given), eager(given)
            context.settle()
            context.same(got.dtype, torch.bfloat16, "the dtype of the result")
            context.equal(got, want, f"the result of call {step}")


@cases("graphs.callables")
def several(context: Context) -> None:
    """Callables that are graphed together are called one after another, as they would be eagerly."""
    samples = tuple((context.to_device(counting(4)).requires_grad_(),) for _ in range(2))
    functions = (_square, _square)
    first, second = context.own("graph_callables")(functions, samples)
    for step in range(2):
        values = [counting(4, start=step)]
        got = _gradients(context, lambda x: second(first(x)), values)
        _compared(context, got, _gradients(context, lambda x: _square(_square(x)), values))
