"""Cases about blocks and streams: which blocks a stream may get, and what record_stream keeps from it."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import torch

from conformance.checks.behaviour.allocator_memory import (
    KIB,
    MIB,
    filled,
    freed,
    fresh,
    given_back,
    inside,
    keeps,
    none_inside,
    span,
)
from conformance.checks.cases.cases import Cases
from conformance.checks.cases.context import CaseContext
from conformance.checks.cases.exceptions import NotDeclared
from devices.failure import Kind

cases = Cases(Kind.MEMORY)

_RELEASED = "the allocator releases a freed segment at once, so it has no free block to hand out"


_SIZES = {"small": (64 * KIB,), "large": (MIB + 512 * KIB,)}
_SIZES_FREED = {f"{name}_freed_elsewhere": size for name, size in _SIZES.items()}


@cases("allocator.record_stream", requires={"pointers"}, over=_SIZES)
def not_handed_out(context: CaseContext, size: int) -> None:
    """A block is marked with record_stream for a blocked stream and freed. The block is not reused while that
    stream is busy, and is reused once the stream has finished."""
    mine, other = context.streams()
    with mine:
        place = freed(context, size)
        cached = inside(context.bytes_of(size), [place])
        block = context.bytes_of(size)
        place = span(block)
        with context.hold(other) as hold:
            block.record_stream(other)
            del block
            early = [context.bytes_of(size) for _ in range(3)]
            hold.must_be_in_flight()
            text = "a block was reused while the stream that it was marked for was busy"
            none_inside(context, early, place, text)
        other.synchronize()
        del early
        later = [context.bytes_of(size) for _ in range(5)]
        again = any(inside(each, [place]) for each in later)
        text = "a block was not reused after the stream that it was marked for had finished"
        context.check(again or not cached, text)  # the allocator may not cache at all


_ELSEWHERE: dict[str, Any] = {"requires": {"pointers"}}


@cases("allocator.record_stream", over={"on_the_default_stream": ("default",)}, **_ELSEWHERE)
@cases("allocator.record_stream", over={"marked_before_the_work": ("early",)}, **_ELSEWHERE)
@cases("allocator.record_stream", over={"by_a_view": ("view",)}, **_ELSEWHERE)
@cases(
    "allocator.record_stream",
    over={"of_a_pool": ("pool",)},
    requires={"pointers", "allocator_pools"},
)
def until_its_free(context: CaseContext, what: str) -> None:
    """A block is marked with record_stream: for the default stream, through a view, inside a memory pool, or
    before the other stream gets its work. After the block was freed, it is not reused while the other stream
    executes work that was queued before the free."""
    mine = context.stream()
    other = context.current_stream() if what == "default" else context.stream()
    context.must(mine != other, "the two new streams are the same stream", by="streams.identity")
    pool = context.own("pool")() if what == "pool" else None
    fresh(context)
    with mine, context.own("use_pool")(pool, 0) if what == "pool" else nullcontext():
        block = context.bytes_of(64 * KIB)
        place = span(block)
        if what == "early":
            block.record_stream(other)
        with context.hold(other) as hold:
            if what != "early":
                (block[KIB:] if what == "view" else block).record_stream(other)
            del block
            taken = [context.bytes_of(64 * KIB) for _ in range(3)]
            hold.must_be_in_flight()
            text = "a block was reused while the stream that it was marked for was busy"
            none_inside(context, taken, place, text)
        del taken
    context.settle()
    del pool
    fresh(context)


@cases("allocator.record_stream", requires={"pointers"})
def of_several(context: CaseContext) -> None:
    """A block is marked with record_stream for two streams and freed. The block is not reused while one of the
    two streams is still busy."""
    size = 64 * KIB
    mine, first, second = context.streams(3)
    for marked in ((first, second), (second, first)):
        with mine:
            block = context.bytes_of(size)
            place = span(block)
            with context.hold(first, released_first=True) as one, context.hold(second) as other:
                for stream in marked:
                    block.record_stream(stream)
                del block
                one.release()
                context.check(
                    context.ends(first), "the stream did not finish after it was unblocked"
                )
                taken = [context.bytes_of(size) for _ in range(3)]
                other.must_be_in_flight()
                text = "a block was reused while one of the two streams that it was marked for was busy"
                none_inside(context, taken, place, text)
            del taken
            context.settle()


@cases("allocator.record_stream", over={f"{name}_bytes": size for name, size in _SIZES.items()})
def bytes_stay(context: CaseContext, size: int) -> None:
    """A block is read by work queued on another stream, marked with record_stream and freed. Then new blocks of
    the same size are allocated and overwritten. The other stream still reads the original bytes."""
    mine, other = context.stream(), context.stream()
    with other:
        result = context.bytes_of(size).fill_(0)
    with mine:
        block = filled(context, size, 11)
        context.settle()
        with context.hold(other, needed=False):
            with other:
                result.copy_(block)
            block.record_stream(other)
            del block
            for _ in range(3):
                context.bytes_of(size).fill_(255)
            mine.synchronize()
        other.synchronize()
    keeps(
        context,
        result,
        11,
        "the other stream read bytes that were written after the block was freed",
    )


@cases("allocator.record_stream", requires={"allocator_statistics"})
def spared_by_empty_cache(context: CaseContext) -> None:
    """A block that another stream reads is marked with record_stream and freed, and empty_cache is called.
    The other stream still reads the original bytes."""
    size = 5 * MIB  # large enough for a segment of its own
    mine, other = context.streams()
    with other:
        result = context.bytes_of(size).fill_(0)
    with mine:
        block = filled(context, size, 11)
    context.settle()
    # Work of a fixed length is used instead of a gate, because torch waits inside empty_cache and does not
    # let another thread open a gate.
    with other:
        for _ in range(40):
            result.fill_(0)
        result.copy_(block)
    block.record_stream(other)
    del block
    torch.accelerator.memory.empty_cache()
    with mine:
        context.bytes_of(size).fill_(255)
    context.settle()
    keeps(
        context,
        result,
        11,
        "the other stream read bytes that were written after the block was freed",
    )


@cases("allocator.cross_stream", requires={"pointers", "allocator_statistics"}, over=_SIZES)
def own_stream_only(context: CaseContext, size: int) -> None:
    """A freed block serves requests on the stream on which it was allocated, and serves no request on another
    stream."""
    mine, other = context.streams()
    fresh(context)
    with mine:
        block = context.bytes_of(size)
        place, held = span(block), context.counters().reserved
        del block
    if context.counters().reserved < held:
        raise NotDeclared(_RELEASED)
    with other:
        others = [context.bytes_of(size) for _ in range(4)]
    none_inside(context, others, place, "a request on another stream got the freed block")
    with mine:
        again = [context.bytes_of(size) for _ in range(2)]
    there = any(inside(each, [place]) for each in again)
    context.check(there, "no request on the block's own stream got the freed block")


@cases("allocator.cross_stream", requires={"pointers", "allocator_statistics"}, over=_SIZES_FREED)
def freed_elsewhere(context: CaseContext, size: int) -> None:
    """A block is freed while another stream is current. The block serves requests on the stream on which it was
    allocated, and serves no request on the other stream."""
    mine, other = context.streams()
    fresh(context)
    with mine:
        block = context.bytes_of(size)
    place, held = span(block), context.counters().reserved
    with other:
        del block
        if context.counters().reserved < held:
            raise NotDeclared(_RELEASED)
        others = [context.bytes_of(size) for _ in range(4)]
    none_inside(
        context,
        others,
        place,
        "a request on the stream that was current when the block was freed got the block",
    )
    with mine:
        again = [context.bytes_of(size) for _ in range(2)]
    there = any(inside(each, [place]) for each in again)
    context.check(there, "no request on the block's own stream got the freed block")


@cases("allocator.cross_stream", requires={"pointers", "allocator_statistics"})
def remainder(context: CaseContext) -> None:
    """A small block is cut from a larger block that was freed. The rest of the larger block serves no request
    on another stream."""
    default, (mine, other) = context.current_stream(), context.streams()
    fresh(context)
    with mine:
        block = context.bytes_of(900 * KIB)
        place, held = span(block), context.counters().reserved
        del block
        if context.counters().reserved < held:
            raise NotDeclared(_RELEASED)
        cut = context.bytes_of(4 * KIB)  # cut from the freed block or from another one
    for stream in (default, other):
        with stream:
            others = [context.bytes_of(size * KIB) for size in (700, 300, 40, 4)]
        none_inside(
            context, others, place, "a request on another stream got a part of the freed block"
        )
        none_inside(context, others, span(cut), "a request on another stream got a live block")


@cases("allocator.cross_stream", requires={"allocator_statistics"})
def after_release(context: CaseContext) -> None:
    """After empty_cache released the segment of a freed block, another stream can allocate a block of the same
    size and use it."""
    mine, other = context.stream(), context.stream()
    with given_back(
        context,
        "empty_cache did not release the segment of a freed block: `reserved` differs from its previous value",
    ) as reserved:
        with mine:
            block = context.bytes_of(6 * MIB)
        context.must(  # the allocator may not cache at all, and give a freed block back at once
            context.counters().reserved > reserved,
            "`reserved` did not rise when a block was allocated",
        )
        del block
    with other:
        block = context.bytes_of(6 * MIB).fill_(3)
        context.same(int(block[-1]), 3, "a block allocated on another stream has wrong bytes")
