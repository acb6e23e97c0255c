"""Cases of the clause graphs.lifecycle: graphs that are kept, instantiated, reset, captured again and destroyed."""

from __future__ import annotations

import tempfile
from pathlib import Path

import torch

from conformance.checks.behaviour.graph_capture import (
    captured,
    counting,
    new_graph,
    replay,
    there,
)
from conformance.checks.cases.cases import Cases
from conformance.checks.cases.context import CaseContext
from devices.failure import Kind

cases = Cases(Kind.VALUES)


@cases("graphs.lifecycle", over={"kept": (0,), "kept_and_instantiated": (1,), "kept_and_instantiated_twice": (2,)})  # fmt: skip
def keep_graph(context: CaseContext, times: int) -> None:
    """A graph made with keep_graph=True gives the right results, whether it is instantiated by instantiate(), once or
    twice, or by its first replay."""
    x = there(context, counting(4))
    with captured(context, graph=new_graph(context, keep_graph=True)) as graph:
        x.add_(1)
    for _ in range(times):
        graph.instantiate()
    replay(context, graph, times=2)
    context.equal(x, counting(4) + 2, "two replays left wrong values")


@cases("graphs.lifecycle")
def reset(context: CaseContext) -> None:
    """replay() after reset() raises RuntimeError and does not run the captured work."""
    x = there(context, counting(4))
    with captured(context) as graph:
        x.add_(1)
    graph.reset()
    with context.stream():
        context.raises(
            RuntimeError, graph.replay, text="replay() after reset() did not raise RuntimeError"
        )
    context.settle()
    context.equal(x, counting(4), "replay() after reset() changed a tensor")


@cases("graphs.lifecycle", over={"captured_again": (False,), "kept_captured_again": (True,)})
def captured_again(context: CaseContext, keep: bool) -> None:
    """A graph, made with keep_graph=True or without, is reset and captures other work. Its replays run only the new work."""
    x = there(context, counting(4))
    with captured(context, graph=new_graph(context, keep_graph=keep)) as graph:
        x.add_(1)
    replay(context, graph)
    graph.reset()
    with captured(context, graph=graph):
        x.mul_(3)
    replay(context, graph, times=2)
    context.equal(x, (counting(4) + 1) * 9, "two replays of the second capture left wrong values")


@cases("graphs.lifecycle", over={"destroyed_while_queued": (False,)}, requires={"streams"})
@cases("graphs.lifecycle", over={"reset_while_queued": (True,)}, requires={"streams"})
def destroyed_while_queued(context: CaseContext, reset: bool) -> None:
    """A replay is queued on a blocked stream, and the graph is deleted or reset. The replay still runs, and the
    memory that the replay uses is not reused before the replay has finished."""
    x, stream = there(context, counting(4096)), context.stream()
    with captured(context, stream) as graph:
        y = x * 2
        x.add_(y)
    del y
    context.settle()
    with context.hold(stream, needed=False), stream:
        graph.replay()
        if reset:
            graph.reset()
        del graph
        noise = [torch.zeros(4096, device=context.device) for _ in range(4)]
    context.settle()
    context.equal(x, counting(4096) * 3, "the queued replay of a deleted graph left wrong values")
    for each in noise:
        context.equal(each, torch.zeros(4096), "the queued replay overwrote newly allocated memory")


@cases("graphs.lifecycle", requires={"streams"})
def random_while_queued(context: CaseContext) -> None:
    """A replay that draws random numbers is queued on a blocked stream, and the graph is deleted. The replay
    still draws its numbers, and does not write to newly allocated memory."""
    x, stream = there(context, torch.zeros(4096)), context.stream()
    x.uniform_().zero_()
    with captured(context, stream) as graph:
        x.uniform_(1, 2)
    context.settle()
    with context.hold(stream, needed=False), stream:
        graph.replay()
        del graph
        noise = [torch.zeros(4096, device=context.device) for _ in range(4)]
    context.settle()
    drawn = context.from_device(x)
    text = "the queued replay did not draw numbers between 1 and 2"
    context.check(bool(((drawn >= 1) & (drawn <= 2)).all()), text, found=drawn[:4].tolist())
    for each in noise:
        context.equal(each, torch.zeros(4096), "the queued replay overwrote newly allocated memory")


@cases("graphs.lifecycle")
def debug_dump(context: CaseContext) -> None:
    """debug_dump() writes a file if enable_debug_mode() was called before the capture, and the graph can be
    replayed afterwards."""
    x, graph = there(context, counting(4)), new_graph(context)
    graph.enable_debug_mode()
    with captured(context, graph=graph):
        x.add_(1)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "graph.dot"
        graph.debug_dump(str(path))
        context.check(
            path.is_file() and path.stat().st_size > 0,
            "debug_dump() wrote no file, or an empty one",
        )
    replay(context, graph)
    context.equal(x, counting(4) + 1, "a replay after debug_dump() left wrong values")
