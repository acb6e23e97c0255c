"""allocator.ordering, allocator.peaks, allocator.device_isolation: what holds between counters."""

from __future__ import annotations

import torch

from conformance.allocator.judging import KIB, MIB, balanced, kept, ordered, reset_totals
from conformance.behaviour.cases import Cases
from conformance.behaviour.context import Context

cases = Cases()


def _reset_peaks(context: Context, index: int = 0) -> None:
    torch.accelerator.memory.reset_peak_memory_stats(context.at(index))


@cases("allocator.ordering")
def at_every_moment(context: Context) -> None:
    """The counters are in order after each of a hundred requests and frees."""
    blocks: list[torch.Tensor] = []
    ordered(context, context.counters())
    for _ in range(100):
        if blocks and context.random.random() < 0.45:
            blocks.pop(context.random.randrange(len(blocks)))
        else:
            blocks.append(context.bytes_of(context.random.choice((100, 5000, 80_000, 2 * MIB))))
        ordered(context, context.counters())
    context.must(blocks, "blocks were taken")


@cases("allocator.ordering")
def totals(context: Context) -> None:
    """Totals allocated less freed are the change since their reset."""
    held = context.bytes_of(3 * KIB)
    reset = reset_totals(context)
    balanced(context, reset, reset)
    for size in (1, 700, 40_000, 3 * MIB):
        block = context.bytes_of(size)
        balanced(context, context.counters(), reset)
        del block
        balanced(context, context.counters(), reset)
    freed = context.counters().get("allocation.all.freed")
    context.must(freed >= 4 or not kept(context, "allocation"), "blocks were freed")
    del held
    balanced(context, context.counters(), reset)


@cases("allocator.peaks")
def running_maximum(context: Context) -> None:
    """`peak` is the most that was ever current since its reset."""
    _reset_peaks(context)
    start = context.counters()
    first = context.bytes_of(300 * KIB)
    second = context.bytes_of(500 * KIB)
    highest = context.counters()
    context.same(highest.peak, highest.allocated, "`peak` rises with `allocated`")
    context.must(highest.allocated > start.allocated, "the blocks were counted")
    del first
    third = context.bytes_of(10 * KIB)
    later = context.counters()
    context.must(later.allocated < highest.allocated, "less is allocated than before")
    context.same(later.peak, highest.allocated, "`peak` stays where it was")
    del second, third
    context.same(context.counters().peak, highest.allocated, "frees leave `peak` alone")


@cases("allocator.peaks")
def reset(context: Context) -> None:
    """reset_peak_memory_stats sets every peak to what is current."""
    held = context.bytes_of(64 * KIB)
    context.bytes_of(4 * MIB)
    before = context.counters()
    context.must(before.peak > before.allocated, "more was allocated than is now")
    _reset_peaks(context)
    after = context.counters()
    wrong = {
        name: (after[name], after.get(name.removesuffix("current") + "peak"))
        for name in after.all
        if name.endswith(".current")
        and after[name] != after.get(name.removesuffix("current") + "peak")
    }
    context.same(wrong, {}, "every peak is what is current")
    del held


@cases("allocator.peaks")
def accumulated(context: Context) -> None:
    """reset_accumulated_memory_stats sets every total to zero, and leaves what is current."""
    held = context.bytes_of(64 * KIB)
    before = context.counters()
    context.must(before.get("allocated_bytes.all.allocated") > 0, "bytes were counted in a total")
    after = reset_totals(context)
    ended = (".allocated", ".freed")
    left = {name: value for name, value in after.all.items() if name.endswith(ended) and value}
    context.same(left, {}, "every total is zero")
    context.same(after.allocated, before.allocated, "what is allocated stays")
    del held


@cases("allocator.peaks", indices=2)
def of_one_index(context: Context) -> None:
    """A reset acts on its own device index."""
    for index in (0, 1):
        context.bytes_of(2 * MIB, index)
    before = context.counters(0)
    context.must(before.peak > before.allocated, "more was allocated on index 0 than is now")
    _reset_peaks(context, 1)
    reset_totals(context, 1)
    context.same(dict(context.counters(0).all), dict(before.all), "index 0 keeps its statistics")


@cases(
    "allocator.device_isolation", indices=2, over={"first_index": (0, 1), "second_index": (1, 0)}
)
def others_stay(context: Context, used: int, other: int) -> None:
    """Allocation on one index moves no counter of another."""
    mine, theirs = context.counters(used), context.counters(other)
    blocks = [context.bytes_of(size, used) for size in (100, 60_000, 5 * MIB)]
    context.same(blocks[0].device.index, used, "the blocks are where they were asked for")
    now = context.counters(used)
    context.check(now.allocated > mine.allocated, f"the counters of index {used} moved")
    context.same(dict(context.counters(other).all), dict(theirs.all), "no other counter did")
    del blocks
    context.same(context.counters(used).allocated, mine.allocated, "frees count where blocks were")
    context.same(dict(context.counters(other).all), dict(theirs.all), "and nowhere else")
