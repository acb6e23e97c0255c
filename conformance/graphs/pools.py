"""graphs.pool: whose memory a graph's is, and when it comes back."""

from __future__ import annotations

import gc

import torch

from conformance.behaviour.cases import Cases
from conformance.behaviour.context import Context
from conformance.graphs.capturing import counting, give, new_graph, replay, there

cases = Cases()

SIZE = 4096  # elements


@cases("graphs.pool")
def shared_in_order(context: Context) -> None:
    """Graphs that share a pool and are replayed in the order of their capture are right."""
    x, stream = there(context, counting(SIZE)), context.stream()
    first = new_graph(context)
    with stream, first:
        y = (x + 1) * 2
    second = new_graph(context, pool=first.pool())
    with stream, second:
        z = (y + 3) * 4
    context.same(tuple(second.pool()), tuple(first.pool()), "the pool that both tell")
    for step in range(3):
        give(context, x, counting(SIZE, start=step))
        replay(context, first, stream=stream)
        replay(context, second, stream=stream)
        want = (counting(SIZE, start=step) + 1) * 2
        context.equal(y, want, "the first graph's output")
        context.equal(z, (want + 3) * 4, "the second graph's output")


@cases("graphs.pool")
def unshared_in_any_order(context: Context) -> None:
    """Graphs with pools of their own may be replayed in any order, and leave one another's outputs alone."""
    x, stream = there(context, counting(SIZE)), context.stream()
    first, second = new_graph(context), new_graph(context)
    with stream, first:
        y = (x + 1) * 2
    with stream, second:
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


def _before(context: Context) -> int:
    """Bytes reserved before a case, when what others left behind is gone."""
    gc.collect()
    return _reserved(context)


def _reserved(context: Context) -> int:
    context.settle()
    torch.accelerator.empty_cache()
    return context.counters().reserved


@cases("graphs.pool", over={"small": (1000,), "large": (2**19,)}, requires={"allocator_statistics"})
def memory_comes_back(context: Context, count: int) -> None:
    """After a graph has died, with no tensor of its pool alive, empty_cache returns the pool's memory."""
    x, stream, graph = there(context, counting(1)), context.stream(), new_graph(context)
    before = _before(context)
    with stream, graph:
        y = x.expand(count) + 1
    context.must(_reserved(context) > before, "the capture took memory, which the graph holds")
    replay(context, graph, stream=stream)
    del graph
    held = _reserved(context)
    context.check(held > before, "a tensor of the pool keeps its memory", got=held - before)
    context.equal(y[-1:], torch.ones(1), "and its values, once its graph is gone")
    del y
    context.same(_reserved(context) - before, 0, "bytes that are still reserved")


@cases("graphs.pool", requires={"allocator_statistics"})
def a_shared_pool_lives_on(context: Context) -> None:
    """A pool lives until the last of its graphs is gone, which goes on being right."""
    x, stream = there(context, counting(SIZE)), context.stream()
    before = _before(context)
    first = new_graph(context)
    with stream, first:
        (x + 1).sum()
    second = new_graph(context, pool=first.pool())
    with stream, second:
        z = (x + 3) * 4
    del first
    context.check(_reserved(context) > before, "the pool's memory is kept for the second graph")
    noise = [torch.zeros(SIZE, device=context.device) for _ in range(4)]
    replay(context, second, stream=stream)
    context.equal(z, (counting(SIZE) + 3) * 4, "the second graph's output")
    context.equal(noise[0], torch.zeros(SIZE), "memory of others")
    del second, z, noise
    context.same(_reserved(context) - before, 0, "bytes that are still reserved")


@cases("graphs.pool", requires={"allocator_statistics"})
def memory_comes_back_after_an_error(context: Context) -> None:
    """A capture that ended with an error, and its graph, hold no memory either."""
    x, stream, graph = there(context, counting(1)), context.stream(), new_graph(context)
    before = _before(context)
    try:
        with stream, graph:
            y = x.expand(SIZE) + 1
            raise KeyError("of the program")
    except (KeyError, RuntimeError):
        pass
    del y, graph
    context.same(_reserved(context) - before, 0, "bytes that are still reserved")
