"""Functions that the allocator cases share: they check invariants of the counters, compare addresses of blocks,
and fill blocks with known bytes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from itertools import pairwise
from typing import Any

import torch

from conformance.checks.cases.context import CaseContext, Counters
from conformance.checks.cases.exceptions import NotDeclared

KIB, MIB = 2**10, 2**20
#: A size that no device has: 32 TiB, well below the exabyte above which torch itself refuses requests.
TOO_MUCH = 2**45


def has_statistics(context: CaseContext, *names: str) -> bool:
    """Returns True if the descriptor lists all the named statistics among those that the device maintains."""
    return context.descriptor.statistics.issuperset(names)


def granule(context: CaseContext, size: int) -> int:
    """Returns the largest number of bytes by which a block may be larger than a request of the given size, as
    declared in the descriptor."""
    above = [step for bound, step in context.descriptor.granularity_above.items() if size > bound]
    return max((context.granularity, *above))


def ordered(context: CaseContext, now: Counters) -> None:
    """Checks on the given counters that reserved >= active >= allocated >= 0, and that every current value is
    between 0 and its peak."""
    names = [
        n
        for n in ("reserved_bytes", "active_bytes", "allocated_bytes")
        if has_statistics(context, n)
    ]
    for pool in ("all", "small_pool", "large_pool"):
        values = [now.get(f"{name}.{pool}.current") for name in names]
        falls = values == sorted(values, reverse=True) and min(values) >= 0
        context.check(
            falls, f"the statistics violate {' >= '.join(names)} >= 0 in {pool}", found=values
        )
    wrong = [stem for stem, current, peak in peaks(now) if not 0 <= current <= peak]
    context.same(wrong, [], "some statistics have a current value below 0 or above their peak")


def peaks(now: Counters) -> Iterator[tuple[str, int, int]]:
    """Yields (statistic, current value, peak) for every statistic that has a current value."""
    for name, current in now.all.items():
        stem = name.removesuffix(".current")
        if stem != name:
            yield stem, current, now.get(f"{stem}.peak")


def balanced(context: CaseContext, now: Counters, reset: Counters) -> None:
    """Checks for every statistic that the total allocated minus the total freed since a reset equals the change
    of the current value. ``reset`` holds the counters right after the reset."""
    wrong = []
    for stem, current, _ in peaks(now):
        if f"{stem}.freed" in now.all:
            change = now[f"{stem}.allocated"] - now[f"{stem}.freed"]
            since = current - reset.get(f"{stem}.current")
            if change != since:
                wrong.append((stem, change, since))
    context.same(
        wrong,
        [],
        (
            "total allocated minus total freed differs from the change of the current value (each "
            "statistic is given with both numbers)"
        ),
    )


def reset_totals(context: CaseContext, index: int = 0) -> Counters:
    """Resets the accumulated statistics of a device index and returns the counters right after the reset."""
    torch.accelerator.memory.reset_accumulated_memory_stats(context.at(index))
    return context.counters(index)


def fresh(context: CaseContext) -> None:
    """Waits until the device has finished all work, and releases cached device memory."""
    context.settle()
    if context.accelerated and context.has("allocator_statistics"):
        torch.accelerator.memory.empty_cache()


def empty_host(context: CaseContext) -> None:
    """Releases cached pinned memory. Raises NotDeclared if neither the descriptor nor this torch has a function for it."""
    if "empty_host_cache" in context.descriptor.functions:
        context.own("empty_host_cache")()
        return
    general: Any = getattr(torch.accelerator.memory, "empty_host_cache", None)  # since 2.12
    if general is None:
        raise NotDeclared(
            "this torch has no torch.accelerator.memory.empty_host_cache, and the descriptor declares no empty_host_cache"
        )
    general()


def pinned(size: int) -> torch.Tensor:
    """Returns an uninitialized tensor of ``size`` bytes in pinned host memory."""
    return torch.empty(size, dtype=torch.uint8, pin_memory=True)


def host_statistics(context: CaseContext) -> dict[str, int]:
    """Returns the statistics of pinned host memory under the names that torch.cuda.host_memory_stats uses, such as
    ``active_bytes.current``."""
    return dict(context.own("host_statistics")())


def new_queue(context: CaseContext) -> Any:
    """Returns a context manager that makes a new stream current, so that requests cannot use memory cached for
    other streams. The context manager does nothing if the device has no streams."""
    return context.stream() if context.has("streams") else nullcontext()


def span(block: torch.Tensor) -> tuple[int, int]:
    """Returns the address range of a block: the address of its first byte, and the address after its last byte."""
    start = block.untyped_storage().data_ptr()
    return start, start + block.untyped_storage().nbytes()


def overlapping(blocks: Iterable[torch.Tensor]) -> list[tuple[tuple[int, int], tuple[int, int]]]:
    """Returns the pairs of address ranges that overlap. The ranges are sorted, and each is compared with the
    next."""
    return [(a, b) for a, b in pairwise(sorted(map(span, blocks))) if b[0] < a[1]]


def aligned(context: CaseContext, blocks: Iterable[torch.Tensor]) -> None:
    """Checks that the address of every block has the alignment that the descriptor declares."""
    step = context.descriptor.alignment
    wrong = [hex(start) for start, _ in map(span, blocks) if start % step]
    context.same(wrong, [], f"addresses are not multiples of {step} bytes")


def inside(block: torch.Tensor, spans: Sequence[tuple[int, int]]) -> bool:
    """Returns True if a block shares bytes with one of the given address ranges."""
    start, end = span(block)
    return any(start < high and low < end for low, high in spans)


def freed(context: CaseContext, size: int) -> tuple[int, int]:
    """Allocates a block of the given size, frees the block, and returns its address range."""
    return span(context.bytes_of(size))


def filled(context: CaseContext, size: int, seed: int, index: int = 0) -> torch.Tensor:
    """Allocates a block of the given size and fills it with the byte pattern ``known(size, seed)``."""
    return context.bytes_of(size, index).copy_(known(size, seed))


def keeps(
    context: CaseContext,
    block: torch.Tensor,
    seed: int,
    text: str = "the bytes of a live block changed",
) -> None:
    """Checks that a block still has the byte pattern ``known(size, seed)`` with which it was filled."""
    context.equal(block, known(block.numel(), seed), text)


def none_inside(
    context: CaseContext, blocks: Iterable[torch.Tensor], place: tuple[int, int], text: str
) -> None:
    """Checks that no block shares bytes with the address range ``place``."""
    context.same([span(each) for each in blocks if inside(each, [place])], [], text)


@contextmanager
def given_back(context: CaseContext, text: str) -> Iterator[int]:
    """Returns a context manager that yields the number of reserved bytes, and checks after the ``with`` block that the
    number is the same again. The block must free all its tensors, because a live tensor keeps memory reserved."""
    fresh(context)
    before = context.counters().reserved
    yield before
    fresh(context)
    context.same(context.counters().reserved, before, text)


def known(size: int, seed: int) -> torch.Tensor:
    """Returns a CPU tensor of ``size`` bytes with a pattern that depends on the seed."""
    period = ((torch.arange(251) * 31 + seed * 97) % 251).to(torch.uint8)
    return period.repeat(size // 251 + 1)[:size]


def memory_info(context: CaseContext) -> tuple[int, int]:
    """Returns the free and the total memory of the device, in bytes."""
    free, total = torch.accelerator.memory.get_memory_info(context.device)
    return int(free), int(total)


def fits_in_memory(context: CaseContext) -> int:
    """Returns the largest block size in bytes that a case may allocate: an eighth of the free memory, at most
    64 MiB."""
    if not context.has("allocator_memory_info"):
        return 16 * MIB
    return min(64 * MIB, memory_info(context)[0] // 8)
