"""graphs.random: replays draw as eager execution does."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from conformance.behaviour.cases import Cases
from conformance.behaviour.context import Context
from conformance.graphs.capturing import new_graph, replay

cases = Cases()

SEED = 1234

#: What draws on a device, with a generator or the default one (None).
DRAWS: dict[str, Callable[[torch.device, Any], torch.Tensor]] = {
    "uniform": lambda device, generator: torch.rand(64, device=device, generator=generator),
    "normal": lambda device, generator: torch.randn(64, device=device, generator=generator),
    "integers": lambda device, generator: torch.randint(
        99, (64,), device=device, generator=generator
    ),
    "bernoulli": lambda device, generator: torch.full((64,), 0.5, device=device).bernoulli_(
        generator=generator
    ),
}


def _generator(context: Context, registered: bool) -> Any:
    return torch.Generator(device=context.device) if registered else None


def _seed(generator: Any) -> None:
    if generator is None:
        torch.manual_seed(SEED)
    else:
        generator.manual_seed(SEED)


def _capture(context: Context, name: str, generator: Any) -> tuple[Any, torch.Tensor]:
    graph = new_graph(context)
    if generator is not None and hasattr(graph, "register_generator_state"):
        graph.register_generator_state(generator)
    with context.stream(), graph:
        drawn = DRAWS[name](context.device, generator)
    return graph, drawn


def _eager(context: Context, name: str, generator: Any, times: int) -> list[torch.Tensor]:
    _seed(generator)
    made = [DRAWS[name](context.device, generator) for _ in range(times)]
    return [context.from_device(each) for each in made]


_BOTH = {
    f"{name}_{kind}": (name, kind == "registered")
    for name in DRAWS
    for kind in ("default", "registered")
}


@cases("graphs.random", over=_BOTH)
def as_eager(context: Context, name: str, registered: bool) -> None:
    """Replays draw what eager calls draw from the same seed, one after another; so does what comes behind."""
    generator = _generator(context, registered)
    eager = _eager(context, name, generator, 4)
    context.must(not torch.equal(eager[0], eager[1]), "eager draws differ from one another")
    graph, drawn = _capture(context, name, generator)
    for again in ("", ", seeded again"):
        _seed(generator)
        for step in range(3):
            replay(context, graph)
            context.equal(drawn, eager[step], f"replay {step}{again}")
        behind = DRAWS[name](context.device, generator)
        context.equal(behind, eager[3], f"an eager draw behind three replays{again}")


@cases("graphs.random")
def capture_draws_nothing(context: Context) -> None:
    """A capture leaves the generator as it was."""
    (first, second) = _eager(context, "uniform", None, 2)
    _seed(None)
    got = DRAWS["uniform"](context.device, None)
    context.equal(got, first, "the first draw")
    _capture(context, "uniform", None)
    context.equal(DRAWS["uniform"](context.device, None), second, "the draw behind a capture")


@cases("graphs.random")
def two_graphs_take_turns(context: Context) -> None:
    """Two graphs with one generator go on where the other one stopped."""
    eager = _eager(context, "normal", None, 4)
    first, x = _capture(context, "normal", None)
    second, y = _capture(context, "normal", None)
    _seed(None)
    for step, (graph, drawn) in enumerate([(first, x), (second, y), (second, y), (first, x)]):
        replay(context, graph)
        context.equal(drawn, eager[step], f"draw {step} in turn")


@cases("graphs.random")
def generators_are_apart(context: Context) -> None:
    """A graph that draws from one generator leaves another as it was."""
    mine, other = (_generator(context, True) for _ in range(2))
    (want,) = _eager(context, "uniform", other, 1)
    graph, _ = _capture(context, "uniform", mine)
    _seed(other)
    replay(context, graph, times=2)
    context.equal(DRAWS["uniform"](context.device, other), want, "the other generator's draw")


@cases("graphs.random")
def dropout(context: Context) -> None:
    """Dropout in a graph drops other elements at each replay, and the same from the same seed."""
    x, graph = torch.ones(4096, device=context.device), new_graph(context)
    context.settle()
    with context.stream(), graph:
        y = torch.nn.functional.dropout(x, 0.5)
    runs = []
    for _ in range(2):
        _seed(None)
        replay(context, graph)
        first = context.from_device(y)
        replay(context, graph)
        runs.append((first, context.from_device(y)))
    (first, second), again = runs
    context.check(not torch.equal(first, second), "two replays drop other elements")
    context.equal(again[0], first, "the first replay from the same seed")
    context.equal(again[1], second, "the second one")
    context.check(set(first.unique().tolist()) <= {0.0, 2.0}, "elements are dropped or doubled")
