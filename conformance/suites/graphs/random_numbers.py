"""Cases about random numbers in graphs: a replay draws the numbers that eager calls draw."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from conformance.checks.behaviour.graph_capture import (
    captured,
    new_graph,
    replay,
    there,
)
from conformance.checks.cases.cases import Cases
from conformance.checks.cases.context import CaseContext
from conformance.checks.cases.held_streams import value_behind
from devices.failure import Kind

cases = Cases(Kind.VALUES)


SEED = 1234

#: Functions that draw random numbers on a device, with a generator or with the default one (None).
DRAWS: dict[str, Callable[[torch.device, Any], torch.Tensor]] = {
    "uniform": lambda at, g: torch.rand(64, device=at, generator=g),
    "normal": lambda at, g: torch.randn(64, device=at, generator=g),
    "integers": lambda at, g: torch.randint(99, (64,), device=at, generator=g),
    "bernoulli": lambda at, g: torch.full((64,), 0.5, device=at).bernoulli_(generator=g),
}


def _seed(generator: Any = None, seed: int = SEED) -> None:
    (torch if generator is None else generator).manual_seed(seed)


def _capture(context: CaseContext, name: str, generator: Any = None) -> tuple[Any, torch.Tensor]:
    graph = new_graph(context)
    if generator is not None and hasattr(graph, "register_generator_state"):
        graph.register_generator_state(generator)
    with captured(context, graph=graph):
        drawn = DRAWS[name](context.device, generator)
    return graph, drawn


def _eager(
    context: CaseContext, name: str, times: int, generator: Any = None, seed: int = SEED
) -> list[torch.Tensor]:
    _seed(generator, seed)
    return [context.from_device(DRAWS[name](context.device, generator)) for _ in range(times)]


_KINDS = ("default", "registered")


@cases("graphs.random", over={f"{name}_{kind}": (name, kind) for name in DRAWS for kind in _KINDS})
def as_eager(context: CaseContext, name: str, kind: str) -> None:
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


@cases("graphs.random", over={f"seeded_after_the_capture_{kind}": (kind,) for kind in _KINDS})
def seeded_after_the_capture(context: CaseContext, kind: str) -> None:
    """A graph is captured with one seed, and replayed after other seeds were set, or after the state of a generator was
    restored. The replays draw what eager calls draw from each of these seeds."""
    generator = torch.Generator(device=context.device) if kind == "registered" else None
    seeds = [SEED + 7 * number for number in range(3)]
    eager = {seed: _eager(context, "uniform", 2, generator, seed) for seed in seeds}
    firsts = [drawn[0] for drawn in eager.values()]
    context.must(
        not torch.equal(firsts[0], firsts[1]),
        "eager draws from two seeds are equal",
        by="random.distribution",
    )
    _seed(generator, seeds[0])
    graph, drawn = _capture(context, "uniform", generator)
    for seed in (*seeds[1:], seeds[0]):
        _seed(generator, seed)
        for step in range(2):
            replay(context, graph)
            text = f"replay {step} after another seed was set differs from eager execution with that seed"
            context.equal(drawn, eager[seed][step], text)
    if generator is None:
        return
    _seed(generator, seeds[2])
    state = generator.get_state()
    _seed(generator, seeds[0])
    generator.set_state(state)
    replay(context, graph)
    text = "a replay after a state was restored differs from eager execution from that state"
    context.equal(drawn, eager[seeds[2]][0], text)


@cases("graphs.random")
def capture_draws_nothing(context: CaseContext) -> None:
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
def seeded_while_queued(context: CaseContext) -> None:
    """A replay is queued on a blocked stream, then the seed is set. The replay uses the state that the generator
    had before the seed was set, and the next eager draws are the first draws from the new seed."""
    first, second = _eager(context, "uniform", 2)
    (graph, drawn), stream = _capture(context, "uniform"), context.stream()
    _seed()
    with context.hold(stream, needed=False), stream:
        graph.replay()
        _seed()
    context.settle()
    context.equal(
        drawn,
        first,
        "the replay did not use the state that the generator had when replay() was called",
    )
    for want, text in (
        (first, "the first draw after setting the seed is wrong"),
        (second, "the second draw after setting the seed is wrong"),
    ):
        context.equal(DRAWS["uniform"](context.device, None), want, text)


@cases("graphs.random")
def two_graphs_take_turns(context: CaseContext) -> None:
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
def two_streams_take_turns(context: CaseContext) -> None:
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
def two_branches_draw(context: CaseContext) -> None:
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
def shared_state(context: CaseContext) -> None:
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
def state_while_queued(context: CaseContext) -> None:
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
def generators_are_apart(context: CaseContext) -> None:
    """Replaying a graph that draws from one generator does not change another generator."""
    mine, other = (torch.Generator(device=context.device) for _ in range(2))
    (want,) = _eager(context, "uniform", 1, other)
    graph, _ = _capture(context, "uniform", mine)
    _seed(other)
    replay(context, graph, times=2)
    context.equal(
        DRAWS["uniform"](context.device, other),
        want,
        "replays changed the state of another generator: the next draw of that generator differs",
    )


@cases("graphs.random")
def dropout(context: CaseContext) -> None:
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
