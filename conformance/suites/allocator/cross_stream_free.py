"""Cases about freed blocks that another stream still uses: such a block becomes available once that stream has
passed the point at which the block was freed, and its mark ends with it."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from typing import Any

import torch

from conformance.checks.behaviour.allocator_memory import (
    KIB,
    MIB,
    fresh,
    has_statistics,
    inside,
    memory_info,
    span,
)
from conformance.checks.cases.cases import Cases
from conformance.checks.cases.context import CaseContext
from conformance.checks.cases.exceptions import NotDeclared, NotInFlight
from devices.failure import Kind

cases = Cases(Kind.MEMORY)


def _comes_back(context: CaseContext, size: int, before: int, text: str) -> None:
    """Checks that a freed block becomes available once the stream that it was marked for with record_stream has
    finished, although ``before`` other blocks, which were freed earlier, still wait for another stream. ``text`` is the
    message of the failure."""
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
            context.must(
                context.ends(free),
                "the stream did not finish after it was unblocked",
                by="streams.query",
            )
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
def behind_others(context: CaseContext, size: int, before: int) -> None:
    """Blocks are marked with record_stream, each for one of two blocked streams, and freed. When one stream has
    finished, the block that was marked for it can be allocated again, although blocks that were freed earlier still
    wait for the other stream."""
    _comes_back(
        context,
        size,
        before,
        "a freed block was not reused after the stream that it was marked for had finished, "
        "while blocks that were freed earlier waited for another stream",
    )


@cases("allocator.pending", requires={"allocator_statistics"})
def in_use(context: CaseContext) -> None:
    """Blocks are marked with record_stream, each for one of two blocked streams, and freed. When one stream has
    finished, the blocks that were marked for it are no longer counted as active, although a block that was freed
    earlier still waits for the other stream."""
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
        context.must(
            context.ends(free),
            "the stream did not finish after it was unblocked",
            by="streams.query",
        )
        context.bytes_of(1)  # allocators check for finished streams when memory is requested
        active = context.counters().active - before
        held.must_be_in_flight()
        text = "the bytes of freed blocks are still counted as active after the stream that they were marked for has finished"
        context.check(active < 2 * size, text, found=active)
    context.settle()
    fresh(context)


def _occupied(context: CaseContext, stream: Any) -> None:
    """Queues work on a stream that takes long and ends by itself. A gate cannot be used here, because the thread that
    would have to open it waits inside the allocator."""
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
def retry(context: CaseContext, same: bool) -> None:
    """A request does not fit into memory because another stream still uses a freed block. The request waits for
    that stream and then succeeds, instead of raising torch.OutOfMemoryError."""
    mine, other, third = context.streams(3)
    _waits(context, mine, other, mine if same else third, MIB, nullcontext)


@cases(
    "allocator.pending",
    requires={"allocator_statistics", "allocator_memory_info", "allocator_pools"},
    alone=True,
)
def retry_in_a_pool(context: CaseContext) -> None:
    """A request in a private pool does not fit into memory because another stream still uses a freed block of the
    pool. The request waits for that stream and gets the block, which no release of cached memory could give back to
    the system while the pool exists."""
    mine, other = context.streams(2)
    pool, use = context.own("pool")(), context.own("use_pool")
    _waits(context, mine, other, mine, 0, partial(use, pool, 0))
    del pool
    fresh(context)


def _waits(
    context: CaseContext, mine: Any, other: Any, asks: Any, more: int, room: Callable[[], Any]
) -> None:
    """Frees a block that takes most of the memory and that the stream ``other`` still uses. Then checks that a request
    for ``more`` bytes above its size, on the stream ``asks``, waits for the block. ``room()`` is the context in which
    both requests are made."""
    fresh(context)
    free, _ = memory_info(context)
    size = free * 6 // 10
    with room(), mine:
        block = context.bytes_of(size)
    context.must(block.numel() == size, "the block does not have the requested size")
    _occupied(context, other)
    block.record_stream(other)
    del block
    if other.query():
        raise NotInFlight("the other stream had already finished when the request was made")
    try:
        with room(), asks:
            again = context.bytes_of(size + more)
        text = "a request did not wait for memory that another stream still used"
        context.same(again.numel(), size + more, text)
        del again
    except torch.OutOfMemoryError as error:
        text = "a request did not wait for memory that another stream still used"
        context.same(f"torch.OutOfMemoryError: {error}"[:120], "no exception", text)
    finally:
        context.settle()
        fresh(context)


@cases("allocator.record_stream", requires={"pointers", "allocator_statistics"})
def marks_end_with_the_block(context: CaseContext) -> None:
    """A block is marked with record_stream for a stream and freed, and that stream finishes. A new block gets the same memory,
    and is not marked. It is freed while the stream is busy, and its memory is reused at once."""
    size = 64 * KIB
    mine, other = context.streams()
    fresh(context)
    with mine:
        block: Any = context.bytes_of(size)
        place = span(block)
        block.record_stream(other)
        block = None
        context.settle()
        block = context.bytes_of(size)
        if not inside(block, [place]):
            raise NotDeclared("the allocator does not reuse a block that was just freed")
        with context.hold(other) as hold:
            block = None
            again = context.bytes_of(size)
            hold.must_be_in_flight()
            text = "a freed block was not reused while a stream was busy for which an earlier block in its memory was marked"
            context.check(inside(again, [place]), text)
        del again
    context.settle()
    fresh(context)


@cases("allocator.record_stream", requires={"allocator_statistics"})
def waits_are_counted(context: CaseContext) -> None:
    """A block is marked with record_stream for a busy stream and freed. num_sync_all_streams stays the same when another
    block is requested, which waits for no stream, and rises when empty_cache waits for the streams of freed blocks."""
    if not has_statistics(context, "num_sync_all_streams"):
        raise NotDeclared("the device does not maintain num_sync_all_streams")
    size = 2 * MIB
    mine, other = context.streams()
    fresh(context)
    with mine, context.hold(other) as hold:
        block = context.bytes_of(size)
        before = context.counters()["num_sync_all_streams"]
        block.record_stream(other)
        del block
        block = context.bytes_of(size)
        asked = context.counters()["num_sync_all_streams"]
        hold.must_be_in_flight()
        context.same(
            asked, before, "a request that waited for no stream raised num_sync_all_streams"
        )
        block.record_stream(other)
        del block
    context.settle()
    torch.accelerator.memory.empty_cache()
    rise = context.counters()["num_sync_all_streams"] - before
    text = "empty_cache did not raise num_sync_all_streams although freed blocks were marked for another stream"
    context.check(rise >= 1, text, expected="at least 1", found=rise)
