"""Cases of the clause allocator.pools: who may use the memory of a private pool."""

from __future__ import annotations

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


_SIZES = {"small": (64 * KIB,), "large": (MIB + 512 * KIB,)}


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
