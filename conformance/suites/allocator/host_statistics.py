"""Cases about the statistics of the cache of pinned host memory: totals, peaks and their resets."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch

from conformance.checks.behaviour.allocator_memory import (
    KIB,
    MIB,
    empty_host,
    host_statistics,
    pinned,
)
from conformance.checks.cases.cases import Cases
from conformance.checks.cases.context import CaseContext
from conformance.checks.cases.exceptions import NotDeclared
from devices.failure import Kind

cases = Cases(Kind.MEMORY)

#: The statistics that have a current value, a peak and two totals (torch.cuda.host_memory_stats).
_NAMES = ("active_requests", "active_bytes", "allocations", "allocated_bytes")
_METRICS = ("current", "peak", "allocated", "freed")
#: For each statistic of blocks in use, the one that counts all blocks of the cache.
_WITHIN = {"active_requests": "allocations", "active_bytes": "allocated_bytes"}
#: Requested sizes in bytes, no two of which are served by the same block.
_SIZES = (4 * KIB, 70_001, 3 * MIB)


def _of_the_module(context: CaseContext, name: str) -> Callable[[], Any]:
    """Returns a function of the device's module, or of its module ``memory``. Raises NotDeclared if neither has it."""
    for where in (context.module, getattr(context.module, "memory", None)):
        if hasattr(where, name):
            found: Callable[[], Any] = getattr(where, name)
            return found
    raise NotDeclared(f"torch.{context.kind} has no function {name}")


def _changes(context: CaseContext) -> Iterator[str]:
    """Allocates and frees pinned blocks, empties the cache, and allocates again. Yields after each change."""
    blocks = []
    for size in _SIZES:
        blocks.append(pinned(size))
        yield f"after a block of {size} bytes was allocated"
    while blocks:
        blocks.pop(0)
        context.settle()
        yield f"after {len(_SIZES) - len(blocks)} of {len(_SIZES)} blocks were freed"
    empty_host(context)
    yield "after empty_host_cache()"
    block = pinned(_SIZES[-1])
    context.must(block.is_pinned(), "a tensor made with pin_memory=True is not pinned")
    yield "after a block was allocated from the empty cache"


def _known(now: Mapping[str, int]) -> list[str]:
    """Returns the statistics of ``_NAMES`` that the device has completely. The case ``documented`` says which are missing."""
    return [name for name in _NAMES if all(f"{name}.{each}" in now for each in _METRICS)]


def _must_be_known(context: CaseContext, now: Mapping[str, int]) -> None:
    text = "the host statistics lack active_bytes or one of its values"
    context.must("active_bytes" in _known(now), text)


@cases("allocator.host", requires={"host_statistics"})
def documented(context: CaseContext) -> None:
    """The host statistics have every documented name, except those of times, which only some allocators measure. Each is a
    number that is not negative."""
    block = pinned(70_001)
    now = host_statistics(context)
    names = [f"{name}.{each}" for name in _NAMES for each in _METRICS]
    names += ["num_host_alloc", "num_host_free"]
    missing = [name for name in names if name not in now]
    context.same(missing, [], "the host statistics lack documented names")
    wrong = {n: now[n] for n in names if not isinstance(now[n], int) or now[n] < 0}
    context.same(wrong, {}, "host statistics are negative or no integers")
    context.must(block.is_pinned(), "a tensor made with pin_memory=True is not pinned")


@cases("allocator.host", requires={"host_statistics"})
def without_elements(context: CaseContext) -> None:
    """A pinned tensor without elements takes no block: allocating and freeing it leaves the host statistics as they
    were."""
    context.settle()
    before = host_statistics(context)
    nothing = pinned(0)
    context.must(nothing.numel() == 0, "the tensor has elements")
    text = "a pinned tensor without elements changed the host statistics"
    context.same(host_statistics(context), before, text)
    del nothing
    context.same(host_statistics(context), before, text, at="after it was freed")


@cases("allocator.host")
def given_back_is_not_pinned(context: CaseContext) -> None:
    """Pinned blocks are freed and empty_host_cache() gives their memory back to the system. Ordinary tensors that are made
    afterwards, some of them perhaps at the same addresses, are not pinned."""
    blocks = [pinned(8 * MIB) for _ in range(3)]
    context.must(
        all(each.is_pinned() for each in blocks), "a tensor with pin_memory=True is not pinned"
    )
    blocks.clear()
    context.settle()
    empty_host(context)
    plain = [torch.empty(8 * MIB, dtype=torch.uint8) for _ in range(6)]
    text = "an ordinary tensor is pinned after pinned memory was given back"
    context.check(not any(each.is_pinned() for each in plain), text)


@cases("allocator.host", requires={"host_statistics"})
def balanced(context: CaseContext) -> None:
    """Pinned blocks are allocated and freed, and the cache is emptied. After each step, the total allocated minus the
    total freed of every host statistic equals its current value, as both change by the same amount; the current value
    is between 0 and the peak; and the blocks in use are among the blocks of the cache. num_host_alloc and num_host_free
    are the totals of `allocations`."""
    context.settle()
    empty_host(context)
    start = host_statistics(context)
    _must_be_known(context, start)
    for step in _changes(context):
        _judge_totals(context, host_statistics(context), start, step)


def _judge_totals(
    context: CaseContext, now: Mapping[str, int], start: Mapping[str, int], step: str
) -> None:
    def since(name: str) -> int:
        return now[name] - start[name]

    for name in _known(now):
        total = since(f"{name}.allocated") - since(f"{name}.freed")
        text = (
            f"the totals of the host statistic `{name}` changed by another amount than its current "
            "value"
        )
        context.same(total, since(f"{name}.current"), text, at=step)
        current, peak = now[f"{name}.current"], now[f"{name}.peak"]
        text = f"the host statistic `{name}` is below 0 or above its peak"
        context.check(0 <= current <= peak, text, expected=f"0 to {peak}", found=current, at=step)
    known = _known(now)
    for name, whole in _WITHIN.items():
        if name in known and whole in known:
            text = f"the host statistic `{name}` counts more than `{whole}`"
            most = now[f"{whole}.current"]
            context.check(
                now[f"{name}.current"] <= most,
                text,
                expected=f"at most {most}",
                found=now[f"{name}.current"],
                at=step,
            )
    for name, metric in (("num_host_alloc", "allocated"), ("num_host_free", "freed")):
        if name in now and "allocations" in known:
            text = f"`{name}` rose by another number than the host statistic `allocations.{metric}`"
            context.same(since(name), since(f"allocations.{metric}"), text, at=step)


@cases("allocator.host", requires={"host_statistics"})
def peaks(context: CaseContext) -> None:
    """reset_peak_host_memory_stats sets the peak of every host statistic to its current value and changes no current
    value. Afterwards the peaks rise with the current values, and stay when blocks are freed."""
    reset = _of_the_module(context, "reset_peak_host_memory_stats")
    kept, gone = pinned(70_001), pinned(5 * MIB)
    del gone  # so that the peaks are above the current values
    context.settle()
    empty_host(context)
    before = host_statistics(context)
    _must_be_known(context, before)
    context.must(
        before["active_bytes.peak"] > before["active_bytes.current"],
        "the peak of active_bytes is not above its current value after a pinned block was freed",
    )
    reset()
    after = host_statistics(context)
    wrong = {
        name: (after[f"{name}.current"], after[f"{name}.peak"])
        for name in _known(after)
        if after[f"{name}.current"] != after[f"{name}.peak"]
    }
    text = "reset_peak_host_memory_stats left peaks that differ from the current value"
    context.same(wrong, {}, text)
    changed = [n for n in _known(after) if before[f"{n}.current"] != after[f"{n}.current"]]
    context.same(changed, [], "reset_peak_host_memory_stats changed current values")
    highest = dict.fromkeys(_known(after), 0)
    for step in _changes(context):
        now = host_statistics(context)
        for name in highest:
            highest[name] = max(highest[name], now[f"{name}.current"])
            text = f"the peak of the host statistic `{name}` is below a value that it had"
            context.check(
                now[f"{name}.peak"] >= highest[name],
                text,
                expected=f"at least {highest[name]}",
                found=now[f"{name}.peak"],
                at=step,
            )
    context.must(kept.is_pinned(), "a tensor made with pin_memory=True is not pinned")


@cases("allocator.host", requires={"host_statistics"})
def accumulated(context: CaseContext) -> None:
    """reset_accumulated_host_memory_stats sets the totals of every host statistic to zero and leaves the current values
    as they are."""
    reset = _of_the_module(context, "reset_accumulated_host_memory_stats")
    kept = pinned(70_001)
    pinned(5 * MIB)
    context.settle()
    empty_host(context)
    before = host_statistics(context)
    _must_be_known(context, before)
    context.must(
        before["active_bytes.allocated"] and before["active_bytes.freed"],
        "the totals of active_bytes are zero after pinned blocks were allocated and freed",
    )
    reset()
    after = host_statistics(context)
    totals = [f"{name}.{total}" for name in _known(after) for total in ("allocated", "freed")]
    totals += [name for name in ("num_host_alloc", "num_host_free") if name in after]
    left = {name: after[name] for name in totals if after[name]}
    context.same(left, {}, "reset_accumulated_host_memory_stats left totals above zero")
    changed = [n for n in _known(after) if before[f"{n}.current"] != after[f"{n}.current"]]
    context.same(changed, [], "reset_accumulated_host_memory_stats changed current values")
    context.must(kept.is_pinned(), "a tensor made with pin_memory=True is not pinned")


@cases("allocator.host", requires={"host_statistics"})
def nested(context: CaseContext) -> None:
    """host_memory_stats_as_nested_dict has the numbers of host_memory_stats."""
    function = _of_the_module(context, "host_memory_stats_as_nested_dict")
    block = pinned(70_001)
    flat, inner = host_statistics(context), function()
    wrong = []
    for name, value in flat.items():
        found: Any = inner
        for part in name.split("."):
            found = found.get(part) if isinstance(found, Mapping) else None
        if found != value:
            wrong.append(name)
    text = "host_memory_stats_as_nested_dict does not have the numbers of host_memory_stats"
    context.same(wrong, [], text)
    context.must(block.is_pinned(), "a tensor made with pin_memory=True is not pinned")
