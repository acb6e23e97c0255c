"""What the cases of the allocator share: invariants of the counters, addresses, known bytes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from itertools import pairwise
from typing import Any

import torch

from conformance.checks.cases.context import Context, Counters
from conformance.checks.cases.endings import NotDeclared

KIB, MIB = 2**10, 2**20
#: Bytes that no device has: 32 TiB, well below the exabyte above which torch itself refuses.
TOO_MUCH = 2**45


def kept(context: Context, *names: str) -> bool:
    """Whether the device declares that it keeps these statistics."""
    return context.descriptor.statistics.issuperset(names)


def granule(context: Context, size: int) -> int:
    """Bytes by which a block may be larger than a request of this size, as declared."""
    above = [step for bound, step in context.descriptor.granularity_above.items() if size > bound]
    return max((context.granularity, *above))


def ordered(context: Context, now: Counters) -> None:
    """reserved >= active >= allocated >= 0, and no current value above its peak or below 0."""
    names = [n for n in ("reserved_bytes", "active_bytes", "allocated_bytes") if kept(context, n)]
    for pool in ("all", "small_pool", "large_pool"):
        values = [now.get(f"{name}.{pool}.current") for name in names]
        falls = values == sorted(values, reverse=True) and min(values) >= 0
        context.check(falls, f"{' >= '.join(names)} >= 0 in {pool}", found=values)
    wrong = [stem for stem, current, peak in peaks(now) if not 0 <= current <= peak]
    context.same(wrong, [], "no current value is above its peak or below 0")


def peaks(now: Counters) -> Iterator[tuple[str, int, int]]:
    """What is counted, its current value and its peak."""
    for name, current in now.all.items():
        stem = name.removesuffix(".current")
        if stem != name:
            yield stem, current, now.get(f"{stem}.peak")


def balanced(context: Context, now: Counters, reset: Counters) -> None:
    """Total allocated - total freed = current - what was current at the last reset of the totals."""
    wrong = []
    for stem, current, _ in peaks(now):
        if f"{stem}.freed" in now.all:
            change = now[f"{stem}.allocated"] - now[f"{stem}.freed"]
            since = current - reset.get(f"{stem}.current")
            if change != since:
                wrong.append((stem, change, since))
    context.same(wrong, [], "total allocated minus total freed is the change of the current value")


def reset_totals(context: Context, index: int = 0) -> Counters:
    """Reset the accumulated statistics; the counters right after that."""
    torch.accelerator.memory.reset_accumulated_memory_stats(context.at(index))
    return context.counters(index)


def fresh(context: Context) -> None:
    """Wait for all work, and release cached memory."""
    context.settle()
    if context.accelerated and context.has("allocator_statistics"):
        torch.accelerator.memory.empty_cache()


def empty_host(context: Context) -> None:
    """Release cached pinned memory. Ends the case as undeclared where neither the descriptor nor this torch has a way."""
    if "empty_host_cache" in context.descriptor.functions:
        context.own("empty_host_cache")()
        return
    general: Any = getattr(torch.accelerator.memory, "empty_host_cache", None)  # not before 2.12
    if general is None:
        raise NotDeclared(
            "this torch has no torch.accelerator.memory.empty_host_cache, and the descriptor names none"
        )
    general()


def new_queue(context: Context) -> Any:
    """A stream as the current one, for a block: what is cached for others does not serve it."""
    return context.stream() if context.has("streams") else nullcontext()


def span(block: torch.Tensor) -> tuple[int, int]:
    """The addresses of a block's bytes: the first, and the one after the last."""
    start = block.untyped_storage().data_ptr()
    return start, start + block.untyped_storage().nbytes()


def overlapping(blocks: Iterable[torch.Tensor]) -> list[tuple[tuple[int, int], tuple[int, int]]]:
    """Pairs of neighbours, by address, that share bytes."""
    return [(a, b) for a, b in pairwise(sorted(map(span, blocks))) if b[0] < a[1]]


def aligned(context: Context, blocks: Iterable[torch.Tensor]) -> None:
    """A check that every address keeps the declared alignment."""
    step = context.descriptor.alignment
    wrong = [hex(start) for start, _ in map(span, blocks) if start % step]
    context.same(wrong, [], f"addresses are multiples of {step}")


def inside(block: torch.Tensor, spans: Sequence[tuple[int, int]]) -> bool:
    """Whether a block shares bytes with one of these spans."""
    start, end = span(block)
    return any(start < high and low < end for low, high in spans)


def freed(context: Context, size: int) -> tuple[int, int]:
    """The addresses of a block that was taken and freed."""
    return span(context.bytes_of(size))


def filled(context: Context, size: int, seed: int, index: int = 0) -> torch.Tensor:
    """A block with bytes that ``keeps`` knows by the seed."""
    return context.bytes_of(size, index).copy_(known(size, seed))


def keeps(
    context: Context, block: torch.Tensor, seed: int, text: str = "a live block keeps its bytes"
) -> None:
    """A check that a block holds what it was filled with."""
    context.equal(block, known(block.numel(), seed), text)


def none_inside(
    context: Context, blocks: Iterable[torch.Tensor], place: tuple[int, int], text: str
) -> None:
    """A check that no block shares bytes with a span."""
    context.same([span(each) for each in blocks if inside(each, [place])], [], text)


@contextmanager
def given_back(context: Context, text: str) -> Iterator[int]:
    """A check that what the block reserves is released after it: a live tensor would keep it. The block takes
    what is `reserved` before."""
    fresh(context)
    before = context.counters().reserved
    yield before
    fresh(context)
    context.same(context.counters().reserved, before, text)


def known(size: int, seed: int) -> torch.Tensor:
    """Bytes on the CPU that no other seed gives."""
    period = ((torch.arange(251) * 31 + seed * 97) % 251).to(torch.uint8)
    return period.repeat(size // 251 + 1)[:size]


def memory_info(context: Context) -> tuple[int, int]:
    """Bytes that are free, and all."""
    free, total = torch.accelerator.memory.get_memory_info(context.device)
    return int(free), int(total)


def fits_in_memory(context: Context) -> int:
    """Bytes of free memory that a test may take: an eighth, at most 64 MiB."""
    if not context.has("allocator_memory_info"):
        return 16 * MIB
    return min(64 * MIB, memory_info(context)[0] // 8)
