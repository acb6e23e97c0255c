"""Whose memory it is: of a stream, of a private pool, of an allocator of the user, of the host."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from conformance.checks.cases.cases import Cases
from conformance.checks.cases.context import Context
from conformance.suites.allocator.memory import KIB, MIB, fresh, inside, known, span
from devices.failure import Kind

cases = Cases(Kind.MEMORY)


# -- allocator.record_stream, allocator.cross_stream: blocks and the streams that use them


_SIZES = {"small": (64 * KIB,), "large": (MIB + 512 * KIB,)}


def _reused_at_once(context: Context, size: int) -> bool:
    """Whether the block that the current stream freed last is the next of its size."""
    block = context.bytes_of(size)
    place = span(block)
    del block
    return inside(context.bytes_of(size), [place])


@cases("allocator.record_stream", over=_SIZES)
def not_handed_out(context: Context, size: int) -> None:
    """A marked block is not handed out before the other stream has passed the point of its free."""
    mine, other = context.stream(), context.stream()
    context.must(mine != other, "the two streams differ")
    with mine:
        context.must(_reused_at_once(context, size), "a freed block is the next of its size")
        block = context.bytes_of(size)
        place = span(block)
        with context.hold(other) as hold:
            block.record_stream(other)
            del block
            early = [context.bytes_of(size) for _ in range(3)]
            hold.must_be_in_flight()
            wrong = [span(each) for each in early if inside(each, [place])]
            context.same(wrong, [], "the block is not handed out while the other stream is busy")
        other.synchronize()
        del early
        later = [context.bytes_of(size) for _ in range(5)]
        context.check(
            any(inside(each, [place]) for each in later),
            "the block is handed out again when the other stream is done",
        )


@cases("allocator.record_stream", over={f"{name}_bytes": size for name, size in _SIZES.items()})
def bytes_stay(context: Context, size: int) -> None:
    """What another stream is about to read is not overwritten through a block of the same memory."""
    mine, other = context.stream(), context.stream()
    want = known(size, 11)
    with other:
        result = context.bytes_of(size).fill_(0)
    with mine:
        block = context.bytes_of(size).copy_(want)
        context.settle()
        with context.hold(other) as hold:
            with other:
                result.copy_(block)
            block.record_stream(other)
            del block
            for _ in range(3):
                context.bytes_of(size).fill_(255)
            mine.synchronize()
            hold.must_be_in_flight()
        other.synchronize()
    context.equal(result, want, "the other stream reads what was there when its work was queued")


@cases("allocator.cross_stream", over=_SIZES)
def own_stream_only(context: Context, size: int) -> None:
    """A freed block goes to requests on the stream that it was allocated on, and to no other."""
    mine, other = context.stream(), context.stream()
    context.must(mine != other, "the two streams differ")
    fresh(context)
    with mine:
        block = context.bytes_of(size)
        place = span(block)
        del block
    with other:
        others = [context.bytes_of(size) for _ in range(4)]
    wrong = [span(each) for each in others if inside(each, [place])]
    context.same(wrong, [], "no request on another stream gets the block")
    with mine:
        again = [context.bytes_of(size) for _ in range(2)]
    context.check(
        any(inside(each, [place]) for each in again), "a request on its own stream gets it"
    )
    del others, again


@cases("allocator.cross_stream", requires={"allocator_statistics"})
def after_release(context: Context) -> None:
    """Once its segment is released, memory serves any stream."""
    mine, other = context.stream(), context.stream()
    fresh(context)
    reserved = context.counters().reserved
    with mine:
        context.bytes_of(6 * MIB)
    context.must(context.counters().reserved > reserved, "the block's segment is kept")
    fresh(context)
    context.same(context.counters().reserved, reserved, "its segment is released")
    with other:
        block = context.bytes_of(6 * MIB).fill_(3)
        context.same(int(block[-1]), 3, "another stream takes and uses memory")


# -- allocator.pools: private pools, whose blocks are used only inside the pool


@contextmanager
def _from(context: Context, pool: Any) -> Iterator[None]:
    """Requests of this thread come from a pool, for a block."""
    with context.own("use_pool")(pool, 0):
        yield


@cases("allocator.pools", over={"small": (64 * KIB,), "large": (5 * MIB,)})
def nobody_elses(context: Context, size: int) -> None:
    """Memory freed in a pool is not used outside the pool, and is used by the pool again."""
    fresh(context)
    pool = context.own("pool")()
    with _from(context, pool):
        block = context.bytes_of(size)
        place = span(block)
        del block
    outside = [context.bytes_of(size) for _ in range(3)]
    wrong = [span(each) for each in outside if inside(each, [place])]
    context.same(wrong, [], "no request outside the pool gets its memory")
    with _from(context, pool):
        again = context.bytes_of(size)
        context.check(inside(again, [place]), "a request in the pool gets it")
        del again
    del outside, pool
    fresh(context)


@cases("allocator.pools")
def takes_from_nobody(context: Context) -> None:
    """A pool is not served from what others freed, and its live tensors hold what they are given."""
    fresh(context)
    block = context.bytes_of(64 * KIB)
    place = span(block)
    del block
    pool = context.own("pool")()
    with _from(context, pool):
        mine = context.bytes_of(64 * KIB).copy_(known(64 * KIB, 4))
    context.check(not inside(mine, [place]), "a pool has separate memory")
    other = context.bytes_of(64 * KIB).fill_(0)
    context.equal(mine, known(64 * KIB, 4), "a tensor of the pool keeps its bytes")
    del mine, other, pool
    fresh(context)


@cases("allocator.pools", requires={"allocator_statistics"})
def comes_back(context: Context) -> None:
    """After the death of a pool without live tensors, empty_cache returns its memory."""
    fresh(context)
    before = context.counters().reserved
    pool = context.own("pool")()
    with _from(context, pool):
        context.bytes_of(64 * KIB)
        context.bytes_of(5 * MIB)
    context.must(context.counters().reserved > before, "the pool has taken memory")
    del pool
    fresh(context)
    context.same(context.counters().reserved, before, "`reserved` is what it was before the pool")


@cases("allocator.pools", requires={"allocator_statistics"})
def lives_with_its_tensors(context: Context) -> None:
    """A tensor outlives its pool: its bytes stay, and its memory comes back after it."""
    fresh(context)
    before = context.counters().reserved
    pool = context.own("pool")()
    with _from(context, pool):
        kept = context.bytes_of(64 * KIB).copy_(known(64 * KIB, 8))
    del pool
    fresh(context)
    for _ in range(4):
        context.bytes_of(64 * KIB).fill_(0)
    context.equal(kept, known(64 * KIB, 8), "the tensor keeps its bytes")
    del kept
    fresh(context)
    context.same(context.counters().reserved, before, "then its memory is released")


# -- allocator.pluggable: an allocator of the user's own in place of the device's


@cases("allocator.pluggable", slow=True)
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
    sizes = (1, 700, 4096, 100_003, 3 * 2**20)
    blocks = [context.bytes_of(size) for size in sizes]
    context.same(taken.total(), len(sizes), "the custom allocator is called once for every block")
    seen = dict(taken.keys())
    for block, size in zip(blocks, sizes):
        asked = seen.get(span(block)[0], 0)
        context.check(
            asked >= size, "a block is at the address that the allocator returned", found=asked
        )
    for seed, block in enumerate(blocks):
        block.copy_(known(block.numel(), seed))
    for seed, block in enumerate(blocks):
        context.equal(block, known(block.numel(), seed), "a block keeps its bytes")
    del block, blocks
    context.settle()
    context.same(sorted(given.elements()), sorted(taken.elements()), "it gets every block back")


@cases("allocator.pluggable")
def changed_after_use(context: Context) -> None:
    """Changing the allocator after its first use raises."""
    block = context.bytes_of(100)
    context.must(block.numel() == 100, "the allocator was used")
    context.raises(
        RuntimeError,
        lambda: context.own("change_allocator")(context.own("pluggable")(_none_left, _nothing)),
        text="changing the allocator raises",
    )
    again = context.bytes_of(100).copy_(known(100, 1))
    context.equal(again, known(100, 1), "the allocator still works")


def _none_left(*_: Any) -> int:
    return 0


def _nothing(*_: Any) -> None:
    """What is given back is forgotten."""


# -- allocator.host: the cache of pinned host memory


def _pinned(size: int) -> torch.Tensor:
    return torch.empty(size, dtype=torch.uint8, pin_memory=True)


def _statistics(context: Context) -> dict[str, int]:
    """Names as of torch.cuda.host_memory_stats: ``active_bytes.current`` and the like."""
    return dict(context.own("host_statistics")())


def _empty(context: Context) -> None:
    context.settle()
    if "empty_host_cache" in context.descriptor.functions:
        context.own("empty_host_cache")()
    else:
        torch.accelerator.memory.empty_host_cache()


@cases("allocator.host")
def empty_is_safe(context: Context) -> None:
    """empty_host_cache touches no live pinned block, and pinned memory can be taken after it."""
    want = known(70_000, 9)
    block = _pinned(70_000).copy_(want)
    context.must(block.is_pinned(), "the block is pinned")
    _pinned(MIB)
    _empty(context)
    context.equal(block, want, "a live block keeps its bytes")
    other = _pinned(70_000).copy_(known(70_000, 10))
    context.equal(other, known(70_000, 10), "pinned memory can be taken")
    context.equal(block, want, "and it is not that of a live block")


@cases("allocator.host", requires={"host_statistics"}, over={"page": (4 * KIB,), "uneven": (70_001,), "large": (3 * MIB,)})  # fmt: skip
def counts(context: Context, size: int) -> None:
    """A pinned block is counted while it is live, with at most twice its requested size."""
    before = _statistics(context)
    block = _pinned(size)
    during = _statistics(context)
    context.must(block.is_pinned(), "the block is pinned")
    rise = during["active_bytes.current"] - before["active_bytes.current"]
    context.check(
        size <= rise <= max(2 * size, 4 * KIB), "active bytes rise by its size", found=rise
    )
    requests = during["active_requests.current"] - before["active_requests.current"]
    context.same(requests, 1, "one more block is active")
    del block
    context.settle()
    after = _statistics(context)
    for name in ("active_bytes.current", "active_requests.current"):
        context.same(after[name], before[name], f"{name} is as before when it is freed")


@cases("allocator.host", requires={"host_statistics"})
def reuses(context: Context) -> None:
    """A freed pinned block serves the next request of its size without asking the system."""
    _pinned(200 * KIB)
    context.settle()
    before = _statistics(context)
    for _ in range(5):
        block = _pinned(200 * KIB)
        context.must(block.is_pinned(), "the block is pinned")
        del block
        context.settle()
    asked = _statistics(context)["num_host_alloc"] - before["num_host_alloc"]
    context.same(asked, 0, "no more memory is requested from the system")


@cases("allocator.host", requires={"host_statistics"})
def empties(context: Context) -> None:
    """empty_host_cache releases unused memory."""
    _empty(context)
    before = _statistics(context)
    _pinned(5 * MIB)
    during = _statistics(context)
    context.must(
        during["allocated_bytes.current"] > before["allocated_bytes.current"], "a block is cached"
    )
    _empty(context)
    after = _statistics(context)["allocated_bytes.current"]
    context.same(after, before["allocated_bytes.current"], "it is returned to the system")
