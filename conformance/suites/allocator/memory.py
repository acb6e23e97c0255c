"""What the cases of the allocator share: invariants of the counters, addresses, known bytes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import nullcontext
from itertools import pairwise
from typing import Any

import torch

from conformance.checks.cases.context import Context, Counters

KIB, MIB = 2**10, 2**20
POOLS = ("all", "small_pool", "large_pool")


def kept(context: Context, *names: str) -> bool:
    """Whether the device declares that it keeps these statistics."""
    return context.descriptor.statistics.issuperset(names)


def granule(context: Context, size: int) -> int:
    """Bytes by which a block may be larger than a request of this size, as declared."""
    steps = context.descriptor.granularity_above
    above = [step for bound, step in steps.items() if size > bound]
    return max((context.granularity, *above))


def ordered(context: Context, now: Counters) -> None:
    """reserved >= active >= allocated >= 0, and no current value above its peak."""
    names = [n for n in ("reserved_bytes", "active_bytes", "allocated_bytes") if kept(context, n)]
    for pool in POOLS:
        values = [now.get(f"{name}.{pool}.current") for name in names]
        context.check(
            all(a >= b for a, b in pairwise(values)) and min(values) >= 0,
            f"{' >= '.join(names)} >= 0 in {pool}",
            found=values,
        )
    wrong = [
        name.removesuffix(".current")
        for name, value in now.all.items()
        if name.endswith(".current") and value > now.get(name.removesuffix("current") + "peak")
    ]
    context.same(wrong, [], "no current value is above its peak")


def balanced(context: Context, now: Counters, reset: Counters) -> None:
    """Total allocated - total freed = current - what was current at the last reset of the totals."""
    wrong = []
    for name, current in now.all.items():
        stem = name.removesuffix(".current")
        if stem == name or f"{stem}.freed" not in now.all:
            continue
        change = now[f"{stem}.allocated"] - now[f"{stem}.freed"]
        if change != current - reset.get(name):
            wrong.append((stem, change, current - reset.get(name)))
    context.same(wrong, [], "total allocated minus total freed is the change of the current value")


def reset_totals(context: Context, index: int = 0) -> Counters:
    """Reset the accumulated statistics; the counters right after that."""
    torch.accelerator.memory.reset_accumulated_memory_stats(context.at(index))
    return context.counters(index)


def fresh(context: Context) -> None:
    """Wait for all work, and release cached memory."""
    context.settle()
    if context.accelerated:
        torch.accelerator.memory.empty_cache()


def new_queue(context: Context) -> Any:
    """A stream as the current one, for a block: what is cached for others does not serve it."""
    return context.stream() if context.has("streams") else nullcontext()


def span(block: torch.Tensor) -> tuple[int, int]:
    """The addresses of a block's bytes: the first, and the one after the last."""
    start = block.untyped_storage().data_ptr()
    return start, start + block.untyped_storage().nbytes()


def overlapping(blocks: Iterable[torch.Tensor]) -> list[tuple[tuple[int, int], tuple[int, int]]]:
    """Pairs of neighbours, by address, that share bytes."""
    spans = sorted(span(block) for block in blocks)
    return [(a, b) for a, b in pairwise(spans) if b[0] < a[1]]


def inside(block: torch.Tensor, spans: Sequence[tuple[int, int]]) -> bool:
    """Whether a block shares bytes with one of these spans."""
    start, end = span(block)
    return any(start < high and low < end for low, high in spans)


def known(size: int, seed: int) -> torch.Tensor:
    """Bytes on the CPU that no other seed gives."""
    period = ((torch.arange(251) * 31 + seed * 97) % 251).to(torch.uint8)
    return period.repeat(size // 251 + 1)[:size]


def fits_in_memory(context: Context, index: int = 0) -> int:
    """Bytes of free memory that a test may take: an eighth, at most 64 MiB."""
    if not context.has("allocator_memory_info"):
        return 16 * MIB
    free, _ = torch.accelerator.memory.get_memory_info(context.at(index))
    return int(min(64 * MIB, free // 8))
