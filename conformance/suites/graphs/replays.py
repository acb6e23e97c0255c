"""What replays do: results, memory, side streams, random numbers."""

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

#: What is captured, of two inputs: several results.
BODIES: dict[str, Callable[[torch.Tensor, torch.Tensor], tuple[torch.Tensor, ...]]] = {
    "pointwise": lambda x, y: (x * 2 + y, (x * 2 + y - 1).abs()),
    "in_place": lambda x, y: (x.clone().add_(y).mul_(2),),
    "views": lambda x, y: (x.t() + y, x[1:].reshape(-1), x.expand(2, 4, 4) * y),
    "reductions": lambda x, y: (x.sum(0), (x * y).amax(1), torch.cat([x, y], 1)),
    "out": lambda x, y: (torch.add(x, y, out=torch.empty_like(x)),),
}


@cases("graphs.replay_equals_eager", over={name: (name,) for name in BODIES})
def present_contents(context: Context, name: str) -> None:
    """Replays give the eager result for what the static inputs hold by then, each time."""
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
    context.equal(x, want, "seven replays do the work seven times")


@cases("graphs.replay_equals_eager")
def in_stream_order(context: Context) -> None:
    """A replay runs in the order of the stream that it is replayed on."""
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
    context.equal(after, torch.full((4,), 9.0), "work after it sees its result")


@cases("graphs.replay_equals_eager", requires={"streams"})
def with_the_stream_held(context: Context) -> None:
    """The host goes on while replays are queued, and each does its work."""
    x, stream = there(context, counting(4)), context.stream()
    with captured(context, stream) as graph:
        x.add_(1)
    context.settle()
    with context.hold(stream, needed=False), stream:
        for _ in range(3):
            graph.replay()
    context.settle()
    context.equal(x, counting(4) + 3, "three queued replays")


@cases("graphs.replay_equals_eager", requires={"streams"})
def on_two_streams(context: Context) -> None:
    """Replays of one graph come one after the other, on two streams too: a graph does not run beside itself."""
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
    context.equal(x, torch.full((4,), 26.0), "what two replays leave, the first of them held")


@cases("graphs.replay_equals_eager")
def host_scalar(context: Context) -> None:
    """A CPU tensor of no dimensions is recorded by its value at the capture."""
    x, scalar = there(context, counting(4)), torch.tensor(3.0)
    graph, made = new_graph(context), []

    def work() -> None:
        made.append(x * scalar)
        x.add_(scalar)

    refused = broken(context.stream(), graph, work)
    if refused is not None:
        context.check(isinstance(refused, RuntimeError), "a capture that refuses it raises")
        return
    (y,) = made
    scalar.fill_(100)
    replay(context, graph)
    context.equal(y, counting(4) * 3, "the product with the scalar")
    context.equal(x, counting(4) + 3, "the sum with the scalar")


@cases("graphs.replay_equals_eager", requires={"pinned_memory"})
def from_pinned_memory(context: Context) -> None:
    """A captured copy from pinned memory brings what is there at each replay, and one to it takes the present values."""
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
        context.equal(y, counting(16, start=10 * step) + 1, f"replay {step} reads what is there")
        context.equal(back.clone(), counting(16, start=10 * step) + 1, f"replay {step} writes it")


@cases("graphs.replay_equals_eager")
def backward(context: Context) -> None:
    """A captured backward pass gives the gradients of an eager one."""
    x = there(context, counting(2, 3))
    weight = context.to_device(counting(3, 2, start=1)).requires_grad_()

    def loss() -> torch.Tensor:
        return ((x @ weight).relu() * 2).sum()

    with context.stream():
        torch.autograd.grad(loss(), weight)  # what a first pass sets up is not part of the graph
    context.settle()
    with captured(context) as graph:
        (got,) = torch.autograd.grad(loss(), weight)
    for step in range(2):
        give(context, x, counting(2, 3, start=step))
        (want,) = torch.autograd.grad(loss(), weight)
        replay(context, graph)
        context.equal(got, want, f"the gradient of replay {step}")


#: Layers of a deep network: its training step has thousands of kernels.
_LAYERS = 3000


@cases("graphs.replay_equals_eager")
def thousands_of_kernels(context: Context) -> None:
    """A step through thousands of layers, there and back, is captured, replayed, and let go."""
    x = there(context, counting(4))
    weight = context.to_device(torch.ones(4)).requires_grad_()

    def step(layers: int) -> tuple[torch.Tensor, torch.Tensor]:
        found = x
        for _ in range(layers):
            found = found + weight
        return found.detach(), torch.autograd.grad(found.sum(), weight)[0]

    with context.stream():
        step(2)  # what a first pass sets up is not part of the graph
    context.settle()
    with captured(context) as graph:
        result, gradient = step(_LAYERS)
    for start in (1, -7):
        give(context, x, counting(4, start=start))
        replay(context, graph)
        context.equal(result, counting(4, start=start) + _LAYERS, "what the layers add up to")
        context.equal(gradient, torch.full((4,), float(_LAYERS)), "the gradient of all layers")
    del graph
    context.equal(x + 1, counting(4, start=-7) + 1, "the device works when the graph is gone")


@cases("graphs.addresses", requires={"pointers"})
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


@cases("graphs.addresses", requires={"pointers"}, over={"small": (1000,), "large": (2**19,)})
def handed_to_nobody(context: Context, count: int) -> None:
    """While a graph lives, memory allocated in its capture is not used outside its pool, freed or not."""
    x, stream = there(context, counting(1)), context.stream()
    with captured(context, stream) as graph:
        first = x.expand(count) + 1
        second = first * 2
        own = [span(first), span(second)]
        del first
    context.settle()
    with stream:  # the stream that the blocks belong to
        others = [torch.full((count,), 7.0, device=context.device) for _ in range(3)]
    wrong = [span(each) for each in others if inside(each, own)]
    context.same(wrong, [], "addresses of the graph that others were given")
    replay(context, graph, times=2)
    for each in others:
        context.equal(each, torch.full((count,), 7.0), "a replay writes only to its own memory")
    context.equal(second, torch.full((count,), 2.0), "the graph's own result")


SIZE, LARGE = 4096, 2**19  # elements


@cases("graphs.pool")
def shared_in_order(context: Context) -> None:
    """Graphs that share a pool and are replayed in the order of their capture are right."""
    x, stream = there(context, counting(SIZE)), context.stream()
    with captured(context, stream) as first:
        y = (x + 1) * 2
    with captured(context, stream, new_graph(context, pool=first.pool())) as second:
        z = (y + 3) * 4
    context.same(tuple(second.pool()), tuple(first.pool()), "the pool that both report")
    for step in range(3):
        give(context, x, counting(SIZE, start=step))
        replay(context, first, stream=stream)
        replay(context, second, stream=stream)
        want = (counting(SIZE, start=step) + 1) * 2
        context.equal(y, want, "the first graph's output")
        context.equal(z, (want + 3) * 4, "the second graph's output")


@cases("graphs.pool")
def unshared_in_any_order(context: Context) -> None:
    """Graphs with separate pools may be replayed in any order, and do not change one another's outputs."""
    x, stream = there(context, counting(SIZE)), context.stream()
    with captured(context, stream) as first:
        y = (x + 1) * 2
    with captured(context, stream) as second:
        z = (x + 3) * 4
    context.check(tuple(first.pool()) != tuple(second.pool()), "two graphs have two pools")
    for order in ((second, first), (first, second), (second, first, first, second)):
        for each in (y, z):
            each.fill_(-1)
        context.settle()
        for graph in order:
            replay(context, graph, stream=stream)
        context.equal(y, (counting(SIZE) + 1) * 2, "the first graph's output")
        context.equal(z, (counting(SIZE) + 3) * 4, "the second graph's output")


def _reserved(context: Context) -> int:
    """Bytes that are reserved when nothing is cached."""
    fresh(context)
    return context.counters().reserved


@cases("graphs.pool", over={"small": (1000,), "large": (2**19,)}, requires={"allocator_statistics"})
def memory_comes_back(context: Context, count: int) -> None:
    """After a graph has died, with no tensor of its pool alive, empty_cache returns the pool's memory."""
    x, stream = there(context, counting(1)), context.stream()
    gc.collect()  # what others left
    before = _reserved(context)
    with captured(context, stream) as graph:
        y = x.expand(count) + 1
    context.must(_reserved(context) > before, "the capture took memory, which the graph holds")
    replay(context, graph, stream=stream)
    del graph
    held = _reserved(context)
    context.check(held > before, "a tensor of the pool keeps its memory", found=held - before)
    context.equal(y[-1:], torch.ones(1), "and its values, once its graph is gone")
    del y
    context.same(_reserved(context) - before, 0, "bytes that are still reserved")


@cases("graphs.pool", requires={"allocator_statistics"})
def a_shared_pool_lives_on(context: Context) -> None:
    """A pool lives until the last of its graphs is gone, which goes on being right."""
    x, stream = there(context, counting(1)), context.stream()
    gc.collect()  # what others left
    before = _reserved(context)
    with captured(context, stream) as first:
        (x.expand(LARGE) + 1).sum()
    with captured(context, stream, new_graph(context, pool=first.pool())) as second:
        z = (x.expand(LARGE) + 3).sum()  # of a block that is free when the capture ends
    del first
    context.check(_reserved(context) > before, "the pool's memory is kept for the second graph")
    _replays_in_its_own_memory(context, second, stream, z)
    del second, z
    context.same(_reserved(context) - before, 0, "bytes that are still reserved")


@cases("graphs.pool", requires={"allocator_statistics"})
def empty_cache_spares_it(context: Context) -> None:
    """empty_cache takes nothing from a graph that lives, not even blocks that were freed in its capture."""
    x, stream = there(context, counting(1)), context.stream()
    with captured(context, stream) as graph:
        z = (x.expand(LARGE) + 3).sum()
    for _ in range(2):
        fresh(context)
        _replays_in_its_own_memory(context, graph, stream, z)


def _replays_in_its_own_memory(context: Context, graph: Any, stream: Any, z: torch.Tensor) -> None:
    with stream:  # the stream that the graph's blocks belong to
        noise = [torch.zeros(LARGE, device=context.device) for _ in range(4)]
    replay(context, graph, stream=stream)
    context.equal(z, torch.tensor(3.0 * LARGE), "the graph's own result")
    for each in noise:
        context.equal(each, torch.zeros(LARGE), "memory of others")


@cases("graphs.pool", requires={"allocator_statistics"})
def memory_comes_back_after_an_error(context: Context) -> None:
    """A capture that ended with an error, and its graph, hold no memory either."""
    x, stream = there(context, counting(1)), context.stream()
    gc.collect()
    before, made = _reserved(context), []

    def work() -> None:
        made.append(x.expand(SIZE) + 1)
        raise RuntimeError("of the program")

    broken(stream, new_graph(context), work)
    made.clear()
    context.same(_reserved(context) - before, 0, "bytes that are still reserved")


@cases("graphs.pool", requires={"allocator_statistics"}, own_process=True)
def memory_comes_back_after_a_failed_capture(context: Context) -> None:
    """Nor does one that could not end, because a call in it was refused."""
    x, stream = there(context, counting(1)), context.stream()
    gc.collect()
    before, made = _reserved(context), []

    def work() -> None:
        made.append(x.expand(SIZE) + 1)
        stream.synchronize()

    raised = broken(stream, new_graph(context), work)
    context.must(raised is not None, "waiting for the stream was refused")
    del raised
    made.clear()
    context.same(_reserved(context) - before, 0, "bytes that are still reserved")


#: Ways to let the second stream go on after the first.
ORDERS: dict[str, Callable[[Any, Any], None]] = {
    "wait_stream": lambda first, second: second.wait_stream(first),
    "event": lambda first, second: second.wait_event(first.record_event()),
}


@cases("graphs.fork_join", over={f"captured_by_{name}": (name,) for name in ORDERS})
def side_stream(context: Context, order: str) -> None:
    """A stream that is forked from the capture and joined to it is captured with it, in its place."""
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
    context.check(within, "the side stream says that it is capturing")
    context.equal(x, counting(4), "work of the side stream does not run at capture")
    for step in range(3):
        give(context, x, counting(4, start=step))
        give(context, y, counting(4))
        replay(context, graph)
        want = (counting(4, start=step) + 1) * 2
        context.equal(x, want, "what the side stream's work leaves")
        context.equal(z, want + counting(4) + 5, "what is after the join sees both branches")


@cases("graphs.fork_join")
def order_is_kept(context: Context) -> None:
    """However long a branch takes, what comes after it waits, replay after replay."""
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
    context.equal(x, counting(2**16) + 200, "four replays of fifty steps on a side stream")


@cases("graphs.fork_join")
def fork_of_a_fork(context: Context) -> None:
    """A stream that is forked from a side stream and joined to it is captured too."""
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
    context.equal(x, counting(4), "nothing runs at capture")
    replay(context, graph)
    context.equal(x, (counting(4) + 1) * 3 - 2, "the three branches, one after the other")


@cases("graphs.fork_join")
def two_branches(context: Context) -> None:
    """Two branches of one fork both come before their join."""
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
    context.equal(total, values * (values + 1), "the product of both branches")


@cases("graphs.fork_join")
def unjoined(context: Context) -> None:
    """A fork that is not joined raises at the end of the capture, and both streams are free afterwards."""
    x, (stream, side) = there(context, counting(4)), context.streams()

    def fork() -> None:
        x.add_(1)
        side.wait_stream(stream)
        with side:
            x.mul_(2)

    raised = broken(stream, new_graph(context), fork)
    context.check(isinstance(raised, RuntimeError), "a fork that is not joined raises")
    context.same(
        [context.is_capturing(stream), context.is_capturing(side)], [False] * 2, "is_capturing"
    )
    works(context, stream, "the capturing stream captures again")
    works(context, side, "the side stream captures")


@cases("graphs.fork_join")
def side_stream_is_free_again(context: Context) -> None:
    """After the capture a side stream runs its work at once."""
    x, stream, side = there(context, counting(4)), context.stream(), context.stream()
    with captured(context, stream):
        side.wait_stream(stream)
        with side:
            x.add_(1)
        stream.wait_stream(side)
    with side:
        y = x * 2
    context.settle()
    context.equal(y, counting(4) * 2, "eager work on the side stream")


SEED = 1234

#: What draws on a device, with a generator or the default one (None).
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
    """Replays draw what eager calls draw from the same seed, one after another; so does what comes after."""
    generator = torch.Generator(device=context.device) if kind == "registered" else None
    eager = _eager(context, name, 4, generator)
    context.must(
        not torch.equal(eager[0], eager[1]), "eager draws differ", by="random.distribution"
    )
    graph, drawn = _capture(context, name, generator)
    for again in ("", ", seeded again"):
        _seed(generator)
        for step in range(3):
            replay(context, graph)
            context.equal(drawn, eager[step], f"replay {step}{again}")
        later = DRAWS[name](context.device, generator)
        context.equal(later, eager[3], f"an eager draw after three replays{again}")


@cases("graphs.random")
def capture_draws_nothing(context: Context) -> None:
    """A capture leaves the generator as it was."""
    first, second = _eager(context, "uniform", 2)
    _seed()
    context.equal(DRAWS["uniform"](context.device, None), first, "the first draw")
    _capture(context, "uniform")
    context.equal(DRAWS["uniform"](context.device, None), second, "the draw after a capture")


@cases("graphs.random", requires={"streams"})
def seeded_while_queued(context: Context) -> None:
    """A seed that is given while a replay is queued holds: what is drawn next is the first draw from it."""
    first, second = _eager(context, "uniform", 2)
    (graph, drawn), stream = _capture(context, "uniform"), context.stream()
    _seed()
    with context.hold(stream, needed=False), stream:
        graph.replay()
        _seed()
    context.settle()
    context.equal(drawn, first, "the replay draws from the state at its call")
    for want, text in ((first, "the first draw from the new seed"), (second, "the second one")):
        context.equal(DRAWS["uniform"](context.device, None), want, text)


@cases("graphs.random")
def two_graphs_take_turns(context: Context) -> None:
    """Each of two graphs with one generator continues where the other one stopped."""
    eager = _eager(context, "normal", 4)
    first, second = (_capture(context, "normal") for _ in range(2))
    _seed()
    for step, (graph, drawn) in enumerate([first, second, second, first]):
        replay(context, graph)
        context.equal(drawn, eager[step], f"draw {step} in turn")


@cases("graphs.random", requires={"streams"})
def two_streams_take_turns(context: Context) -> None:
    """They do so on two streams, of which the first is held, and an eager draw comes after both."""
    eager, streams = _eager(context, "uniform", 3), context.streams()
    graphs = [_capture(context, "uniform") for _ in streams]
    _seed()

    def replays() -> torch.Tensor:
        for (graph, _), stream in zip(graphs, streams):
            with stream:
                graph.replay()
        with streams[1]:
            return DRAWS["uniform"](context.device, None)

    later = value_behind(
        context.hold(streams[0]), replays
    )  # what they write before a replay may be one
    context.settle()
    for step, drawn in enumerate([*(drawn for _, drawn in graphs), later]):
        context.equal(drawn, eager[step], f"draw {step} in turn")


@cases("graphs.random")
def two_branches_draw(context: Context) -> None:
    """Branches of one capture draw in the order of the calls, as eager ones do."""
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
            context.equal(drawn, eager[3 * step + place], f"draw {place} of replay {step}")


@cases("graphs.random")
def shared_state(context: Context) -> None:
    """A generator that is given another one's state by graphsafe_set_state shares it: each continues where the other
    stopped."""
    first, second = (torch.Generator(device=context.device) for _ in range(2))
    eager = _eager(context, "uniform", 3, first)
    second.graphsafe_set_state(first.graphsafe_get_state())
    _seed(first)
    for step, generator in enumerate((second, first, second)):
        drawn = DRAWS["uniform"](context.device, generator)
        context.equal(drawn, eager[step], f"draw {step} in turn")


@cases("graphs.random", requires={"streams"})
def state_while_queued(context: Context) -> None:
    """The state of a generator is that after all replays that were called, though they are still queued."""
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
    context.equal(found, want, "the state after the replay")


@cases("graphs.random")
def generators_are_apart(context: Context) -> None:
    """A graph that draws from one generator leaves another as it was."""
    mine, other = (torch.Generator(device=context.device) for _ in range(2))
    (want,) = _eager(context, "uniform", 1, other)
    graph, _ = _capture(context, "uniform", mine)
    _seed(other)
    replay(context, graph, times=2)
    context.equal(DRAWS["uniform"](context.device, other), want, "the other generator's draw")


@cases("graphs.random")
def dropout(context: Context) -> None:
    """Dropout in a graph drops other elements at each replay, and the same from the same seed."""
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
    context.check(not torch.equal(first, second), "two replays drop other elements")
    context.equal(again[0], first, "the first replay from the same seed")
    context.equal(again[1], second, "the second one")
    context.check(set(first.unique().tolist()) <= {0.0, 2.0}, "elements are dropped or doubled")
