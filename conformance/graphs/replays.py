"""graphs.replay_equals_eager, graphs.addresses: a replay is the recorded work on what the inputs hold then."""

from __future__ import annotations

from collections.abc import Callable

import torch

from conformance.behaviour.cases import Cases
from conformance.behaviour.context import Context
from conformance.graphs.capturing import (
    captured,
    counting,
    give,
    new_graph,
    overlaps,
    replay,
    span,
    there,
)

cases = Cases()

Values = tuple[torch.Tensor, ...]


def _pointwise(x: torch.Tensor, y: torch.Tensor) -> Values:
    z = x * 2 + y
    return z, (z - 1).abs()


def _in_place(x: torch.Tensor, y: torch.Tensor) -> Values:
    z = x.clone()
    z.add_(y).mul_(2)
    return (z,)


def _views(x: torch.Tensor, y: torch.Tensor) -> Values:
    return x.t() + y, x[1:].reshape(-1), x.expand(2, 4, 4) * y


def _reduced(x: torch.Tensor, y: torch.Tensor) -> Values:
    return x.sum(0), (x * y).amax(1), torch.cat([x, y], 1)


def _out(x: torch.Tensor, y: torch.Tensor) -> Values:
    return (torch.add(x, y, out=torch.empty_like(x)),)


BODIES: dict[str, Callable[[torch.Tensor, torch.Tensor], Values]] = {
    "pointwise": _pointwise,
    "in_place": _in_place,
    "views": _views,
    "reductions": _reduced,
    "out": _out,
}


@cases("graphs.replay_equals_eager", over={name: (name,) for name in BODIES})
def present_contents(context: Context, name: str) -> None:
    """Replays give the eager result for what the static inputs hold by then, each time."""
    body = BODIES[name]
    x, y = there(context, counting(4, 4)), there(context, counting(4, 4, start=7))
    with captured(context) as graph:
        results = body(x, y)
    for step in range(4):
        values = counting(4, 4, start=-3 * step), counting(4, 4, start=step)
        give(context, x, values[0])
        give(context, y, values[1])
        eager = body(*(there(context, each) for each in values))
        replay(context, graph)
        for place, (got, want) in enumerate(zip(results, eager)):
            context.equal(got, want, f"output {place} of replay {step} is that of eager execution")


@cases("graphs.replay_equals_eager")
def any_number_of_times(context: Context) -> None:
    """Every replay does the work again, on what the one before left."""
    x = there(context, counting(4))
    with captured(context) as graph:
        x.add_(1)
        x.mul_(2)
    replay(context, graph, times=7)
    want = counting(4)
    for _ in range(7):
        want = (want + 1) * 2
    context.equal(x, want, "seven replays are the work seven times")


@cases("graphs.replay_equals_eager")
def in_stream_order(context: Context) -> None:
    """A replay stands in the order of the stream that it is replayed on."""
    x, stream = there(context, counting(4)), context.stream()
    with captured(context, stream) as graph:
        y = x + 1
    context.settle()
    with stream:
        x.fill_(5)
        graph.replay()
        before = y.clone()
        x.fill_(8)
        graph.replay()
        after = y.clone()
    context.settle()
    context.equal(before, torch.full((4,), 6.0), "work before the replay is seen by it")
    context.equal(after, torch.full((4,), 9.0), "work behind it sees its result")


@cases("graphs.replay_equals_eager", requires={"streams"})
def with_the_stream_held(context: Context) -> None:
    """The host goes on while replays are queued, and each does its work."""
    x, stream = there(context, counting(4)), context.stream()
    with captured(context, stream) as graph:
        x.add_(1)
    context.settle()
    with context.hold(stream) as hold:
        with stream:
            for _ in range(3):
                graph.replay()
        hold.must_be_in_flight()
        hold.release()
    context.settle()
    context.equal(x, counting(4) + 3, "three queued replays")


@cases("graphs.replay_equals_eager")
def backward(context: Context) -> None:
    """A captured backward pass gives the gradients of an eager one."""
    x = there(context, counting(2, 3))
    weight = context.to_device(counting(3, 2, start=1)).requires_grad_()

    def loss() -> torch.Tensor:
        return ((x @ weight).relu() * 2).sum()

    with context.stream():
        torch.autograd.grad(loss(), weight)  # what a first pass sets up is no part of the graph
    context.settle()
    with captured(context) as graph:
        (got,) = torch.autograd.grad(loss(), weight)
    for step in range(2):
        give(context, x, counting(2, 3, start=step))
        (want,) = torch.autograd.grad(loss(), weight)
        replay(context, graph)
        context.equal(got, want, f"the gradient of replay {step}")


@cases("graphs.addresses")
def outputs_stay(context: Context) -> None:
    """Outputs keep their addresses over replays, and hold each replay's result there."""
    x = there(context, counting(16))
    with captured(context) as graph:
        results = [x + 1, (x * 2)[4:]]
    before = [each.data_ptr() for each in results]
    for step in range(3):
        give(context, x, counting(16, start=step))
        replay(context, graph)
        context.same([each.data_ptr() for each in results], before, "the outputs' addresses")
        context.equal(results[0], counting(16, start=step) + 1, "the first output")


@cases("graphs.addresses", over={"small": (1000,), "large": (2**19,)})
def handed_to_nobody(context: Context, count: int) -> None:
    """While a graph lives nobody outside its pool is handed what was allocated in its capture, freed or not."""
    x, stream = there(context, counting(1)), context.stream()
    graph = new_graph(context)
    with stream, graph:
        first = x.expand(count) + 1
        second = first * 2
        own = [span(first), span(second)]
        del first
    context.settle()
    with stream:  # the stream that the blocks belong to
        others = [torch.full((count,), 7.0, device=context.device) for _ in range(3)]
    wrong = [span(each) for each in others if overlaps(span(each), own)]
    context.same(wrong, [], "addresses of the graph that others were given")
    replay(context, graph, times=2)
    for each in others:
        context.equal(each, torch.full((count,), 7.0), "a replay writes to nobody else's memory")
    context.equal(second, torch.full((count,), 2.0), "the graph's own result")
