"""allocator.pending: a block that waits for another stream comes back when that stream has passed the point of its free."""

from __future__ import annotations

from typing import Any

import torch

from conformance.checks.cases.cases import Cases
from conformance.checks.cases.context import Context
from conformance.checks.cases.endings import NotInFlight
from conformance.suites.allocator.memory import (
    KIB,
    MIB,
    fresh,
    inside,
    memory_info,
    span,
)
from devices.failure import Kind

cases = Cases(Kind.MEMORY)


def _comes_back(context: Context, size: int, before: int, text: str) -> None:
    """Of blocks that wait for two held streams, one comes back once its own stream was let go, though ``before``
    others, which were freed earlier, still wait for the other stream."""
    mine, busy, free = context.streams(3)
    fresh(context)
    with mine:
        others = [context.bytes_of(size) for _ in range(before)]
        block = context.bytes_of(size)
        place = span(block)
        with context.hold(busy) as held, context.hold(free, released_first=True) as let_go:
            for each in others:
                each.record_stream(busy)
            block.record_stream(free)
            reserved = context.counters().reserved
            del each, others
            del block
            let_go.release()
            context.must(context.ends(free), "the stream that was let go ends", by="streams.query")
            taken = [context.bytes_of(size) for _ in range(2)]
            held.must_be_in_flight()
            gone = context.counters().reserved < reserved
            there = gone or any(inside(each, [place]) for each in taken)
            context.check(there, text)
        del taken
    context.settle()
    fresh(context)


@cases(
    "allocator.pending",
    requires={"pointers", "allocator_statistics"},
    over={
        f"{name}_bytes_behind_{before}": (size, before)
        for name, size in (("small", 64 * KIB), ("large", 5 * MIB))
        for before in (1, 4)
    },
)
def behind_others(context: Context, size: int, before: int) -> None:
    """A block comes back when its stream is done, whatever was freed before it and still waits."""
    _comes_back(
        context, size, before, "the block serves the next request of its size on its stream"
    )


@cases("allocator.pending", requires={"allocator_statistics"})
def in_use(context: Context) -> None:
    """Blocks that two streams have done with are no longer active, though a third one, freed before them, is."""
    size = 2 * MIB
    mine, busy, free = context.streams(3)
    fresh(context)
    with mine, context.hold(busy) as held, context.hold(free, released_first=True) as let_go:
        before = context.counters().active
        waits, blocks = context.bytes_of(size), [context.bytes_of(size) for _ in range(3)]
        waits.record_stream(busy)
        for block in blocks:
            block.record_stream(free)
        del waits, block, blocks
        let_go.release()
        context.must(context.ends(free), "the stream that was let go ends", by="streams.query")
        context.bytes_of(1)  # an allocator looks at what it waits for when it is asked
        active = context.counters().active - before
        held.must_be_in_flight()
        text = "at most the block that waits is still active"
        context.check(active < 2 * size, text, found=active)
    context.settle()
    fresh(context)


def _occupied(context: Context, stream: Any) -> None:
    """Work that ends by itself: nobody can open a gate while an allocator waits."""
    busy = context.descriptor.busy
    with stream:
        if busy is not None:
            busy(4 * context.patience)
            return
        block = context.bytes_of(16 * MIB)
        for _ in range(400):
            block.fill_(0)


@cases(
    "allocator.pending",
    requires={"allocator_statistics", "allocator_memory_info"},
    alone=True,
    over={"retry_on_its_stream": (True,), "retry_on_another_stream": (False,)},
)
def retry(context: Context, same: bool) -> None:
    """A request that runs out of memory waits for blocks that another stream still uses, and succeeds with theirs."""
    mine, other, third = context.streams(3)
    fresh(context)
    free, _ = memory_info(context)
    size = free * 6 // 10
    with mine:
        block = context.bytes_of(size)
    context.must(block.numel() == size, "the block is there")
    _occupied(context, other)
    block.record_stream(other)
    del block
    if other.query():
        raise NotInFlight("the other stream was done before the request")
    try:
        with mine if same else third:
            again = context.bytes_of(size + MIB)
        text = "the request waits for the block, and succeeds"
        context.same(again.numel(), size + MIB, text)
        del again
    except torch.OutOfMemoryError as error:
        text = "the request waits for the block, and succeeds"
        context.same(f"torch.OutOfMemoryError: {error}"[:120], "no exception", text)
    finally:
        context.settle()
        fresh(context)
