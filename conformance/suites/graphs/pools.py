"""Cases about the memory of graphs: addresses that stay the same, pools, and memory that is released."""

from __future__ import annotations

import gc
from typing import Any

import torch

from conformance.checks.behaviour.allocator_memory import fresh, inside, span
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
from devices.failure import Kind

cases = Cases(Kind.VALUES)


@cases("graphs.addresses", requires={"pointers"})
def outputs_stay(context: CaseContext) -> None:
    """The outputs of a graph keep their addresses over several replays, and contain the result of each replay."""
    x = there(context, counting(16))
    with captured(context) as graph:
        results = [x + 1, (x * 2)[4:]]
    before = [each.data_ptr() for each in results]
    for step in range(3):
        give(context, x, counting(16, start=step))
        replay(context, graph)
        context.same(
            [each.data_ptr() for each in results], before, "the addresses of the outputs changed"
        )
        context.equal(
            results[0], counting(16, start=step) + 1, "the first output has a wrong value"
        )


@cases("graphs.addresses", requires={"pointers"}, over={"small": (1000,), "large": (2**19,)})
def handed_to_nobody(context: CaseContext, count: int) -> None:
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
    context.same(
        wrong, [], "tensors outside of the graph have address ranges in memory of the graph"
    )
    replay(context, graph, times=2)
    for each in others:
        context.equal(
            each, torch.full((count,), 7.0), "a replay overwrote a tensor outside of the graph"
        )
    context.equal(second, torch.full((count,), 2.0), "the replay gave a wrong result")


SIZE, LARGE = 4096, 2**19  # elements


@cases("graphs.pool")
def shared_in_order(context: CaseContext) -> None:
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
        "the second graph reports a different pool than the one that it was given",
    )
    for step in range(3):
        give(context, x, counting(SIZE, start=step))
        replay(context, first, stream=stream)
        replay(context, second, stream=stream)
        want = (counting(SIZE, start=step) + 1) * 2
        context.equal(y, want, "the first graph's output is wrong")
        context.equal(z, (want + 3) * 4, "the second graph's output is wrong")


@cases("graphs.pool")
def unshared_in_any_order(context: CaseContext) -> None:
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


def _reserved(context: CaseContext) -> int:
    """Releases cached memory, and returns the bytes that are still reserved."""
    fresh(context)
    return context.counters().reserved


@cases("graphs.pool", over={"small": (1000,), "large": (2**19,)}, requires={"allocator_statistics"})
def memory_comes_back(context: CaseContext, count: int) -> None:
    """After a graph was deleted, a live tensor of its pool keeps its memory and values. After the tensor was
    deleted too, empty_cache releases the memory of the pool."""
    x, stream = there(context, counting(1)), context.stream()
    gc.collect()  # frees graphs of other cases
    before = _reserved(context)
    with captured(context, stream) as graph:
        y = x.expand(count) + 1
    context.must(_reserved(context) > before, "the capture did not increase the reserved bytes")
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
        _reserved(context) - before,
        0,
        "memory of the deleted graph stayed reserved (in bytes)",
    )


@cases("graphs.pool", requires={"allocator_statistics"})
def a_shared_pool_lives_on(context: CaseContext) -> None:
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
        _reserved(context) - before,
        0,
        "memory of the deleted graphs stayed reserved (in bytes)",
    )


@cases("graphs.pool", requires={"allocator_statistics"})
def empty_cache_spares_it(context: CaseContext) -> None:
    """empty_cache does not release memory of an existing graph, not even blocks that were freed during its
    capture: replays afterwards give the right result."""
    x, stream = there(context, counting(1)), context.stream()
    with captured(context, stream) as graph:
        z = (x.expand(LARGE) + 3).sum()
    for _ in range(2):
        fresh(context)
        _replays_in_its_own_memory(context, graph, stream, z)


def _replays_in_its_own_memory(
    context: CaseContext, graph: Any, stream: Any, z: torch.Tensor
) -> None:
    with stream:  # the stream on which the graph's blocks were allocated
        noise = [torch.zeros(LARGE, device=context.device) for _ in range(4)]
    replay(context, graph, stream=stream)
    context.equal(z, torch.tensor(3.0 * LARGE), "the replay gave a wrong result")
    for each in noise:
        context.equal(each, torch.zeros(LARGE), "a replay overwrote a tensor outside of the graph")


@cases("graphs.pool", requires={"allocator_statistics"})
def memory_comes_back_after_an_error(context: CaseContext) -> None:
    """The user's code raises an exception inside a capture. The memory of the capture is released: as many
    bytes are reserved as before the capture."""
    x, stream = there(context, counting(1)), context.stream()
    gc.collect()
    before, made = _reserved(context), []

    def work() -> None:
        made.append(x.expand(SIZE) + 1)
        raise RuntimeError("an exception that this case raises itself")

    broken(stream, new_graph(context), work)
    made.clear()
    context.same(
        _reserved(context) - before,
        0,
        "memory of a failed capture stayed reserved (in bytes)",
    )


@cases("graphs.pool", requires={"allocator_statistics"}, own_process=True)
def memory_comes_back_after_a_failed_capture(context: CaseContext) -> None:
    """A capture fails because a call that captures do not allow is made inside it. The memory of the capture is
    released: as many bytes are reserved as before the capture."""
    x, stream = there(context, counting(1)), context.stream()
    gc.collect()
    before, made = _reserved(context), []

    def work() -> None:
        made.append(x.expand(SIZE) + 1)
        stream.synchronize()

    raised = broken(stream, new_graph(context), work)
    context.must(
        raised is not None, "a synchronizing call inside a capture did not raise an exception"
    )
    del raised
    made.clear()
    context.same(
        _reserved(context) - before,
        0,
        "memory of a failed capture stayed reserved (in bytes)",
    )


@cases("graphs.pool", requires={"streams", "allocator_statistics"})
def marked_for_a_capture(context: CaseContext) -> None:
    """During a capture, a block from outside of the graph is marked with record_stream for the capturing stream and freed.
    After the capture, empty_cache releases the memory of the block, also while the graph is alive."""
    x, (stream, mine) = there(context, counting(1)), context.streams()
    gc.collect()  # frees graphs of other cases
    before = _reserved(context)
    with mine:
        block = torch.zeros(LARGE, device=context.device)
    held = context.counters().reserved - before
    context.must(held > 0, "a block that was allocated on a new stream did not raise `reserved`")
    context.settle()
    with captured(context, stream) as graph:
        x.add_(1)
        block.record_stream(stream)
        del block
    text = "memory of a block that was freed during a capture stayed reserved after it (in bytes)"
    context.same(_reserved(context) - before, 0, text)
    replay(context, graph, stream=stream)
    context.equal(x, counting(1) + 1, "the replay gave a wrong result")
