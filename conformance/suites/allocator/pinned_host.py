"""Cases of the clause allocator.host: pinned host memory is counted, reused and given back, and no copy loses it."""

from __future__ import annotations

from functools import partial

from conformance.checks.behaviour.allocator_memory import (
    KIB,
    MIB,
    empty_host,
    host_statistics,
    keeps,
    known,
    pinned,
)
from conformance.checks.cases.cases import Cases
from conformance.checks.cases.context import CaseContext
from devices.failure import Kind

cases = Cases(Kind.MEMORY)


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
