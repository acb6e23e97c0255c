"""Cases about who may use memory: other streams, private pools, pluggable allocators, and pinned host memory."""

from __future__ import annotations

from collections import Counter
from contextlib import nullcontext
from functools import partial
from typing import Any

import torch

from conformance.checks.behaviour.allocator_memory import (
    KIB,
    MIB,
    empty_host,
    filled,
    freed,
    fresh,
    given_back,
    host_statistics,
    inside,
    keeps,
    known,
    none_inside,
    pinned,
    span,
)
from conformance.checks.cases.cases import Cases
from conformance.checks.cases.context import CaseContext
from conformance.checks.cases.exceptions import NotDeclared
from devices.failure import Kind

cases = Cases(Kind.MEMORY)

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
        context.check(True, "the segment was released at once, so no freed block could be reused")
        return
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
            context.check(
                True, "the segment was released at once, so no freed block could be reused"
            )
            return
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
            context.check(
                True, "the segment was released at once, so no freed block could be reused"
            )
            return
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


@cases("allocator.pools", requires={"pointers"}, over={"small": (64 * KIB,), "large": (5 * MIB,)})
def nobody_elses(context: CaseContext, size: int) -> None:
    """Memory that was freed in a private pool serves no request outside of the pool, and serves the next
    request in the pool."""
    fresh(context)
    pool, use = context.own("pool")(), context.own("use_pool")
    with use(pool, 0):
        place = freed(context, size)
    outside = [context.bytes_of(size) for _ in range(3)]
    none_inside(context, outside, place, "a request outside of the pool got the pool's memory")
    with use(pool, 0):
        context.check(
            inside(context.bytes_of(size), [place]),
            "a request in the pool did not get the memory that was freed in the pool",
        )
    del outside, pool
    fresh(context)


@cases("allocator.pools", requires={"pointers"})
def takes_from_nobody(context: CaseContext) -> None:
    """A request in a private pool does not get memory that was freed outside of the pool, and later allocations
    outside of the pool do not change a tensor in the pool."""
    fresh(context)
    place = freed(context, 64 * KIB)
    pool, use = context.own("pool")(), context.own("use_pool")
    with use(pool, 0):
        mine = filled(context, 64 * KIB, 4)
    context.check(
        not inside(mine, [place]),
        "a request in the pool got memory that was freed outside of the pool",
    )
    other = context.bytes_of(64 * KIB).fill_(0)
    keeps(context, mine, 4, "the bytes of a tensor in the pool changed")
    del mine, other, pool
    fresh(context)


@cases("allocator.pools", requires={"pointers"})
def of_this_thread(context: CaseContext) -> None:
    """While one thread uses a private pool, requests of another thread do not get the pool's memory."""
    fresh(context)
    pool, use = context.own("pool")(), context.own("use_pool")
    with use(pool, 0):
        place = freed(context, 64 * KIB)
        [others] = context.together(lambda: [context.bytes_of(64 * KIB) for _ in range(3)])
        none_inside(context, others, place, "a request of another thread got the pool's memory")
        context.check(
            inside(context.bytes_of(64 * KIB), [place]),
            "a request of the thread that uses the pool did not get the pool's memory",
        )
    del others, pool
    fresh(context)


@cases("allocator.pools", requires={"pointers"}, over={f"nested_{name}": size for name, size in _SIZES.items()})  # fmt: skip
def nested(context: CaseContext, size: int) -> None:
    """A `with` block of one private pool is inside that of another. The inner pool serves the requests in the
    inner block, and the outer pool serves the requests after it. Each pool keeps the memory of its requests."""
    fresh(context)
    (outer, inner), use = (context.own("pool")() for _ in range(2)), context.own("use_pool")
    with use(outer, 0):
        place = freed(context, size)
        with use(inner, 0):
            block = context.bytes_of(size)
            text = "a request in the inner of two nested pools got memory of the outer pool"
            none_inside(context, [block], place, text)
            nested_place = span(block)
            del block
        again = context.bytes_of(size)
        text = "a request in the outer pool, after the inner of two nested pools, got memory of the inner pool"
        none_inside(context, [again], nested_place, text)
        text = "a request in the outer pool, after the inner of two nested pools, did not get the memory that was freed in the outer pool"
        context.check(inside(again, [place]), text)
    with use(inner, 0):
        text = "a request in the inner pool did not get the memory that was freed in it while the pools were nested"
        context.check(inside(context.bytes_of(size), [nested_place]), text)
    del again, outer, inner
    fresh(context)


@cases("allocator.pools", requires={"pointers"}, indices=2)
def of_another_index(context: CaseContext) -> None:
    """A private pool is used for device index 1 while index 0 is current. The pool serves the requests on index 1, and
    none on index 0."""
    size = 64 * KIB
    fresh(context)
    pool, use = context.own("pool")(), context.own("use_pool")
    with use(pool, 1):
        place, elsewhere = span(context.bytes_of(size, 1)), freed(context, size)
    outside = [context.bytes_of(size, 1) for _ in range(3)]
    text = "a request outside of the pool got memory of the pool, which was used for index 1"
    none_inside(context, outside, place, text)
    with use(pool, 1):
        text = (
            "a request on index 1 did not get the memory that was freed in the pool of that index"
        )
        context.check(inside(context.bytes_of(size, 1), [place]), text)
    text = "a pool that was used for index 1 kept memory of index 0: no request on index 0 got it"
    others = [context.bytes_of(size) for _ in range(3)]
    context.check(any(inside(each, [elsewhere]) for each in others), text)
    del others, outside, pool
    fresh(context)


@cases("allocator.pools", requires={"allocator_statistics"})
def counted_by_pool(context: CaseContext) -> None:
    """If the device's memory_stats count the reserved bytes of private pools, each pool has its own numbers: the current
    bytes are those of its segments, small and large blocks are counted apart, and the totals fit. A pool that was given
    back is not listed any more."""
    read = getattr(context.module, "memory_stats", None)
    fresh(context)
    pool, use = context.own("pool")(), context.own("use_pool")
    blocks = [context.bytes_of(size) for size in (3 * KIB, 5 * MIB)]  # not counted
    with use(pool, 0):
        blocks += [context.bytes_of(size) for size in (3 * KIB, 5 * MIB)]
    if read is None or not hasattr(pool, "id"):
        raise NotDeclared("the device has no memory_stats, or its pools have no `id`")
    stem = "reserved_bytes_by_private_pools." + "_".join(map(str, pool.id))
    now = {name: value for name, value in read(0).items() if name.startswith(stem + ".")}
    if not now and not any(name.startswith("reserved_bytes_by_private_pools") for name in read(0)):
        raise NotDeclared("the device's memory_stats do not count by private pool")
    metrics = ("current", "peak", "allocated", "freed")
    names = [
        f"{stem}.{part}.{one}" for part in ("all", "small_pool", "large_pool") for one in metrics
    ]
    missing = [name for name in names if name not in now]
    context.same(missing, [], "memory_stats lack numbers of a private pool that has memory")
    small, large = now[f"{stem}.small_pool.current"], now[f"{stem}.large_pool.current"]
    text = "memory_stats do not count small and large blocks of a private pool apart"
    context.check(small >= 3 * KIB and large >= 5 * MIB, text, found=(small, large))
    text = "the reserved bytes of a private pool are not the sum of its small and large ones"
    context.same(now[f"{stem}.all.current"], small + large, text)
    for part in ("all", "small_pool", "large_pool"):
        current, peak, allocated, freed_bytes = (now[f"{stem}.{part}.{one}"] for one in metrics)
        text = "the totals of a private pool's reserved bytes do not fit its current value and peak"
        fits = allocated - freed_bytes == current and 0 <= current <= peak <= allocated
        context.check(fits, text, found=(current, peak, allocated, freed_bytes), at=part)
    if hasattr(pool, "snapshot"):
        reserved = sum(segment["total_size"] for segment in pool.snapshot())
        text = "memory_stats give a private pool other reserved bytes than its snapshot"
        context.same(now[f"{stem}.all.current"], reserved, text)
    torch.accelerator.memory.reset_accumulated_memory_stats(context.at(0))
    after = read(0)
    totals = [
        f"{stem}.{part}.{one}"
        for part in ("all", "small_pool", "large_pool")
        for one in metrics[2:]
    ]
    kept = {name: after[name] for name in totals if after[name]}
    text = "reset_accumulated_memory_stats left totals of a private pool above zero"
    context.same(kept, {}, text)
    del blocks, pool
    fresh(context)
    left = [
        name
        for name in read(0)
        if name.startswith(stem + ".") and read(0)[name] and name.endswith("current")
    ]
    context.same(left, [], "memory_stats count memory of a private pool that was given back")


@cases("allocator.pools", requires={"pointers"})
def describes_itself(context: CaseContext) -> None:
    """Two pools have different ids, and the snapshot of a pool has the segments of that pool only. What the device's
    pools do not have is left out."""
    size = 64 * KIB
    fresh(context)
    (mine, other), use = (context.own("pool")() for _ in range(2)), context.own("use_pool")
    if not {"id", "snapshot"} & set(dir(mine)):
        raise NotDeclared("the device's pools have neither `id` nor `snapshot`")
    with use(mine, 0):
        block = context.bytes_of(size)
    with use(other, 0):
        foreign = context.bytes_of(size)
    outside = context.bytes_of(size)
    if hasattr(mine, "id"):
        text = "two private pools have the same id"
        context.check(tuple(mine.id) != tuple(other.id), text, found=mine.id)
    if hasattr(mine, "snapshot"):
        parts = [(s["address"], s["address"] + s["total_size"]) for s in mine.snapshot()]
        text = "the snapshot of a pool has no segment with the pool's block"
        context.check(inside(block, parts), text)
        text = "the snapshot of a pool has a segment that is not the pool's"
        context.check(not inside(foreign, parts) and not inside(outside, parts), text)
    del block, foreign, outside, mine, other
    fresh(context)


@cases("allocator.pools", requires={"allocator_statistics"})
def comes_back(context: CaseContext) -> None:
    """After a private pool without live tensors was deleted, empty_cache releases its memory."""
    with given_back(
        context,
        "the memory of a deleted pool was not released: `reserved` differs from its previous value",
    ) as before:
        pool, use = context.own("pool")(), context.own("use_pool")
        with use(pool, 0):
            context.bytes_of(64 * KIB)
            context.bytes_of(5 * MIB)
        context.must(
            context.counters().reserved > before,
            "allocating in the pool did not increase the reserved bytes",
        )
        del pool


@cases("allocator.pools", requires={"allocator_statistics"})
def lives_with_its_tensors(context: CaseContext) -> None:
    """A private pool is deleted while one of its tensors is alive. The tensor keeps its bytes, and empty_cache
    releases the memory once the tensor is deleted too."""
    with given_back(
        context,
        "the memory of a deleted pool was not released after its last tensor: `reserved` differs from its previous value",
    ):
        pool, use = context.own("pool")(), context.own("use_pool")
        with use(pool, 0):
            kept = filled(context, 64 * KIB, 8)
        del pool
        fresh(context)
        for _ in range(4):
            context.bytes_of(64 * KIB).fill_(0)
        keeps(context, kept, 8, "the bytes of a tensor changed after its pool was deleted")
        del kept


@cases("allocator.pluggable", requires={"pointers"}, slow=True)
def sees_all(context: CaseContext) -> None:
    """After change_current_allocator, the user's functions are called for every allocation and every free,
    blocks are at the addresses that the allocation function returned, and the process exits with status 0."""
    context.ended_well(
        context.child(_sees_all, fresh=True),
        "the process with a pluggable allocator did not exit with status 0",
    )


def _sees_all(context: CaseContext) -> None:
    taken: Counter[tuple[int, int]] = Counter()
    given: Counter[tuple[int, int]] = Counter()
    # By address: the device and the stream that the functions were called with.
    taken_for: dict[int, tuple[int, int]] = {}
    given_for: dict[int, tuple[int, int]] = {}
    take_range, give_range = context.own("driver_alloc"), context.own("driver_free")

    def take(size: int, device: int, stream: int) -> int:
        address = int(take_range(size, device))
        taken[address, size] += 1
        taken_for[address] = device, stream
        return address

    def give(address: int, size: int, device: int, stream: int) -> None:
        given[address, size] += 1
        given_for[address] = device, stream
        give_range(address, size)

    change, pluggable = context.own("change_allocator"), context.own("pluggable")
    change(pluggable(take, give))
    sizes = (1, 700, 4096, 100_003, 3 * MIB)
    blocks = [context.bytes_of(size) for size in sizes]
    context.same(
        taken.total(),
        len(sizes),
        "the number of calls of the allocation function differs from the number of blocks",
    )
    seen, text = (
        dict(taken.keys()),
        "the allocation at the block's address is missing or has fewer bytes than the block",
    )
    for block, size in zip(blocks, sizes):
        asked = seen.get(span(block)[0], 0)
        context.check(asked >= size, text, found=asked)
    for seed, block in enumerate(blocks):
        block.copy_(known(block.numel(), seed))
    for seed, block in enumerate(blocks):
        keeps(context, block, seed, "the bytes of a block of a pluggable allocator changed")
    _told_where(context, taken_for)
    del block, blocks
    context.settle()
    context.same(
        sorted(given.elements()),
        sorted(taken.elements()),
        "the pairs (address, size) that the free function received differ from those that were allocated",
    )
    text = "the free function received another device or stream than the allocation function for a block"
    wrong = {each: given_for[each] for each in given_for if given_for[each] != taken_for[each]}
    context.same(wrong, {}, text)
    text = "changing the allocator after a pluggable one was used did not raise RuntimeError"
    context.raises(RuntimeError, lambda: change(pluggable(take, give)), text=text)


def _told_where(context: CaseContext, taken_for: dict[int, tuple[int, int]]) -> None:
    """Checks that the allocation function of a user is called with the device index of each block and with the stream
    that is current. ``taken_for`` has the device and the stream of each call, by the address that it returned."""
    text = "the allocation function was not called with the device index of the block"
    for index in context.indices:
        block = context.bytes_of(700, index)
        context.same(taken_for[span(block)[0]][0], index, text)
    if context.has("streams") and context.has("native_handle"):
        stream = context.stream()
        with stream:
            block = context.bytes_of(700)
        text = "the allocation function was not called with the native handle of the current stream"
        context.same(taken_for[span(block)[0]][1], stream.native_handle, text)


@cases("allocator.pluggable")
def changed_after_use(context: CaseContext) -> None:
    """change_current_allocator raises RuntimeError once memory has been allocated, and the current allocator
    keeps working."""
    block = context.bytes_of(100)
    context.must(block.numel() == 100, "the block does not have the requested size")
    change, pluggable = context.own("change_allocator"), context.own("pluggable")
    text = "changing the allocator after its first use did not raise RuntimeError"
    context.raises(
        RuntimeError, lambda: change(pluggable(lambda *_: 0, lambda *_: None)), text=text
    )
    keeps(
        context,
        filled(context, 100, 1),
        1,
        "a block has wrong bytes after the refused change of the allocator",
    )


def _empty(context: CaseContext) -> None:
    context.settle()
    empty_host(context)


@cases("allocator.host")
def empty_is_safe(context: CaseContext) -> None:
    """empty_host_cache does not affect live pinned blocks, and pinned memory can be allocated afterwards."""
    block = pinned(70_000).copy_(known(70_000, 9))
    context.must(block.is_pinned(), "a tensor made with pin_memory=True is not pinned")
    pinned(MIB)
    _empty(context)
    keeps(context, block, 9)
    other = pinned(70_000).copy_(known(70_000, 10))
    keeps(
        context,
        other,
        10,
        "a pinned block that was allocated after empty_host_cache has wrong bytes",
    )
    keeps(context, block, 9, "allocating pinned memory changed a live pinned block")


@cases("allocator.host", requires={"streams"})
def empty_spares_copies(context: CaseContext) -> None:
    """A pinned block is freed while a queued copy still has to read the block, and empty_host_cache is called.
    The copy reads the original bytes."""
    stream, want = context.stream(), known(70_000, 12)
    there = context.bytes_of(70_000).copy_(want).fill_(0)
    context.settle()
    with context.hold(stream, needed=False) as hold:
        block = pinned(70_000).copy_(want)
        with stream:
            there.copy_(block, non_blocking=True)
        del block
        hold.call(partial(empty_host, context))
    stream.synchronize()
    keeps(
        context,
        there,
        12,
        "the copy differs from the bytes that the pinned block had when the copy was queued",
    )


@cases("allocator.host", requires={"host_statistics"}, over={"page": (4 * KIB,), "uneven": (70_001,), "large": (3 * MIB,)})  # fmt: skip
def counts(context: CaseContext, size: int) -> None:
    """A live pinned block raises active_requests by one, and active_bytes by at least its requested size and at
    most twice that size."""
    before = host_statistics(context)
    block = pinned(size)
    during = host_statistics(context)
    context.must(block.is_pinned(), "a tensor made with pin_memory=True is not pinned")
    rise = during["active_bytes.current"] - before["active_bytes.current"]
    most = max(2 * size, 4 * KIB)
    context.check(
        size <= rise <= most,
        "a pinned block raised the active bytes by less than its size or by more than twice its size",
        found=rise,
    )
    requests = during["active_requests.current"] - before["active_requests.current"]
    context.same(requests, 1, "a pinned block did not raise the active requests by one")
    del block
    context.settle()
    after = host_statistics(context)
    for name in ("active_bytes.current", "active_requests.current"):
        context.same(
            after[name],
            before[name],
            f"{name} did not return to its value after the pinned block was freed",
        )


@cases("allocator.host", requires={"host_statistics"})
def reuses(context: CaseContext) -> None:
    """A freed pinned block serves the next request of the same size, so the allocator requests no memory from the
    system. The same is true after a queued copy that read the block has finished."""
    there = context.bytes_of(200 * KIB)
    pinned(200 * KIB)
    context.settle()
    for at in ("never used", "read by a queued copy"):
        before = host_statistics(context)
        for _ in range(5):
            block = pinned(200 * KIB)
            context.must(block.is_pinned(), "a tensor made with pin_memory=True is not pinned")
            if at != "never used":
                there.copy_(block, non_blocking=True)
            del block
            context.settle()
        asked = host_statistics(context)["num_host_alloc"] - before["num_host_alloc"]
        context.same(
            asked,
            0,
            "a freed pinned block was not reused: the allocator requested more memory from the system",
            at=at,
        )


@cases("allocator.host", requires={"host_statistics"})
def empties(context: CaseContext) -> None:
    """empty_host_cache returns unused pinned memory to the system."""
    _empty(context)
    before = host_statistics(context)["allocated_bytes.current"]
    pinned(5 * MIB)
    context.must(
        host_statistics(context)["allocated_bytes.current"] > before,
        "a freed pinned block, which the pool keeps, is no longer counted as allocated",
    )
    _empty(context)
    after = host_statistics(context)["allocated_bytes.current"]
    context.same(
        after,
        before,
        "empty_host_cache did not release the unused pinned memory: the allocated bytes differ from their previous value",
    )
