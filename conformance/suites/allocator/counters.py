"""Cases about the allocator's counters."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch

from conformance.checks.behaviour.allocator_memory import (
    KIB,
    MIB,
    balanced,
    fresh,
    granule,
    has_statistics,
    new_queue,
    ordered,
    peaks,
    reset_totals,
)
from conformance.checks.cases.cases import Cases
from conformance.checks.cases.context import CaseContext, Counters
from conformance.checks.cases.exceptions import NotDeclared
from devices.failure import Kind

cases = Cases(Kind.MEMORY)

#: Sizes around the limits at which allocators behave differently: one granule, small and large segments,
#: segments of their own.
_SIZES = {
    "one_byte": 1,
    "under_a_granule": 511,
    "a_granule": 512,
    "over_a_granule": 513,
    "a_page": 4 * KIB,
    "uneven": 100_003,
    "under_a_mebibyte": MIB - 1,
    "over_a_mebibyte": MIB + 1,
    "three_mebibytes": 3 * MIB,
    "eleven_mebibytes": 11 * MIB,
}


@cases("allocator.accounting", over={name: (size,) for name, size in _SIZES.items()})
def one_block(context: CaseContext, size: int) -> None:
    """Allocating a block raises `allocated` by the size of the block plus at most one allocation granule, and
    raises `requested` by exactly the size. Freeing the block restores both counters."""
    context.bytes_of(size)  # the first use may allocate memory that is kept
    before = context.counters()
    block = context.bytes_of(size)
    during = context.counters()
    context.must(block.numel() == size, "the block does not have the requested size")
    rise, more = during.allocated - before.allocated, granule(context, size)
    text = f"a block of {size} bytes should raise `allocated` by at least {size} and at most {size + more} bytes, but did not"
    context.check(size <= rise <= size + more, text, found=rise)
    if has_statistics(context, "requested_bytes"):
        asked = during.requested - before.requested
        context.same(asked, size, "`requested` did not rise by the requested bytes")
    del block
    _as_before(context, before)


#: The statistics that count blocks, each with the one that counts their bytes.
_BY_POOL = {"allocation": "allocated_bytes", "active": "active_bytes"}


@cases(
    "allocator.accounting",
    over={
        "small_blocks_apart": (3 * KIB, "small_pool"),
        "large_blocks_apart": (24 * MIB, "large_pool"),
    },
)
def apart(context: CaseContext, size: int, pool: str) -> None:
    """A block of 3 KiB is counted among the small blocks, and one of 24 MiB among the large ones (1 MB or more, as
    documented): as one allocation and one active block, with the bytes that `all` counts for it. The numbers of the other
    pool stay the same. After the block was freed, all of them are what they were."""
    context.settle()
    context.bytes_of(size)  # the first use may allocate memory that is kept
    (other,) = {"small_pool", "large_pool"} - {pool}
    before = context.counters()
    block = context.bytes_of(size)
    during = context.counters()
    context.must(block.numel() == size, "the block does not have the requested size")
    for number, volume in _BY_POOL.items():
        if not has_statistics(context, number, volume):
            continue
        rises = {
            name: [
                during.get(f"{name}.{part}.current") - before.get(f"{name}.{part}.current")
                for part in ("all", pool, other)
            ]
            for name in (number, volume)
        }
        text = f"a block did not raise `{number}` by one in `all` and in the pool of its size, and by none in the other"
        context.same(rises[number], [1, 1, 0], text, at=pool)
        rise = rises[volume][0]
        text = f"a block did not raise `{volume}` of the pool of its size by as much as in `all`, and by none in the other"
        context.same(rises[volume], [rise, rise, 0], text, at=pool)
    del block
    after = context.counters()
    changed = [
        f"{name}.{part}"
        for pair in _BY_POOL.items()
        for name in pair
        for part in ("all", pool, other)
        if after.get(f"{name}.{part}.current") != before.get(f"{name}.{part}.current")
    ]
    text = "statistics did not return to their values after the block was freed"
    context.same(changed, [], text, at=pool)


@cases("allocator.accounting")
def calls_for_memory(context: CaseContext) -> None:
    """num_device_alloc rises when the allocator requests memory from the device, here for a block of 24 MiB while nothing is
    cached, and not when a freed block is reused. num_device_free rises when empty_cache returns the memory."""
    names = ("num_device_alloc", "num_device_free")
    if not has_statistics(context, *names):
        raise NotDeclared(f"the device does not maintain both of {' and '.join(names)}")
    fresh(context)
    with new_queue(context):
        before = context.counters()
        block: Any = context.bytes_of(24 * MIB)
        first = context.counters()
        context.must(block.numel() == 24 * MIB, "the block does not have the requested size")
        rise = first["num_device_alloc"] - before["num_device_alloc"]
        text = "num_device_alloc did not rise when the allocator requested memory from the device"
        context.check(rise >= 1, text, expected="at least 1", found=rise)
        block = None
        cached = context.counters()
        block = context.bytes_of(24 * MIB)
        again = context.counters()
        reused = again.reserved == cached.reserved == first.reserved
        rise = again["num_device_alloc"] - first["num_device_alloc"]
        text = "num_device_alloc changed although a freed block was reused"
        context.check(not reused or rise == 0, text, expected=0, found=rise)
        block = None
    fresh(context)
    rise = context.counters()["num_device_free"] - before["num_device_free"]
    text = "num_device_free did not rise when memory was returned to the device"
    context.check(rise >= 1, text, expected="at least 1", found=rise)


@cases("allocator.accounting")
def by_the_module(context: CaseContext) -> None:
    """The functions of torch.<device> about memory agree with those of torch.accelerator: memory_allocated, memory_reserved,
    their maxima, memory_stats, mem_get_info, the resets, and empty_cache. A function that the module does not have is left
    out."""
    module, memory = context.module, torch.accelerator.memory
    alike = ("memory_allocated", "memory_reserved", "max_memory_allocated", "max_memory_reserved")
    others = ("memory_stats", "mem_get_info", "reset_peak_memory_stats", "empty_cache")
    own = context.functions_of_the_module(*alike, *others, "reset_accumulated_memory_stats")
    gone: Any = context.bytes_of(3 * MIB)
    kept = context.bytes_of(MIB)
    del gone  # so that the current numbers are below their maxima
    for index in context.indices:
        at = context.at(index)
        for name in sorted(own.intersection(alike)):
            text = f"{name} of the device's module differs from that of torch.accelerator"
            context.same(
                getattr(module, name)(at), getattr(memory, name)(at), text, at=f"index {index}"
            )
        if "memory_stats" in own:
            mine, theirs = dict(module.memory_stats(at)), dict(memory.memory_stats(at))
            differ = {key for key in mine.keys() & theirs.keys() if mine[key] != theirs[key]}
            text = "memory_stats of the device's module differs from that of torch.accelerator"
            context.same(sorted(differ), [], text, at=f"index {index}")
        if "mem_get_info" in own and context.has("allocator_memory_info"):
            text = "mem_get_info of the device's module names another total than torch.accelerator"
            context.same(module.mem_get_info(at)[1], memory.get_memory_info(at)[1], text)
    _resets_agree(context, own)
    context.must(kept.numel() == MIB, "the block does not have the requested size")


@cases("allocator.accounting", indices=2)
def device_arguments(context: CaseContext) -> None:
    """The functions about memory take the device as a device, as its name, as a number, or not at all, which stands for
    the current index. Each of them is about that index only, in torch.accelerator and in torch.<device>.
    memory_stats_as_nested_dict has the numbers of memory_stats."""
    module, memory = context.module, torch.accelerator.memory
    alike = ("memory_allocated", "memory_reserved", "max_memory_allocated", "max_memory_reserved")
    names = (*alike, "memory_stats")
    blocks = [context.bytes_of(size, index) for index, size in ((0, MIB), (1, 5 * MIB))]
    context.bytes_of(9 * MIB, 1)  # so that the maxima of index 1 are above its current values
    told = [memory.memory_allocated(context.at(index)) for index in (0, 1)]
    context.must(told[0] != told[1], "the same number of bytes is allocated on both indices")
    for where in (memory, module):
        for name in (name for name in names if hasattr(where, name)):
            function, text = getattr(where, name), f"{where.__name__}.{name}"
            for index in (0, 1):
                want = function(context.at(index))
                forms = {"a number": (index,), "a name": (str(context.at(index)),), "no device": ()}
                for form, arguments in forms.items():
                    with context.on(index):
                        found = function(*arguments)
                    same = f"{text} with {form} differs from {text} with a torch.device"
                    context.check(found == want, same, at=f"index {index}")
    if hasattr(module, "memory_stats_as_nested_dict"):
        for index in (0, 1):
            flat, nested = module.memory_stats(index), module.memory_stats_as_nested_dict(index)
            text = "memory_stats_as_nested_dict does not have the numbers of memory_stats"
            wrong = [name for name, value in flat.items() if _in_nested(nested, name) != value]
            context.same(wrong, [], text, at=f"index {index}")
    for where in (memory, module):
        if hasattr(where, "reset_peak_memory_stats"):
            _resets_the_current(context, where)
    context.must(blocks[1].numel() == 5 * MIB, "the block does not have the requested size")


def _in_nested(nested: Any, name: str) -> Any:
    """Returns the entry of nested dictionaries for a name such as ``allocated_bytes.all.current``; None if there is
    none."""
    for part in name.split("."):
        nested = nested.get(part) if isinstance(nested, Mapping) else None
    return nested


def _resets_the_current(context: CaseContext, where: Any) -> None:
    """Checks that ``where.reset_peak_memory_stats()`` resets the peaks of the current index and of no other."""
    for index in (0, 1):
        context.bytes_of(9 * MIB, index)
    peak = context.counters(0).peak
    with context.on(1):
        where.reset_peak_memory_stats()
    text = f"{where.__name__}.reset_peak_memory_stats() without a device did not reset the peaks of the current index"
    context.same(context.counters(1).peak, context.counters(1).allocated, text)
    text = f"{where.__name__}.reset_peak_memory_stats() reset the peaks of an index that was not current"
    context.same(context.counters(0).peak, peak, text)


def _resets_agree(context: CaseContext, own: set[str]) -> None:
    """Checks that each function of the device's module that resets or frees something leaves nothing for that of
    torch.accelerator to do."""
    module, memory, device = context.module, torch.accelerator.memory, context.device
    left: dict[str, Callable[[], Any]] = {
        "empty_cache": lambda: memory.memory_reserved(device),
        "reset_peak_memory_stats": lambda: (
            memory.max_memory_allocated(device),
            memory.max_memory_reserved(device),
        ),
    }
    if has_statistics(context, "allocated_bytes"):
        total = "allocated_bytes.all.allocated"
        left["reset_accumulated_memory_stats"] = lambda: memory.memory_stats(device)[total]
    for name in sorted(own & left.keys()):
        at = () if name == "empty_cache" else (device,)
        getattr(module, name)(*at)
        found = left[name]()
        getattr(memory, name)(*at)
        text = f"{name} of the device's module left other numbers than that of torch.accelerator"
        context.same(found, left[name](), text)


@cases("allocator.accounting")
def many_blocks(context: CaseContext) -> None:
    """64 blocks of random sizes are allocated and then freed in random order. `allocated` rises by the sizes of
    the blocks, plus at most one allocation granule per block. Each free lowers `requested` by the size of the freed
    block, and `allocated` by at least that size."""
    before = context.counters()
    sizes = [context.random.randrange(1, 256 * KIB) for _ in range(64)]
    blocks = {place: context.bytes_of(size) for place, size in enumerate(sizes)}
    during = context.counters()
    rise, most = during.allocated - before.allocated, sum(s + granule(context, s) for s in sizes)
    context.check(
        sum(sizes) <= rise <= most,
        "`allocated` did not rise by the bytes of the blocks, plus at most one allocation granule per block",
        found=rise,
    )
    left, asked = list(blocks), sum(sizes)
    context.random.shuffle(left)
    for place in left:
        earlier = context.counters().allocated
        del blocks[place]
        asked -= sizes[place]
        now = context.counters()
        fall = earlier - now.allocated
        context.check(
            fall >= sizes[place],
            "a free lowered `allocated` by less than the bytes of the block",
            found=fall,
        )
        if has_statistics(context, "requested_bytes"):
            context.same(
                now.requested - before.requested,
                asked,
                "`requested` does not match the live blocks after a free",
            )
    _as_before(context, before)


@cases("allocator.accounting")
def views(context: CaseContext) -> None:
    """Creating a view allocates no memory. The block of a tensor stays allocated until the tensor and all its
    views are deleted."""
    before = context.counters()
    block = context.bytes_of(8 * KIB)
    during = context.counters()
    context.must(
        during.allocated > before.allocated,
        "allocating a block did not raise `allocated`",
        by="allocator.accounting",
    )
    view = block[17:4000]
    context.same(
        context.counters().allocated, during.allocated, "creating a view changed `allocated`"
    )
    del block
    context.same(
        context.counters().allocated,
        during.allocated,
        "deleting the tensor changed `allocated` although a view was alive",
    )
    del view
    _as_before(context, before)


def _as_before(context: CaseContext, before: Counters) -> None:
    now = context.counters()
    context.same(
        now.allocated,
        before.allocated,
        "`allocated` did not return to its value after everything was freed",
    )
    if has_statistics(context, "requested_bytes"):
        context.same(
            now.requested,
            before.requested,
            "`requested` did not return to its value after everything was freed",
        )


@cases("allocator.ordering")
def at_every_moment(context: CaseContext) -> None:
    """100 random allocations and frees are made. After each of them, reserved >= active >= allocated >= 0, and
    every current value is between 0 and its peak."""
    blocks: list[torch.Tensor] = []
    ordered(context, context.counters())
    for _ in range(100):
        if blocks and context.random.random() < 0.45:
            blocks.pop(context.random.randrange(len(blocks)))
        else:
            blocks.append(context.bytes_of(context.random.choice((100, 5000, 80_000, 2 * MIB))))
        ordered(context, context.counters())
    context.must(blocks, "no block was allocated")


@cases("allocator.ordering")
def totals(context: CaseContext) -> None:
    """For every statistic, the total allocated minus the total freed since a reset equals the change of the
    current value since that reset."""
    held = context.bytes_of(3 * KIB)
    reset = reset_totals(context)
    balanced(context, reset, reset)
    for size in (1, 700, 40_000, 3 * MIB):
        block = context.bytes_of(size)
        balanced(context, context.counters(), reset)
        del block
        balanced(context, context.counters(), reset)
    freed = context.counters().get("allocation.all.freed")
    context.must(
        freed >= 4 or not has_statistics(context, "allocation"),
        "the allocator counted fewer frees than were made",
    )
    del held
    balanced(context, context.counters(), reset)


@cases("allocator.peaks")
def running_maximum(context: CaseContext) -> None:
    """`allocated_bytes.all.peak` is the largest value of `allocated` since the last reset: allocations can
    raise the peak, and frees do not lower it."""
    torch.accelerator.memory.reset_peak_memory_stats(context.at(0))
    start = context.counters()
    first = context.bytes_of(300 * KIB)
    second = context.bytes_of(500 * KIB)
    highest = context.counters()
    context.same(
        highest.peak, highest.allocated, "`peak` differs from `allocated` at the highest point"
    )
    context.must(
        highest.allocated > start.allocated,
        "allocating blocks did not raise `allocated`",
        by="allocator.accounting",
    )
    del first
    third = context.bytes_of(10 * KIB)
    later = context.counters()
    context.must(
        later.allocated < highest.allocated,
        "freeing a block did not lower `allocated`",
        by="allocator.accounting",
    )
    context.same(
        later.peak, highest.allocated, "`peak` changed although `allocated` stayed below it"
    )
    del second, third
    context.same(context.counters().peak, highest.allocated, "freeing blocks changed `peak`")


@cases("allocator.peaks")
def reset(context: CaseContext) -> None:
    """reset_peak_memory_stats sets every peak to the current value."""
    held = context.bytes_of(64 * KIB)
    context.bytes_of(4 * MIB)
    before = context.counters()
    context.must(
        before.peak > before.allocated,
        "`peak` is not above `allocated` after a large block was freed",
    )
    torch.accelerator.memory.reset_peak_memory_stats(context.at(0))
    wrong = [each for each in peaks(context.counters()) if each[1] != each[2]]
    context.same(
        wrong,
        [],
        "reset_peak_memory_stats left peaks that differ from the current value; each is given as (statistic, current value, peak)",
    )
    del held


@cases("allocator.peaks")
def reset_of_each(context: CaseContext) -> None:
    """reset_peak_memory_stats sets the peak of every statistic to the current value, also for small and large
    blocks, for segments, and for inactive split blocks."""
    torch.accelerator.memory.reset_peak_memory_stats(context.at(0))
    held = context.bytes_of(700)
    blocks = [context.bytes_of(size) for size in (700, 5000, 300 * KIB, 3 * MIB, 12 * MIB)]
    del blocks[::2]
    blocks += [context.bytes_of(size) for size in (900, 64 * KIB, 2 * MIB)]
    del blocks
    fresh(context)
    above = [stem for stem, current, peak in peaks(context.counters()) if peak > current]
    context.check(above, "no peak is above its current value after blocks were freed", found=above)
    torch.accelerator.memory.reset_peak_memory_stats(context.at(0))
    wrong = [each for each in peaks(context.counters()) if each[1] != each[2]]
    context.same(
        wrong,
        [],
        "reset_peak_memory_stats left peaks that differ from the current value; each is given as (statistic, current value, peak)",
    )
    del held


@cases("allocator.peaks")
def accumulated(context: CaseContext) -> None:
    """reset_accumulated_memory_stats sets every accumulated total to zero and leaves the current values
    unchanged."""
    held = context.bytes_of(64 * KIB)
    before = context.counters()
    context.must(
        before.get("allocated_bytes.all.allocated") > 0,
        "the total of allocated bytes is zero after an allocation",
    )
    after = reset_totals(context)
    ended = (".allocated", ".freed")
    left = {name: value for name, value in after.all.items() if name.endswith(ended) and value}
    context.same(left, {}, "reset_accumulated_memory_stats left totals above zero")
    context.same(
        after.allocated, before.allocated, "reset_accumulated_memory_stats changed `allocated`"
    )
    del held


@cases("allocator.peaks", indices=2)
def of_one_index(context: CaseContext) -> None:
    """Resetting the statistics of device index 1 leaves those of index 0 as they were."""
    for index in (0, 1):
        context.bytes_of(2 * MIB, index)
    before = context.counters(0)
    context.must(
        before.peak > before.allocated,
        "`peak` of index 0 is not above `allocated` after a large block was freed",
    )
    torch.accelerator.memory.reset_peak_memory_stats(context.at(1))
    reset_totals(context, 1)
    context.same(
        dict(context.counters(0).all),
        dict(before.all),
        "a reset on index 1 changed the statistics of index 0",
    )


@cases("allocator.device_isolation", indices=2, over={"first_index": (0,), "second_index": (1,)})
def others_stay(context: CaseContext, used: int) -> None:
    """Allocating and freeing on one device index changes no counter of the other index."""
    mine, theirs = context.counters(used), context.counters(1 - used)
    blocks = [context.bytes_of(size, used) for size in (100, 60_000, 5 * MIB)]
    context.same(blocks[0].device.index, used, "a block is on the wrong device index")
    now = context.counters(used)
    context.check(
        now.allocated > mine.allocated,
        f"allocating blocks on index {used} did not raise its `allocated`",
    )
    context.same(
        dict(context.counters(1 - used).all),
        dict(theirs.all),
        "allocating on one index changed the counters of the other index",
    )
    del blocks
    after = context.counters(used).allocated
    context.same(
        after, mine.allocated, "freeing the blocks did not restore `allocated` of their index"
    )
    context.same(
        dict(context.counters(1 - used).all),
        dict(theirs.all),
        "freeing blocks of one index changed the counters of the other index",
    )
