"""allocator.host: the cache of pinned host memory."""

from __future__ import annotations

import torch

from conformance.allocator.judging import KIB, MIB, known
from conformance.behaviour.cases import Cases
from conformance.behaviour.context import Context

cases = Cases()


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
    """empty_host_cache touches no live pinned block, and pinned memory can be taken behind it."""
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
    """A pinned block is counted while it is live, at most twice as large as it was asked for."""
    before = _statistics(context)
    block = _pinned(size)
    during = _statistics(context)
    context.must(block.is_pinned(), "the block is pinned")
    rise = during["active_bytes.current"] - before["active_bytes.current"]
    context.check(size <= rise <= max(2 * size, 4 * KIB), "active bytes rise by its size", got=rise)
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
    context.same(asked, 0, "nothing more is asked of the system")


@cases("allocator.host", requires={"host_statistics"})
def empties(context: Context) -> None:
    """empty_host_cache returns what nobody uses."""
    _empty(context)
    before = _statistics(context)
    _pinned(5 * MIB)
    during = _statistics(context)
    context.must(
        during["allocated_bytes.current"] > before["allocated_bytes.current"], "a block is cached"
    )
    _empty(context)
    after = _statistics(context)["allocated_bytes.current"]
    context.same(after, before["allocated_bytes.current"], "it goes back to the system")
