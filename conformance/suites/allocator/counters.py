"""What the allocator says of itself: counters, and the recorded history."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.cuda import _memory_viz

from conformance.checks.cases.cases import Cases
from conformance.checks.cases.context import Context, Counters
from conformance.suites.allocator.memory import (
    KIB,
    MIB,
    balanced,
    freed,
    fresh,
    granule,
    kept,
    ordered,
    peaks,
    reset_totals,
    span,
)
from devices.failure import Kind

cases = Cases(Kind.MEMORY)

#: Around the limits of what allocators treat differently: less than a granule, small and large segments, separate segments.
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
def one_block(context: Context, size: int) -> None:
    """A block raises `allocated` by its bytes and at most one granule more, until it is freed."""
    context.bytes_of(size)  # a first use may take what it keeps
    before = context.counters()
    block = context.bytes_of(size)
    during = context.counters()
    context.must(block.numel() == size, "the block has the size that was asked for")
    rise, more = during.allocated - before.allocated, granule(context, size)
    text = f"{size} bytes raise `allocated` by at most {more} more"
    context.check(size <= rise <= size + more, text, found=rise)
    if kept(context, "requested_bytes"):
        asked = during.requested - before.requested
        context.same(asked, size, "`requested` counts the bytes asked for")
    del block
    _as_before(context, before)


@cases("allocator.accounting")
def many_blocks(context: Context) -> None:
    """Blocks of many sizes, freed in another order, are counted one by one."""
    before = context.counters()
    sizes = [context.random.randrange(1, 256 * KIB) for _ in range(64)]
    blocks = {place: context.bytes_of(size) for place, size in enumerate(sizes)}
    during = context.counters()
    rise, most = during.allocated - before.allocated, sum(s + granule(context, s) for s in sizes)
    context.check(sum(sizes) <= rise <= most, "`allocated` rises by their bytes", found=rise)
    left, asked = list(blocks), sum(sizes)
    context.random.shuffle(left)
    for place in left:
        earlier = context.counters().allocated
        del blocks[place]
        asked -= sizes[place]
        now = context.counters()
        fall = earlier - now.allocated
        context.check(fall >= sizes[place], "a free takes its bytes off `allocated`", found=fall)
        if kept(context, "requested_bytes"):
            context.same(now.requested - before.requested, asked, "`requested` follows each free")
    _as_before(context, before)


@cases("allocator.accounting")
def views(context: Context) -> None:
    """A view takes no memory, and the block lives as long as its last view."""
    before = context.counters()
    block = context.bytes_of(8 * KIB)
    during = context.counters()
    context.must(
        during.allocated > before.allocated, "the block was counted", by="allocator.accounting"
    )
    view = block[17:4000]
    context.same(context.counters().allocated, during.allocated, "a view takes no memory")
    del block
    context.same(context.counters().allocated, during.allocated, "the view keeps its block alive")
    del view
    _as_before(context, before)


def _as_before(context: Context, before: Counters) -> None:
    now = context.counters()
    context.same(now.allocated, before.allocated, "`allocated` is as before when all is freed")
    if kept(context, "requested_bytes"):
        context.same(now.requested, before.requested, "`requested` is as before when all is freed")


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
    torch.accelerator.memory.reset_peak_memory_stats(context.at(0))
    start = context.counters()
    first = context.bytes_of(300 * KIB)
    second = context.bytes_of(500 * KIB)
    highest = context.counters()
    context.same(highest.peak, highest.allocated, "`peak` rises with `allocated`")
    context.must(
        highest.allocated > start.allocated, "the blocks were counted", by="allocator.accounting"
    )
    del first
    third = context.bytes_of(10 * KIB)
    later = context.counters()
    context.must(
        later.allocated < highest.allocated, "less is allocated", by="allocator.accounting"
    )
    context.same(later.peak, highest.allocated, "`peak` stays where it was")
    del second, third
    context.same(context.counters().peak, highest.allocated, "frees leave `peak` alone")


@cases("allocator.peaks")
def reset(context: Context) -> None:
    """reset_peak_memory_stats sets every peak to the current value."""
    held = context.bytes_of(64 * KIB)
    context.bytes_of(4 * MIB)
    before = context.counters()
    context.must(before.peak > before.allocated, "more was allocated than is now")
    torch.accelerator.memory.reset_peak_memory_stats(context.at(0))
    wrong = [each for each in peaks(context.counters()) if each[1] != each[2]]
    context.same(wrong, [], "every peak equals the current value")
    del held


@cases("allocator.peaks")
def reset_of_each(context: Context) -> None:
    """A reset sets the peak of every statistic: of small and large blocks, of segments, of parts that were split off."""
    torch.accelerator.memory.reset_peak_memory_stats(context.at(0))
    held = context.bytes_of(700)
    blocks = [context.bytes_of(size) for size in (700, 5000, 300 * KIB, 3 * MIB, 12 * MIB)]
    del blocks[::2]
    blocks += [context.bytes_of(size) for size in (900, 64 * KIB, 2 * MIB)]
    del blocks
    fresh(context)
    above = [stem for stem, current, peak in peaks(context.counters()) if peak > current]
    context.check(above, "peaks are above what is there now", found=above)
    torch.accelerator.memory.reset_peak_memory_stats(context.at(0))
    wrong = [each for each in peaks(context.counters()) if each[1] != each[2]]
    context.same(wrong, [], "every peak equals the current value")
    del held


@cases("allocator.peaks")
def accumulated(context: Context) -> None:
    """reset_accumulated_memory_stats sets every total to zero, and leaves the current values unchanged."""
    held = context.bytes_of(64 * KIB)
    before = context.counters()
    context.must(before.get("allocated_bytes.all.allocated") > 0, "bytes were counted in a total")
    after = reset_totals(context)
    ended = (".allocated", ".freed")
    left = {name: value for name, value in after.all.items() if name.endswith(ended) and value}
    context.same(left, {}, "every total is zero")
    context.same(after.allocated, before.allocated, "the allocated value is unchanged")
    del held


@cases("allocator.peaks", indices=2)
def of_one_index(context: Context) -> None:
    """A reset acts on its own device index."""
    for index in (0, 1):
        context.bytes_of(2 * MIB, index)
    before = context.counters(0)
    context.must(before.peak > before.allocated, "more was allocated on index 0 than is now")
    torch.accelerator.memory.reset_peak_memory_stats(context.at(1))
    reset_totals(context, 1)
    context.same(dict(context.counters(0).all), dict(before.all), "index 0 keeps its statistics")


@cases("allocator.device_isolation", indices=2, over={"first_index": (0,), "second_index": (1,)})
def others_stay(context: Context, used: int) -> None:
    """Allocation on one index moves no counter of another."""
    mine, theirs = context.counters(used), context.counters(1 - used)
    blocks = [context.bytes_of(size, used) for size in (100, 60_000, 5 * MIB)]
    context.same(blocks[0].device.index, used, "the blocks are where they were asked for")
    now = context.counters(used)
    context.check(now.allocated > mine.allocated, f"the counters of index {used} moved")
    context.same(dict(context.counters(1 - used).all), dict(theirs.all), "no other counter moved")
    del blocks
    after = context.counters(used).allocated
    context.same(after, mine.allocated, "frees are counted on the index of the blocks")
    context.same(dict(context.counters(1 - used).all), dict(theirs.all), "and on no other index")


_ACTIONS = ("alloc", "free_requested", "free_completed")


@contextmanager
def _recorded(context: Context) -> Iterator[None]:
    context.own("record_history")("all")
    try:
        yield
    finally:
        context.own("record_history")(None)


def _trace(context: Context) -> list[dict[str, Any]]:
    return list(context.own("snapshot")()["device_traces"][0])


@cases(
    "allocator.history",
    requires={"pointers"},
    over={"small": (3 * KIB,), "uneven": (70_001,), "large": (5 * MIB,)},
)
def one_of_each(context: Context, size: int) -> None:
    """A block has one alloc, one free_requested and one free_completed, with its address and stream."""
    stream = context.current_stream()
    with _recorded(context):
        address, _ = freed(context, size)
        events = [event for event in _trace(context) if event["action"] in _ACTIONS]
    context.must(events, "something was recorded")
    mine = [event for event in events if event["addr"] == address]
    actions = [event["action"] for event in mine]
    context.same(actions, list(_ACTIONS), "the block's events, in order")
    sizes = {event["size"] for event in mine}
    enough = len(sizes) == 1 and min(sizes) >= size
    context.check(enough, f"each says at least {size} bytes", found=sizes)
    if context.has("native_handle"):
        streams, known = {each["stream"] for each in mine}, {stream.native_handle, stream.stream_id}
        context.check(streams <= known, "each names the stream", expected=known, found=streams)


@cases("allocator.history", requires={"pointers", "streams", "native_handle"})
def of_its_stream(context: Context) -> None:
    """The events of a block name the stream that it was allocated on, and its free the same one."""
    streams = context.streams()
    with _recorded(context):
        places = []
        for stream in streams:
            with stream:
                places.append(freed(context, 3 * KIB)[0])
        events = [event for event in _trace(context) if event["action"] in _ACTIONS]
    for stream, place in zip(streams, places, strict=True):
        named = {each["stream"] for each in events if each["addr"] == place}
        known = {stream.native_handle, stream.stream_id}
        context.check(named, "its events are there")
        if places[0] != places[1]:
            context.check(named <= known, "each names its stream", expected=known, found=named)
        else:  # one address served both
            every = {each for one in streams for each in (one.native_handle, one.stream_id)}
            context.check(named <= every, "each names a stream", expected=every, found=named)


@cases("allocator.history", requires={"pointers"})
def in_order(context: Context) -> None:
    """The events of several blocks are in the order in which they happened."""
    with _recorded(context):
        blocks = [context.bytes_of(size) for size in (1000, 90_000, 3 * MIB)]
        places = [span(block)[0] for block in blocks]
        for _ in range(3):
            blocks.pop()
        events = [e for e in _trace(context) if e["action"] in ("alloc", "free_requested")]
    wanted = [("alloc", place) for place in places]
    wanted += [("free_requested", place) for place in reversed(places)]
    context.same([(e["action"], e["addr"]) for e in events], wanted, "every event, in order")


#: The states of the blocks that a segment of the snapshot counts, by the name of the sum.
_STATES = {
    "allocated_size": ("active_allocated",),
    "active_size": ("active_allocated", "active_pending_free", "active_awaiting_free"),
}


def _segments(context: Context) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = context.own("snapshot")()["segments"]
    return [segment for segment in found if segment["device"] == 0]


@cases("allocator.history", requires={"allocator_statistics"})
def sums(context: Context) -> None:
    """The snapshot's segments sum to reserved, its blocks to allocated; what a segment says of itself is its blocks' sum."""
    blocks = [context.bytes_of(size) for size in (1000, 90_000, 3 * MIB)]
    now, segments = context.counters(), _segments(context)
    context.must(len(blocks) == 3 and segments, "there are segments")
    total = sum(segment["total_size"] for segment in segments)
    context.same(total, now.reserved, "the segments sum to `reserved`")
    every = [block for segment in segments for block in segment["blocks"]]
    live = sum(block["size"] for block in every if block["state"] == "active_allocated")
    context.same(live, now.allocated, "the live blocks sum to `allocated`")
    parts = [sum(block["size"] for block in segment["blocks"]) for segment in segments]
    totals = [segment["total_size"] for segment in segments]
    context.same(parts, totals, "the blocks of each segment fill it")
    for name, states in _STATES.items():
        if not (told := [segment for segment in segments if name in segment]):
            continue
        held = [sum(b["size"] for b in s["blocks"] if b["state"] in states) for s in told]
        found = [segment[name] for segment in told]
        context.same(found, held, f"`{name}` of each segment is the sum of its blocks")


#: What torch documents of each segment and block of a snapshot (``torch.cuda.memory._snapshot``), and its type.
_SEGMENT = {
    **dict.fromkeys(("address", "total_size", "stream", "allocated_size", "active_size"), int),
    "segment_type": str,
    "blocks": list,
}
_BLOCK = {"size": int, "requested_size": int, "state": str, "frames": list}


@cases("allocator.history")
def documented(context: Context) -> None:
    """Segments and blocks of the snapshot have the documented fields; a block knows how many bytes were requested."""
    blocks = [context.bytes_of(size) for size in (1000, 90_000, 3 * MIB)]
    segments = _segments(context)
    context.must(len(blocks) == 3 and segments, "there are segments")
    every = [block for segment in segments for block in segment["blocks"]]
    for what, fields, found in (("segment", _SEGMENT, segments), ("block", _BLOCK, every)):
        for name, kind in fields.items():
            right = all(isinstance(each.get(name), kind) for each in found)
            context.check(right, f"each {what} has its `{name}`: {kind.__name__}")
    sorts = {segment["segment_type"] for segment in segments}
    context.check(sorts <= {"small", "large"}, "a segment is small or large", found=sorted(sorts))
    live = [b["requested_size"] for b in every if b["state"] == "active_allocated"]
    for block in blocks:
        size = block.numel()
        text = f"a block of {size} bytes has them as its `requested_size`"
        context.check(size in live, text, found=sorted(set(live)))


@cases("allocator.history", requires={"pointers"})
def exact_pointers(context: Context) -> None:
    """A live block is in the snapshot under its address."""
    blocks = [context.bytes_of(size) for size in (1000, 90_000, 3 * MIB)]
    there = {
        block.get("address", block.get("addr")): block["state"]
        for segment in _segments(context)
        for block in segment["blocks"]
    }
    for block in blocks:
        state = there.get(span(block)[0])
        context.same(state, "active_allocated", "a live block is found by its address")


@cases("allocator.history")
def visualiser(context: Context) -> None:
    """The snapshot can be pickled, and torch's memory visualiser reads it."""
    fresh(context)
    with _recorded(context):
        block = context.bytes_of(50_000)
        snapshot = context.own("snapshot")()
    read = pickle.loads(pickle.dumps(snapshot))
    context.must(block.numel() == 50_000, "the block was there")
    count = f"segments: {len(read['segments'])}"
    context.check(count in _memory_viz.segsum(read), "segsum reads it", expected=count)
    page = _memory_viz.trace_plot(read)
    context.check("<script" in page, "trace_plot makes a page of it", found=page[:80])
