"""Cases about replays of graphs: their results, their memory, side streams and random numbers."""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any

import torch

from conformance.checks.cases.cases import Cases
from conformance.checks.cases.context import Context
from conformance.checks.cases.in_flight import value_behind
from conformance.suites.allocator.memory import fresh, inside, span
from conformance.suites.graphs.capturing import (
    broken,
    captured,
    counting,
    give,
    new_graph,
    replay,
    there,
    works,
)
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
def present_contents(context: Context, name: str) -> None:
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
def any_number_of_times(context: Context) -> None:
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
def in_stream_order(context: Context) -> None:
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
        after, torch.full((4,), 9.0), "work that was queued after the replay did not see its result"
    )


@cases("graphs.replay_equals_eager", requires={"streams"})
def with_the_stream_held(context: Context) -> None:
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
def on_two_streams(context: Context) -> None:
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
def host_scalar(context: Context) -> None:
    """A CPU tensor without dimensions is used in a capture. Replays use the value that the tensor had during
    the capture, unless the capture refuses the tensor with a RuntimeError."""
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
def from_pinned_memory(context: Context) -> None:
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
def backward(context: Context) -> None:
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
def thousands_of_kernels(context: Context) -> None:
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


@cases("graphs.addresses", requires={"pointers"})
def outputs_stay(context: Context) -> None:
    """The outputs of a graph keep their addresses over several replays, and contain the result of each replay."""
    x = there(context, counting(16))
    with captured(context) as graph:
        results = [x + 1, (x * 2)[4:]]
    before = [each.data_ptr() for each in results]
    for step in range(3):
        give(context, x, counting(16, start=step))
        replay(context, graph)
        context.same(
            [each.data_ptr() for each in results], before, "the outputs' addresses changed"
        )
        context.equal(
            results[0], counting(16, start=step) + 1, "the first output has a wrong value"
        )


@cases("graphs.addresses", requires={"pointers"}, over={"small": (1000,), "large": (2**19,)})
def handed_to_nobody(context: Context, count: int) -> None:
    """While a graph exists, memory that was allocated during its capture is not given to tensors outside of the
    graph's pool, even if the memory was freed during the capture."""
    x, stream = there(context, counting(1)), context.stream()
    with captured(context, stream) as graph:
        first = x.expand(count) + 1
        second = first * 2
        own = [span(first), span(second)]
        del first
    context.settle()
    with stream:  # the stream on which the blocks were allocated
        others = [torch.full((count,), 7.0, device=context.device) for _ in range(3)]
    wrong = [span(each) for each in others if inside(each, own)]
    context.same(wrong, [], "tensors outside of the graph got memory of the graph (address ranges)")
    replay(context, graph, times=2)
    for each in others:
        context.equal(
            each, torch.full((count,), 7.0), "a replay overwrote a tensor outside of the graph"
        )
    context.equal(second, torch.full((count,), 2.0), "the replay gave a wrong result")


SIZE, LARGE = 4096, 2**19  # elements


@cases("graphs.pool")
def shared_in_order(context: Context) -> None:
    """Two graphs share a memory pool and are replayed in the order in which they were captured. Their outputs
    are right."""
    x, stream = there(context, counting(SIZE)), context.stream()
    with captured(context, stream) as first:
        y = (x + 1) * 2
    with captured(context, stream, new_graph(context, pool=first.pool())) as second:
        z = (y + 3) * 4
    context.same(
        tuple(second.pool()),
        tuple(first.pool()),
        "the second graph reports a pool that is not the pool it was given",
    )
    for step in range(3):
        give(context, x, counting(SIZE, start=step))
        replay(context, first, stream=stream)
        replay(context, second, stream=stream)
        want = (counting(SIZE, start=step) + 1) * 2
        context.equal(y, want, "the first graph's output is wrong")
        context.equal(z, (want + 3) * 4, "the second graph's output is wrong")


@cases("graphs.pool")
def unshared_in_any_order(context: Context) -> None:
    """Two graphs with separate memory pools are replayed in several orders. Their outputs are right in each
    order."""
    x, stream = there(context, counting(SIZE)), context.stream()
    with captured(context, stream) as first:
        y = (x + 1) * 2
    with captured(context, stream) as second:
        z = (x + 3) * 4
    context.check(
        tuple(first.pool()) != tuple(second.pool()),
        "two graphs with separate pools report the same pool",
    )
    for order in ((second, first), (first, second), (second, first, first, second)):
        for each in (y, z):
            each.fill_(-1)
        context.settle()
        for graph in order:
            replay(context, graph, stream=stream)
        context.equal(y, (counting(SIZE) + 1) * 2, "the first graph's output is wrong")
        context.equal(z, (counting(SIZE) + 3) * 4, "the second graph's output is wrong")


def _reserved(context: Context) -> int:
    """Returns the reserved bytes after cached memory was released."""
    fresh(context)
    return context.counters().reserved


@cases("graphs.pool", over={"small": (1000,), "large": (2**19,)}, requires={"allocator_statistics"})
def memory_comes_back(context: Context, count: int) -> None:
    """After a graph was deleted, a live tensor of its pool keeps its memory and values. After the tensor was
    deleted too, empty_cache releases the memory of the pool."""
    x, stream = there(context, counting(1)), context.stream()
    gc.collect()  # frees graphs of other cases
    before = _reserved(context)
    with captured(context, stream) as graph:
        y = x.expand(count) + 1
    context.must(_reserved(context) > before, "the capture did not raise the reserved bytes")
    replay(context, graph, stream=stream)
    del graph
    held = _reserved(context)
    context.check(
        held > before,
        "deleting the graph released the memory of a live tensor",
        found=held - before,
    )
    context.equal(
        y[-1:], torch.ones(1), "a tensor of the pool lost its value when the graph was deleted"
    )
    del y
    context.same(
        _reserved(context) - before, 0, "memory of the deleted graph stayed reserved (bytes)"
    )


@cases("graphs.pool", requires={"allocator_statistics"})
def a_shared_pool_lives_on(context: Context) -> None:
    """Two graphs share a memory pool, and the first graph is deleted. The pool continues to exist, the second
    graph still replays correctly, and the memory is released after the second graph was deleted."""
    x, stream = there(context, counting(1)), context.stream()
    gc.collect()  # frees graphs of other cases
    before = _reserved(context)
    with captured(context, stream) as first:
        (x.expand(LARGE) + 1).sum()
    with captured(context, stream, new_graph(context, pool=first.pool())) as second:
        z = (x.expand(LARGE) + 3).sum()  # uses a block that is free when the capture ends
    del first
    context.check(
        _reserved(context) > before,
        "deleting the first graph released the memory of the shared pool",
    )
    _replays_in_its_own_memory(context, second, stream, z)
    del second, z
    context.same(
        _reserved(context) - before, 0, "memory of the deleted graphs stayed reserved (bytes)"
    )


@cases("graphs.pool", requires={"allocator_statistics"})
def empty_cache_spares_it(context: Context) -> None:
    """empty_cache does not release memory of an existing graph, not even blocks that were freed during its
    capture: replays afterwards give the right result."""
    x, stream = there(context, counting(1)), context.stream()
    with captured(context, stream) as graph:
        z = (x.expand(LARGE) + 3).sum()
    for _ in range(2):
        fresh(context)
        _replays_in_its_own_memory(context, graph, stream, z)


def _replays_in_its_own_memory(context: Context, graph: Any, stream: Any, z: torch.Tensor) -> None:
    with stream:  # the stream on which the graph's blocks were allocated
        noise = [torch.zeros(LARGE, device=context.device) for _ in range(4)]
    replay(context, graph, stream=stream)
    context.equal(z, torch.tensor(3.0 * LARGE), "the replay gave a wrong result")
    for each in noise:
        context.equal(each, torch.zeros(LARGE), "a replay overwrote a tensor outside of the graph")


@cases("graphs.pool", requires={"allocator_statistics"})
def memory_comes_back_after_an_error(context: Context) -> None:
    """The user's code raises an exception inside a capture. The memory of the capture is released, so that the
    reserved bytes are as before."""
    x, stream = there(context, counting(1)), context.stream()
    gc.collect()
    before, made = _reserved(context), []

    def work() -> None:
        made.append(x.expand(SIZE) + 1)
        raise RuntimeError("of the program")

    broken(stream, new_graph(context), work)
    made.clear()
    context.same(
        _reserved(context) - before, 0, "memory of a failed capture stayed reserved (bytes)"
    )


@cases("graphs.pool", requires={"allocator_statistics"}, own_process=True)
def memory_comes_back_after_a_failed_capture(context: Context) -> None:
    """A capture fails because a call that captures do not allow is made inside it. The memory of the capture is
    released, so that the reserved bytes are as before."""
    x, stream = there(context, counting(1)), context.stream()
    gc.collect()
    before, made = _reserved(context), []

    def work() -> None:
        made.append(x.expand(SIZE) + 1)
        stream.synchronize()

    raised = broken(stream, new_graph(context), work)
    context.must(raised is not None, "a synchronizing call inside a capture did not raise")
    del raised
    made.clear()
    context.same(
        _reserved(context) - before, 0, "memory of a failed capture stayed reserved (bytes)"
    )


#: Ways to make the second stream wait for the first.
ORDERS: dict[str, Callable[[Any, Any], None]] = {
    "wait_stream": lambda first, second: second.wait_stream(first),
    "event": lambda first, second: second.wait_event(first.record_event()),
}


@cases("graphs.fork_join", over={f"captured_by_{name}": (name,) for name in ORDERS})
def side_stream(context: Context, order: str) -> None:
    """A side stream is forked from the capturing stream and joined to it. The work of the side stream is
    captured, does not run during the capture, and is replayed in the right order."""
    x, y = there(context, counting(4)), there(context, counting(4, start=9))
    (stream, side), then = context.streams(), ORDERS[order]
    with captured(context, stream) as graph:
        x.add_(1)
        then(stream, side)
        with side:
            within = context.is_capturing(side)
            x.mul_(2)
        y.add_(5)
        then(side, stream)
        z = x + y
    context.settle()
    context.check(within, "is_capturing() of the side stream is False during the capture")
    context.equal(x, counting(4), "work of the side stream ran during the capture")
    for step in range(3):
        give(context, x, counting(4, start=step))
        give(context, y, counting(4))
        replay(context, graph)
        want = (counting(4, start=step) + 1) * 2
        context.equal(x, want, "the replayed work of the side stream gave a wrong result")
        context.equal(z, want + counting(4) + 5, "work after the join did not see both branches")


@cases("graphs.fork_join")
def order_is_kept(context: Context) -> None:
    """A graph with 50 kernels on a side stream is replayed four times. Work after the join waits for the side
    stream in each replay."""
    x, stream, side = there(context, counting(2**16)), context.stream(), context.stream()
    with captured(context, stream) as graph:
        side.wait_stream(stream)
        with side:
            y = x
            for _ in range(50):
                y = y + 1
        stream.wait_stream(side)
        x.copy_(y)
    for _ in range(4):
        replay(context, graph)
    context.equal(
        x, counting(2**16) + 200, "four replays of 50 kernels on a side stream left wrong values"
    )


@cases("graphs.fork_join")
def fork_of_a_fork(context: Context) -> None:
    """A stream is forked from a side stream and joined to it. The work of the stream is captured and replayed
    in the right order."""
    x, (stream, one, two) = there(context, counting(4)), context.streams(3)
    with captured(context, stream) as graph:
        one.wait_stream(stream)
        with one:
            x.add_(1)
        two.wait_stream(one)
        with two:
            x.mul_(3)
        one.wait_stream(two)
        with one:
            x.sub_(2)
        stream.wait_stream(one)
    context.settle()
    context.equal(x, counting(4), "captured work ran during the capture")
    replay(context, graph)
    context.equal(
        x, (counting(4) + 1) * 3 - 2, "the replayed branches did not run one after the other"
    )


@cases("graphs.fork_join")
def two_branches(context: Context) -> None:
    """Two side streams are forked from the capturing stream and joined to it. Work after the joins sees the
    results of both side streams."""
    x, (stream, *sides) = there(context, counting(4)), context.streams(3)
    with captured(context, stream) as graph:
        made = []
        for place, side in enumerate(sides):
            side.wait_stream(stream)
            with side:
                made.append(x + place)
        for side in sides:
            stream.wait_stream(side)
        total = made[0] * made[1]
    give(context, x, counting(4, start=2))
    replay(context, graph)
    values = counting(4, start=2)
    context.equal(total, values * (values + 1), "work after the joins did not see both branches")


@cases("graphs.fork_join")
def unjoined(context: Context) -> None:
    """Ending a capture while a forked stream is not joined raises RuntimeError, and both streams can capture
    again afterwards."""
    x, (stream, side) = there(context, counting(4)), context.streams()

    def fork() -> None:
        x.add_(1)
        side.wait_stream(stream)
        with side:
            x.mul_(2)

    raised = broken(stream, new_graph(context), fork)
    context.check(
        isinstance(raised, RuntimeError),
        "a capture with a fork that is not joined did not raise RuntimeError",
    )
    context.same(
        [context.is_capturing(stream), context.is_capturing(side)],
        [False] * 2,
        "is_capturing() of the two streams after the failed capture is wrong",
    )
    works(context, stream, "the capturing stream could not capture again")
    works(context, side, "the side stream could not capture")


@cases("graphs.fork_join")
def side_stream_is_free_again(context: Context) -> None:
    """A stream that was a side stream of a capture can execute eager work after the capture."""
    x, stream, side = there(context, counting(4)), context.stream(), context.stream()
    with captured(context, stream):
        side.wait_stream(stream)
        with side:
            x.add_(1)
        stream.wait_stream(side)
    with side:
        y = x * 2
    context.settle()
    context.equal(y, counting(4) * 2, "eager work on the former side stream gave wrong values")


SEED = 1234

#: Functions that draw random numbers on a device, with a generator or with the default one (None).
DRAWS: dict[str, Callable[[torch.device, Any], torch.Tensor]] = {
    "uniform": lambda at, g: torch.rand(64, device=at, generator=g),
    "normal": lambda at, g: torch.randn(64, device=at, generator=g),
    "integers": lambda at, g: torch.randint(99, (64,), device=at, generator=g),
    "bernoulli": lambda at, g: torch.full((64,), 0.5, device=at).bernoulli_(generator=g),
}


def _seed(generator: Any = None) -> None:
    (torch if generator is None else generator).manual_seed(SEED)


def _capture(context: Context, name: str, generator: Any = None) -> tuple[Any, torch.Tensor]:
    graph = new_graph(context)
    if generator is not None and hasattr(graph, "register_generator_state"):
        graph.register_generator_state(generator)
    with captured(context, graph=graph):
        drawn = DRAWS[name](context.device, generator)
    return graph, drawn


def _eager(context: Context, name: str, times: int, generator: Any = None) -> list[torch.Tensor]:
    _seed(generator)
    return [context.from_device(DRAWS[name](context.device, generator)) for _ in range(times)]


_KINDS = ("default", "registered")


@cases("graphs.random", over={f"{name}_{kind}": (name, kind) for name in DRAWS for kind in _KINDS})
def as_eager(context: Context, name: str, kind: str) -> None:
    """Successive replays draw the same random numbers as successive eager calls from the same seed. An eager
    call after the replays continues the sequence."""
    generator = torch.Generator(device=context.device) if kind == "registered" else None
    eager = _eager(context, name, 4, generator)
    context.must(
        not torch.equal(eager[0], eager[1]), "two eager draws are equal", by="random.distribution"
    )
    graph, drawn = _capture(context, name, generator)
    for again in ("", " after setting the seed again"):
        _seed(generator)
        for step in range(3):
            replay(context, graph)
            context.equal(
                drawn,
                eager[step],
                f"the random numbers of replay {step}{again} differ from eager execution",
            )
        later = DRAWS[name](context.device, generator)
        context.equal(
            later,
            eager[3],
            f"an eager draw after three replays{again} does not continue the sequence of random numbers",
        )


@cases("graphs.random")
def capture_draws_nothing(context: Context) -> None:
    """Capturing a function that draws random numbers does not change the state of the generator."""
    first, second = _eager(context, "uniform", 2)
    _seed()
    context.equal(
        DRAWS["uniform"](context.device, None),
        first,
        "drawing again from the same seed gave different random numbers",
    )
    _capture(context, "uniform")
    context.equal(
        DRAWS["uniform"](context.device, None),
        second,
        "a capture changed the state of the generator: the next draw differs",
    )


@cases("graphs.random", requires={"streams"})
def seeded_while_queued(context: Context) -> None:
    """A replay is queued on a blocked stream, then the seed is set. The replay uses the generator's state from
    before, and the next eager draws are the first draws from the new seed."""
    first, second = _eager(context, "uniform", 2)
    (graph, drawn), stream = _capture(context, "uniform"), context.stream()
    _seed()
    with context.hold(stream, needed=False), stream:
        graph.replay()
        _seed()
    context.settle()
    context.equal(
        drawn, first, "the replay did not use the generator's state at the time of its call"
    )
    for want, text in (
        (first, "the first draw after setting the seed is wrong"),
        (second, "the second draw after setting the seed is wrong"),
    ):
        context.equal(DRAWS["uniform"](context.device, None), want, text)


@cases("graphs.random")
def two_graphs_take_turns(context: Context) -> None:
    """Two graphs that draw from one generator are replayed in turn. Each replay continues the sequence of
    random numbers where the previous replay stopped."""
    eager = _eager(context, "normal", 4)
    first, second = (_capture(context, "normal") for _ in range(2))
    _seed()
    for step, (graph, drawn) in enumerate([first, second, second, first]):
        replay(context, graph)
        context.equal(
            drawn, eager[step], f"draw {step} does not continue the sequence of random numbers"
        )


@cases("graphs.random", requires={"streams"})
def two_streams_take_turns(context: Context) -> None:
    """Two graphs that draw from one generator are replayed on two streams, the first of which is blocked. An
    eager draw follows. Each draw continues the sequence of random numbers where the previous draw stopped."""
    eager, streams = _eager(context, "uniform", 3), context.streams()
    graphs = [_capture(context, "uniform") for _ in streams]
    _seed()

    def replays() -> torch.Tensor:
        for (graph, _), stream in zip(graphs, streams):
            with stream:
                graph.replay()
        with streams[1]:
            return DRAWS["uniform"](context.device, None)

    # A replay first writes the generator's seed and offset, to memory that both graphs may share.
    later = value_behind(context.hold(streams[0]), replays)
    context.settle()
    for step, drawn in enumerate([*(drawn for _, drawn in graphs), later]):
        context.equal(
            drawn, eager[step], f"draw {step} does not continue the sequence of random numbers"
        )


@cases("graphs.random")
def two_branches_draw(context: Context) -> None:
    """Two branches of one capture draw random numbers. Each replay gives the numbers of eager execution, in the
    order of the calls."""
    eager, (stream, side) = _eager(context, "uniform", 6), context.streams()
    with captured(context, stream) as graph:
        side.wait_stream(stream)
        first = DRAWS["uniform"](context.device, None)
        with side:
            second = DRAWS["uniform"](context.device, None)
        third = DRAWS["uniform"](context.device, None)
        stream.wait_stream(side)
    _seed()
    for step in range(2):
        replay(context, graph)
        for place, drawn in enumerate((first, second, third)):
            context.equal(
                drawn,
                eager[3 * step + place],
                f"draw {place} of replay {step} differs from eager execution",
            )


@cases("graphs.random")
def shared_state(context: Context) -> None:
    """generator.graphsafe_set_state makes a generator share the state of another generator. A draw from either
    generator continues the sequence where the previous draw stopped."""
    first, second = (torch.Generator(device=context.device) for _ in range(2))
    eager = _eager(context, "uniform", 3, first)
    second.graphsafe_set_state(first.graphsafe_get_state())
    _seed(first)
    for step, generator in enumerate((second, first, second)):
        drawn = DRAWS["uniform"](context.device, generator)
        context.equal(
            drawn, eager[step], f"draw {step} does not continue the sequence of random numbers"
        )


@cases("graphs.random", requires={"streams"})
def state_while_queued(context: Context) -> None:
    """A replay that draws random numbers is queued on a blocked stream. Generator.get_state() already returns
    the state that the generator has after the replay."""
    generator, stream = torch.Generator(device=context.device), context.stream()
    _eager(context, "uniform", 1, generator)
    want = generator.get_state()
    graph, _ = _capture(context, "uniform", generator)
    _seed(generator)

    def state() -> torch.Tensor:
        with stream:
            graph.replay()
        return generator.get_state()

    found = value_behind(context.hold(stream, needed=False), state)
    context.settle()
    context.equal(found, want, "get_state() did not return the state after the queued replay")


@cases("graphs.random")
def generators_are_apart(context: Context) -> None:
    """Replaying a graph that draws from one generator does not change another generator."""
    mine, other = (torch.Generator(device=context.device) for _ in range(2))
    (want,) = _eager(context, "uniform", 1, other)
    graph, _ = _capture(context, "uniform", mine)
    _seed(other)
    replay(context, graph, times=2)
    context.equal(
        DRAWS["uniform"](context.device, other),
        want,
        "replays changed the state of another generator: its draw differs",
    )


@cases("graphs.random")
def dropout(context: Context) -> None:
    """Dropout in a graph drops different elements in each replay, and the same elements again after the same
    seed was set."""
    x = there(context, torch.ones(4096))
    with captured(context) as graph:
        y = torch.nn.functional.dropout(x, 0.5)
    runs = []
    for place in range(4):
        if place % 2 == 0:
            _seed()
        replay(context, graph)
        runs.append(context.from_device(y))
    first, second, *again = runs
    context.check(not torch.equal(first, second), "two replays dropped the same elements")
    context.equal(
        again[0],
        first,
        "after the same seed was set, the first replay dropped different elements than before",
    )
    context.equal(
        again[1],
        second,
        "after the same seed was set, the second replay dropped different elements than before",
    )
    context.check(
        set(first.unique().tolist()) <= {0.0, 2.0}, "dropout gave values other than 0 and 2"
    )
