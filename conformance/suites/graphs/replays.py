"""Cases about the results of replays: a replay computes what eager calls compute."""

from __future__ import annotations

from collections.abc import Callable

import torch

from conformance.checks.behaviour.graph_capture import (
    broken,
    captured,
    counting,
    give,
    new_graph,
    replay,
    there,
)
from conformance.checks.cases.cases import Cases
from conformance.checks.cases.context import CaseContext
from conformance.checks.cases.held_streams import value_behind
from devices.failure import Kind

cases = Cases(Kind.VALUES)

#: The functions that are captured: each takes two inputs and returns a tuple of results.
BODIES: dict[str, Callable[[torch.Tensor, torch.Tensor], tuple[torch.Tensor, ...]]] = {
    "pointwise": lambda x, y: (x * 2 + y, (x * 2 + y - 1).abs()),
    "in_place": lambda x, y: (x.clone().add_(y).mul_(2),),
    "views": lambda x, y: (x.t() + y, x[1:].reshape(-1), x.expand(2, 4, 4) * y),
    "reductions": lambda x, y: (x.sum(0), (x * y).amax(1), torch.cat([x, y], 1)),
    "out": lambda x, y: (torch.add(x, y, out=torch.empty_like(x)),),
}


@cases("graphs.replay_equals_eager", over={name: (name,) for name in BODIES})
def present_contents(context: CaseContext, name: str) -> None:
    """A function is captured, and replayed after each change of its input tensors. Each replay gives the result
    of eager execution on the current values of the inputs."""
    body = BODIES[name]
    inputs = there(context, counting(4, 4)), there(context, counting(4, 4, start=7))
    with captured(context) as graph:
        results = body(*inputs)
    for step in range(4):
        values = counting(4, 4, start=-3 * step), counting(4, 4, start=step)
        for target, value in zip(inputs, values):
            give(context, target, value)
        eager = body(*(there(context, each) for each in values))
        replay(context, graph)
        for place, (got, want) in enumerate(zip(results, eager)):
            context.equal(
                got, want, f"output {place} of replay {step} differs from eager execution"
            )


@cases("graphs.replay_equals_eager")
def any_number_of_times(context: CaseContext) -> None:
    """A graph that changes a tensor in place is replayed seven times. Each replay continues from the result of
    the previous replay."""
    x = there(context, counting(4))
    with captured(context) as graph:
        x.add_(1)
        x.mul_(2)
    replay(context, graph, times=7)
    want = counting(4)
    for _ in range(7):
        want = (want + 1) * 2
    context.equal(x, want, "seven replays did not do the captured work seven times")


@cases("graphs.replay_equals_eager")
def in_stream_order(context: CaseContext) -> None:
    """A replay runs in the order of the stream on which it is called: the replay sees the results of work
    queued before it, and work queued after it sees the results of the replay."""
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
    context.equal(
        before, torch.full((4,), 6.0), "the replay did not see the work that was queued before it"
    )
    context.equal(
        after,
        torch.full((4,), 9.0),
        "work that was queued after the replay did not see the replay's result",
    )


@cases("graphs.replay_equals_eager", requires={"streams"})
def with_the_stream_held(context: CaseContext) -> None:
    """Three replays are queued on a blocked stream without blocking the host. When the stream continues, each
    replay runs."""
    x, stream = there(context, counting(4)), context.stream()
    with captured(context, stream) as graph:
        x.add_(1)
    context.settle()
    with context.hold(stream, needed=False), stream:
        for _ in range(3):
            graph.replay()
    context.settle()
    context.equal(x, counting(4) + 3, "three queued replays left wrong values")


@cases("graphs.replay_equals_eager", requires={"streams"})
def on_two_streams(context: CaseContext) -> None:
    """One graph is replayed on two streams, the first of which is blocked. The second replay runs after the
    first replay, because a graph does not run concurrently with itself."""
    x, streams = there(context, counting(4)), context.streams()
    with captured(context, streams[0]) as graph:
        x.add_(1)
        x.mul_(2)
    context.settle()

    def replays() -> None:
        with streams[0]:
            x.fill_(5)
            graph.replay()
        with streams[1]:
            graph.replay()

    value_behind(context.hold(streams[0], needed=False), replays)
    context.settle()
    context.equal(
        x, torch.full((4,), 26.0), "two replays of one graph on two streams left wrong values"
    )


@cases("graphs.replay_equals_eager")
def host_scalar(context: CaseContext) -> None:
    """A CPU tensor without dimensions is used in a capture and changed afterwards. Replays use the value that the
    tensor had during the capture, unless the capture refuses the tensor with a RuntimeError."""
    x, scalar = there(context, counting(4)), torch.tensor(3.0)
    graph, made = new_graph(context), []

    def work() -> None:
        made.append(x * scalar)
        x.add_(scalar)

    refused = broken(context.stream(), graph, work)
    if refused is not None:
        context.check(
            isinstance(refused, RuntimeError),
            "a capture with a CPU scalar tensor raised an exception that is not a RuntimeError",
        )
        return
    (y,) = made
    scalar.fill_(100)
    replay(context, graph)
    context.equal(
        y,
        counting(4) * 3,
        "the replayed product did not use the value that the scalar had during the capture",
    )
    context.equal(
        x,
        counting(4) + 3,
        "the replayed sum did not use the value that the scalar had during the capture",
    )


@cases("graphs.replay_equals_eager", requires={"pinned_memory"})
def from_pinned_memory(context: CaseContext) -> None:
    """Copies from and to pinned memory are captured. Each replay copies the values that the source has at the
    time of the replay."""
    host, back = counting(16).pin_memory(), torch.zeros(16).pin_memory()
    x = there(context, torch.zeros(16))
    with captured(context) as graph:
        x.copy_(host, non_blocking=True)
        y = x + 1
        back.copy_(y, non_blocking=True)
    for step in range(3):
        context.settle()
        host.copy_(counting(16, start=10 * step))
        replay(context, graph)
        context.settle()
        context.equal(
            y,
            counting(16, start=10 * step) + 1,
            f"replay {step} did not read the current values of pinned memory",
        )
        context.equal(
            back.clone(),
            counting(16, start=10 * step) + 1,
            f"replay {step} did not write the result to pinned memory",
        )


@cases("graphs.replay_equals_eager")
def backward(context: CaseContext) -> None:
    """A captured backward pass gives the same gradients as an eager backward pass for each new input."""
    x = there(context, counting(2, 3))
    weight = context.to_device(counting(3, 2, start=1)).requires_grad_()

    def loss() -> torch.Tensor:
        return ((x @ weight).relu() * 2).sum()

    with context.stream():
        torch.autograd.grad(loss(), weight)  # one-time setup, not captured
    context.settle()
    with captured(context) as graph:
        (got,) = torch.autograd.grad(loss(), weight)
    for step in range(2):
        give(context, x, counting(2, 3, start=step))
        (want,) = torch.autograd.grad(loss(), weight)
        replay(context, graph)
        context.equal(got, want, f"the gradient of replay {step} differs from eager execution")


#: The number of layers of a deep network whose training step has thousands of kernels.
_LAYERS = 3000


@cases("graphs.replay_equals_eager")
def thousands_of_kernels(context: CaseContext) -> None:
    """A forward and backward pass through 3,000 layers is captured, replayed twice and deleted. The results
    are right, and the device works afterwards."""
    x = there(context, counting(4))
    weight = context.to_device(torch.ones(4)).requires_grad_()

    def step(layers: int) -> tuple[torch.Tensor, torch.Tensor]:
        found = x
        for _ in range(layers):
            found = found + weight
        return found.detach(), torch.autograd.grad(found.sum(), weight)[0]

    with context.stream():
        step(2)  # one-time setup, not captured
    context.settle()
    with captured(context) as graph:
        result, gradient = step(_LAYERS)
    for start in (1, -7):
        give(context, x, counting(4, start=start))
        replay(context, graph)
        context.equal(
            result,
            counting(4, start=start) + _LAYERS,
            "the replayed forward pass gave a wrong result",
        )
        context.equal(
            gradient,
            torch.full((4,), float(_LAYERS)),
            "the replayed backward pass gave a wrong gradient",
        )
    del graph
    context.equal(
        x + 1, counting(4, start=-7) + 1, "eager work after the graph was deleted gave wrong values"
    )
