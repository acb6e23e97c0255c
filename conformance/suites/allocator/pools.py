"""Whose memory it is: of a stream, of a private pool, of an allocator of the user, of the host."""

from __future__ import annotations

from collections import Counter
from contextlib import nullcontext
from functools import partial
from typing import Any

import torch

from conformance.checks.cases.cases import Cases
from conformance.checks.cases.context import Context
from conformance.suites.allocator.memory import (
    KIB,
    MIB,
    empty_host,
    filled,
    freed,
    fresh,
    given_back,
    inside,
    keeps,
    known,
    none_inside,
    span,
)
from devices.failure import Kind

cases = Cases(Kind.MEMORY)

_SIZES = {"small": (64 * KIB,), "large": (MIB + 512 * KIB,)}
_SIZES_FREED = {f"{name}_freed_elsewhere": size for name, size in _SIZES.items()}


@cases("allocator.record_stream", requires={"pointers"}, over=_SIZES)
def not_handed_out(context: Context, size: int) -> None:
    """A marked block is not handed out before the other stream has passed the point of its free."""
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
            text = "the block is not handed out while the other stream is busy"
            none_inside(context, early, place, text)
        other.synchronize()
        del early
        later = [context.bytes_of(size) for _ in range(5)]
        again = any(inside(each, [place]) for each in later)
        text = "the block is handed out again when the other stream is done"
        context.check(again or not cached, text)  # else freed memory goes back to the system


_ELSEWHERE: dict[str, Any] = {"requires": {"pointers"}}


@cases("allocator.record_stream", over={"on_the_default_stream": ("default",)}, **_ELSEWHERE)
@cases("allocator.record_stream", over={"marked_before_the_work": ("early",)}, **_ELSEWHERE)
@cases("allocator.record_stream", over={"by_a_view": ("view",)}, **_ELSEWHERE)
@cases(
    "allocator.record_stream",
    over={"of_a_pool": ("pool",)},
    requires={"pointers", "allocator_pools"},
)
def until_its_free(context: Context, what: str) -> None:
    """So is a block that is marked for the default stream, one of a pool, one that a view of it marks, and one whose stream
    gets the work after the mark: what counts is the work at the time of the free."""
    mine = context.stream()
    other = context.current_stream() if what == "default" else context.stream()
    context.must(mine != other, "the streams differ", by="streams.identity")
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
            text = "the block is not handed out while the other stream is busy"
            none_inside(context, taken, place, text)
        del taken
    context.settle()
    del pool
    fresh(context)


@cases("allocator.record_stream", requires={"pointers"})
def of_several(context: Context) -> None:
    """A block that two streams have marked is not handed out before both have passed the point of its free."""
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
                context.check(context.ends(first), "the first of the two streams is done")
                taken = [context.bytes_of(size) for _ in range(3)]
                other.must_be_in_flight()
                text = "the block is not handed out while one of the two streams is busy"
                none_inside(context, taken, place, text)
            del taken
            context.settle()


@cases("allocator.record_stream", over={f"{name}_bytes": size for name, size in _SIZES.items()})
def bytes_stay(context: Context, size: int) -> None:
    """What another stream is about to read is not overwritten through a block of the same memory."""
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
    keeps(context, result, 11, "the other stream reads what was there when its work was queued")


@cases("allocator.record_stream", requires={"allocator_statistics"})
def spared_by_empty_cache(context: Context) -> None:
    """empty_cache leaves a marked block alone while the other stream has still to read it, or waits for that."""
    size = 5 * MIB  # a segment of its own
    mine, other = context.streams()
    with other:
        result = context.bytes_of(size).fill_(0)
    with mine:
        block = filled(context, size, 11)
    context.settle()
    # Not held by a gate: torch waits in empty_cache without letting another thread open it.
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
    keeps(context, result, 11, "the other stream reads what was there when its work was queued")


@cases("allocator.cross_stream", requires={"pointers", "allocator_statistics"}, over=_SIZES)
def own_stream_only(context: Context, size: int) -> None:
    """A freed block goes to requests on the stream that it was allocated on, and to no other."""
    mine, other = context.streams()
    fresh(context)
    with mine:
        block = context.bytes_of(size)
        place, held = span(block), context.counters().reserved
        del block
    if context.counters().reserved < held:
        context.check(True, "its segment is released at once")
        return
    with other:
        others = [context.bytes_of(size) for _ in range(4)]
    none_inside(context, others, place, "no request on another stream gets the block")
    with mine:
        again = [context.bytes_of(size) for _ in range(2)]
    there = any(inside(each, [place]) for each in again)
    context.check(there, "a request on its own stream gets it")


@cases("allocator.cross_stream", requires={"pointers", "allocator_statistics"}, over=_SIZES_FREED)
def freed_elsewhere(context: Context, size: int) -> None:
    """A block that is freed while another stream is current goes back to the stream that it was allocated on."""
    mine, other = context.streams()
    fresh(context)
    with mine:
        block = context.bytes_of(size)
    place, held = span(block), context.counters().reserved
    with other:
        del block
        if context.counters().reserved < held:
            context.check(True, "its segment is released at once")
            return
        others = [context.bytes_of(size) for _ in range(4)]
    none_inside(context, others, place, "no request on the stream that was current gets the block")
    with mine:
        again = [context.bytes_of(size) for _ in range(2)]
    there = any(inside(each, [place]) for each in again)
    context.check(there, "a request on its own stream gets it")


@cases("allocator.cross_stream", requires={"pointers", "allocator_statistics"})
def remainder(context: Context) -> None:
    """What is left of a freed block when a smaller one is cut from it stays with the stream that it was allocated on."""
    default, (mine, other) = context.current_stream(), context.streams()
    fresh(context)
    with mine:
        block = context.bytes_of(900 * KIB)
        place, held = span(block), context.counters().reserved
        del block
        if context.counters().reserved < held:
            context.check(True, "its segment is released at once")
            return
        cut = context.bytes_of(4 * KIB)  # of the block, or of another one
    for stream in (default, other):
        with stream:
            others = [context.bytes_of(size * KIB) for size in (700, 300, 40, 4)]
        none_inside(context, others, place, "no request on another stream gets a part of it")
        none_inside(context, others, span(cut), "nor the block that was cut from it")


@cases("allocator.cross_stream", requires={"allocator_statistics"})
def after_release(context: Context) -> None:
    """Once its segment is released, memory serves any stream."""
    mine, other = context.stream(), context.stream()
    with given_back(context, "its segment is released") as reserved:
        with mine:
            context.bytes_of(6 * MIB)
        context.must(context.counters().reserved > reserved, "the block's segment is kept")
    with other:
        block = context.bytes_of(6 * MIB).fill_(3)
        context.same(int(block[-1]), 3, "another stream takes and uses memory")


@cases("allocator.pools", requires={"pointers"}, over={"small": (64 * KIB,), "large": (5 * MIB,)})
def nobody_elses(context: Context, size: int) -> None:
    """Memory freed in a pool is not used outside the pool, and is used by the pool again."""
    fresh(context)
    pool, use = context.own("pool")(), context.own("use_pool")
    with use(pool, 0):
        place = freed(context, size)
    outside = [context.bytes_of(size) for _ in range(3)]
    none_inside(context, outside, place, "no request outside the pool gets its memory")
    with use(pool, 0):
        context.check(inside(context.bytes_of(size), [place]), "a request in the pool gets it")
    del outside, pool
    fresh(context)


@cases("allocator.pools", requires={"pointers"})
def takes_from_nobody(context: Context) -> None:
    """A pool is not served from what others freed, and its live tensors hold what they are given."""
    fresh(context)
    place = freed(context, 64 * KIB)
    pool, use = context.own("pool")(), context.own("use_pool")
    with use(pool, 0):
        mine = filled(context, 64 * KIB, 4)
    context.check(not inside(mine, [place]), "a pool has separate memory")
    other = context.bytes_of(64 * KIB).fill_(0)
    keeps(context, mine, 4, "a tensor of the pool keeps its bytes")
    del mine, other, pool
    fresh(context)


@cases("allocator.pools", requires={"pointers"})
def of_this_thread(context: Context) -> None:
    """While a thread uses a pool, what another thread asks for is not served by it."""
    fresh(context)
    pool, use = context.own("pool")(), context.own("use_pool")
    with use(pool, 0):
        place = freed(context, 64 * KIB)
        [others] = context.together(lambda: [context.bytes_of(64 * KIB) for _ in range(3)])
        none_inside(context, others, place, "no request of another thread gets the pool's memory")
        context.check(inside(context.bytes_of(64 * KIB), [place]), "a request of this thread does")
    del others, pool
    fresh(context)


@cases("allocator.pools", requires={"allocator_statistics"})
def comes_back(context: Context) -> None:
    """After the death of a pool without live tensors, empty_cache returns its memory."""
    with given_back(context, "`reserved` is what it was before the pool") as before:
        pool, use = context.own("pool")(), context.own("use_pool")
        with use(pool, 0):
            context.bytes_of(64 * KIB)
            context.bytes_of(5 * MIB)
        context.must(context.counters().reserved > before, "the pool has taken memory")
        del pool


@cases("allocator.pools", requires={"allocator_statistics"})
def lives_with_its_tensors(context: Context) -> None:
    """A tensor outlives its pool: its bytes stay, and its memory comes back after it."""
    with given_back(context, "then its memory is released"):
        pool, use = context.own("pool")(), context.own("use_pool")
        with use(pool, 0):
            kept = filled(context, 64 * KIB, 8)
        del pool
        fresh(context)
        for _ in range(4):
            context.bytes_of(64 * KIB).fill_(0)
        keeps(context, kept, 8, "the tensor keeps its bytes")
        del kept


@cases("allocator.pluggable", requires={"pointers"}, slow=True)
def sees_all(context: Context) -> None:
    """A plugged-in allocator sees every allocation and every free."""
    context.ended_well(context.child(_sees_all, fresh=True), "the process exits normally")


def _sees_all(context: Context) -> None:
    taken: Counter[tuple[int, int]] = Counter()
    given: Counter[tuple[int, int]] = Counter()
    take_range, give_range = context.own("driver_alloc"), context.own("driver_free")

    def take(size: int, device: int, stream: int) -> int:
        address = int(take_range(size, device))
        taken[address, size] += 1
        return address

    def give(address: int, size: int, device: int, stream: int) -> None:
        given[address, size] += 1
        give_range(address, size)

    context.own("change_allocator")(context.own("pluggable")(take, give))
    sizes = (1, 700, 4096, 100_003, 3 * MIB)
    blocks = [context.bytes_of(size) for size in sizes]
    context.same(taken.total(), len(sizes), "the custom allocator is called once for every block")
    seen, text = dict(taken.keys()), "a block is at the address that the allocator returned"
    for block, size in zip(blocks, sizes):
        asked = seen.get(span(block)[0], 0)
        context.check(asked >= size, text, found=asked)
    for seed, block in enumerate(blocks):
        block.copy_(known(block.numel(), seed))
    for seed, block in enumerate(blocks):
        keeps(context, block, seed, "a block keeps its bytes")
    del block, blocks
    context.settle()
    context.same(sorted(given.elements()), sorted(taken.elements()), "it gets every block back")


@cases("allocator.pluggable")
def changed_after_use(context: Context) -> None:
    """Changing the allocator after its first use raises."""
    block = context.bytes_of(100)
    context.must(block.numel() == 100, "the allocator was used")
    change, pluggable = context.own("change_allocator"), context.own("pluggable")
    text = "changing the allocator raises"
    context.raises(
        RuntimeError, lambda: change(pluggable(lambda *_: 0, lambda *_: None)), text=text
    )
    keeps(context, filled(context, 100, 1), 1, "the allocator still works")


def _pinned(size: int) -> torch.Tensor:
    return torch.empty(size, dtype=torch.uint8, pin_memory=True)


def _statistics(context: Context) -> dict[str, int]:
    """Names as of torch.cuda.host_memory_stats: ``active_bytes.current`` and the like."""
    return dict(context.own("host_statistics")())


def _empty(context: Context) -> None:
    context.settle()
    empty_host(context)


@cases("allocator.host")
def empty_is_safe(context: Context) -> None:
    """empty_host_cache touches no live pinned block, and pinned memory can be taken after it."""
    block = _pinned(70_000).copy_(known(70_000, 9))
    context.must(block.is_pinned(), "the block is pinned")
    _pinned(MIB)
    _empty(context)
    keeps(context, block, 9)
    other = _pinned(70_000).copy_(known(70_000, 10))
    keeps(context, other, 10, "pinned memory can be taken")
    keeps(context, block, 9, "and it is not that of a live block")


@cases("allocator.host", requires={"streams"})
def empty_spares_copies(context: Context) -> None:
    """empty_host_cache leaves a freed block alone while a queued copy has still to read it, or waits for the copy."""
    stream, want = context.stream(), known(70_000, 12)
    there = context.bytes_of(70_000).copy_(want).fill_(0)
    context.settle()
    with context.hold(stream, needed=False) as hold:
        block = _pinned(70_000).copy_(want)
        with stream:
            there.copy_(block, non_blocking=True)
        del block
        hold.call(partial(empty_host, context))
    stream.synchronize()
    keeps(context, there, 12, "the copy reads what was there at the call")


@cases("allocator.host", requires={"host_statistics"}, over={"page": (4 * KIB,), "uneven": (70_001,), "large": (3 * MIB,)})  # fmt: skip
def counts(context: Context, size: int) -> None:
    """A pinned block is counted while it is live, with at most twice its requested size."""
    before = _statistics(context)
    block = _pinned(size)
    during = _statistics(context)
    context.must(block.is_pinned(), "the block is pinned")
    rise = during["active_bytes.current"] - before["active_bytes.current"]
    most = max(2 * size, 4 * KIB)
    context.check(size <= rise <= most, "active bytes rise by its size", found=rise)
    requests = during["active_requests.current"] - before["active_requests.current"]
    context.same(requests, 1, "one more block is active")
    del block
    context.settle()
    after = _statistics(context)
    for name in ("active_bytes.current", "active_requests.current"):
        context.same(after[name], before[name], f"{name} is as before when it is freed")


@cases("allocator.host", requires={"host_statistics"})
def reuses(context: Context) -> None:
    """A freed pinned block serves the next request of its size without asking the system, also once a copy that read it is
    done."""
    there = context.bytes_of(200 * KIB)
    _pinned(200 * KIB)
    context.settle()
    for at in ("never used", "read by a copy"):
        before = _statistics(context)
        for _ in range(5):
            block = _pinned(200 * KIB)
            context.must(block.is_pinned(), "the block is pinned")
            if at != "never used":
                there.copy_(block, non_blocking=True)
            del block
            context.settle()
        asked = _statistics(context)["num_host_alloc"] - before["num_host_alloc"]
        context.same(asked, 0, "no more memory is requested from the system", at=at)


@cases("allocator.host", requires={"host_statistics"})
def empties(context: Context) -> None:
    """empty_host_cache releases unused memory."""
    _empty(context)
    before = _statistics(context)["allocated_bytes.current"]
    _pinned(5 * MIB)
    context.must(_statistics(context)["allocated_bytes.current"] > before, "a block is cached")
    _empty(context)
    after = _statistics(context)["allocated_bytes.current"]
    context.same(after, before, "it is returned to the system")
