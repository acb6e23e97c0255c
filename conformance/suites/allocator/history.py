"""Cases about the allocator's recorded history and its snapshot."""

from __future__ import annotations

import inspect
import pickle
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from typing import Any

from torch.cuda import _memory_viz

from conformance.checks.behaviour.allocator_memory import (
    KIB,
    MIB,
    TOO_MUCH,
    freed,
    fresh,
    has_statistics,
    memory_info,
    new_queue,
    span,
)
from conformance.checks.cases.cases import Cases
from conformance.checks.cases.context import CaseContext
from conformance.checks.cases.exceptions import NotDeclared
from devices.failure import Kind

cases = Cases(Kind.MEMORY)

_ACTIONS = ("alloc", "free_requested", "free_completed")


@contextmanager
def _recorded(context: CaseContext) -> Iterator[None]:
    context.own("record_history")("all")
    try:
        yield
    finally:
        context.own("record_history")(None)


def _trace(context: CaseContext, index: int = 0) -> list[dict[str, Any]]:
    return list(context.own("snapshot")()["device_traces"][index])


@cases(
    "allocator.history",
    requires={"pointers"},
    over={"small": (3 * KIB,), "uneven": (70_001,), "large": (5 * MIB,)},
)
def one_of_each(context: CaseContext, size: int) -> None:
    """While the history is recorded, a block is allocated and freed. The events of the block are alloc,
    free_requested and free_completed, in this order, each with the address, the size and the stream of the
    block."""
    stream = context.current_stream()
    with _recorded(context):
        address, _ = freed(context, size)
        events = [event for event in _trace(context) if event["action"] in _ACTIONS]
    context.must(events, "the recorded memory history has no events")
    mine = [event for event in events if event["addr"] == address]
    actions = [event["action"] for event in mine]
    context.same(
        actions,
        list(_ACTIONS),
        "the recorded events of the block are not alloc, free_requested and free_completed in this order",
    )
    sizes = {event["size"] for event in mine}
    enough = len(sizes) == 1 and min(sizes) >= size
    context.check(enough, f"the events of a block of {size} bytes have a wrong size", found=sizes)
    if context.has("native_handle"):
        streams, known = {each["stream"] for each in mine}, {stream.native_handle, stream.stream_id}
        context.check(
            streams <= known,
            "the events of the block name the wrong stream",
            expected=known,
            found=streams,
        )


@cases("allocator.history", requires={"pointers", "streams", "native_handle"})
def of_its_stream(context: CaseContext) -> None:
    """Blocks are allocated and freed on two streams while the history is recorded. Each event of a block
    names the stream on which the block was allocated."""
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
        context.check(named, "a block has no events in the history")
        if places[0] != places[1]:
            context.check(
                named <= known,
                "the events of a block name the wrong stream",
                expected=known,
                found=named,
            )
        else:  # both streams used the same address
            every = {each for one in streams for each in (one.native_handle, one.stream_id)}
            context.check(
                named <= every,
                "the events of a block name an unknown stream",
                expected=every,
                found=named,
            )


@cases("allocator.history", requires={"pointers"})
def in_order(context: CaseContext) -> None:
    """The recorded events of several blocks are in the order in which the blocks were allocated and freed."""
    with _recorded(context):
        blocks = [context.bytes_of(size) for size in (1000, 90_000, 3 * MIB)]
        places = [span(block)[0] for block in blocks]
        for _ in range(3):
            blocks.pop()
        events = [e for e in _trace(context) if e["action"] in ("alloc", "free_requested")]
    wanted = [("alloc", place) for place in places]
    wanted += [("free_requested", place) for place in reversed(places)]
    context.same(
        [(e["action"], e["addr"]) for e in events],
        wanted,
        "the recorded events are missing or in the wrong order",
    )


_LIVE = ("active_allocated",)
#: For each sum in a segment of the snapshot: the states of the blocks that it counts.
_STATES = {
    "allocated_size": _LIVE,
    "active_size": ("active_allocated", "active_pending_free", "active_awaiting_free"),
}


def _segments(context: CaseContext, index: int = 0) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = context.own("snapshot")()["segments"]
    return [segment for segment in found if segment["device"] == index]


@cases("allocator.history", requires={"pointers"}, indices=2)
def of_another_index(context: CaseContext) -> None:
    """A block is allocated and freed on device index 1 while index 0 is current. Its events are in the history of
    index 1 and in no other, and its segment is one of index 1."""
    size = 3 * KIB
    with _recorded(context):
        block = context.bytes_of(size, 1)
        place = span(block)
        held = [
            any(s["address"] <= place[0] < s["address"] + s["total_size"] for s in segments)
            for segments in (_segments(context, 0), _segments(context, 1))
        ]
        del block
        traces = [_trace(context, index) for index in (0, 1)]
    context.same(held, [False, True], "the segments of index 0 and 1 that hold a block of index 1")
    mine = [[e["action"] for e in t if e.get("addr") == place[0]] for t in traces]
    found = [each for each in mine[1] if each in _ACTIONS]
    context.same(found, list(_ACTIONS), "the history of index 1 does not have the block's events")
    context.same(mine[0], [], "the history of index 0 has events of a block of index 1")


@cases("allocator.history", requires={"pointers"})
def latest_entries(context: CaseContext) -> None:
    """The history is recorded with max_entries=6, and more happens than that. The history has at most 6 events, and
    they are the latest ones. After the recording was stopped, there are none."""
    record = context.own("record_history")
    if "max_entries" not in inspect.signature(record).parameters:
        raise NotDeclared("the device's record_history has no max_entries")
    sizes = [KIB * (3 + 4 * number) for number in range(6)]
    try:
        record("all", max_entries=6)
        places = [freed(context, size)[0] for size in sizes]
        kept = _trace(context)
    finally:
        record(None)
    context.check(len(kept) <= 6, "the history has more than max_entries events", found=len(kept))
    last = [e for e in kept if e["action"] in _ACTIONS][-2:]
    text = "a full history does not end with the latest events"
    wanted = [(action, places[-1]) for action in _ACTIONS[1:]]
    context.same([(e["action"], e["addr"]) for e in last], wanted, text)
    context.check(all(e["size"] >= sizes[-1] for e in last), text, found=[e["size"] for e in last])
    freed(context, KIB)
    context.same(_trace(context), [], "there are events in the history after it was stopped")


@cases("allocator.history", requires={"pointers", "streams"})
def waiting(context: CaseContext) -> None:
    """A block is marked with record_stream for a blocked stream and freed. While the stream is busy, the snapshot gives
    the block a state of its own, neither that of a live block nor that of a free one, and counts it as active, as do the
    statistics."""
    mine, other = context.streams()
    fresh(context)
    with mine:
        block = context.bytes_of(5 * MIB)
    place, size = span(block)[0], block.numel()
    with context.hold(other) as hold:
        block.record_stream(other)
        del block
        segments = _segments(context)
        if context.has("allocator_statistics"):
            _judge_statistics(context, "while a freed block waits for another stream", waits=True)
        hold.must_be_in_flight()
    context.settle()
    states = {
        each.get("address", each.get("addr")): (each["state"], segment["active_size"])
        for segment in segments
        for each in segment["blocks"]
    }
    state, active = states.get(place, ("missing", 0))
    wanted = ("active_pending_free", "active_awaiting_free")
    text = (
        "the snapshot does not give a freed block that another stream still uses the state for it"
    )
    context.check(state in wanted, text, expected=" or ".join(wanted), found=state)
    text = (
        "the active_size of a segment does not count a freed block that another stream still uses"
    )
    context.check(active >= size, text, expected=f"at least {size}", found=active)
    fresh(context)


@cases("allocator.history", requires={"allocator_statistics"})
def sums(context: CaseContext) -> None:
    """In the snapshot, the sizes of the segments add up to `reserved`, and the sizes of the live blocks add up
    to `allocated`. In each segment, the sizes of the blocks add up to total_size, and allocated_size and
    active_size are the sums over the blocks in the matching states."""
    blocks = [context.bytes_of(size) for size in (1000, 90_000, 3 * MIB)]
    now, segments = context.counters(), _segments(context)
    context.must(len(blocks) == 3 and segments, "the snapshot has no segments")
    total = sum(segment["total_size"] for segment in segments)
    context.same(total, now.reserved, "the sizes of the segments do not add up to `reserved`")
    every = [block for segment in segments for block in segment["blocks"]]
    live = sum(block["size"] for block in every if block["state"] == "active_allocated")
    context.same(live, now.allocated, "the sizes of the live blocks do not add up to `allocated`")
    parts = [sum(block["size"] for block in segment["blocks"]) for segment in segments]
    totals = [segment["total_size"] for segment in segments]
    context.same(
        parts, totals, "the sizes of the blocks of a segment do not add up to its total_size"
    )
    for name, states in _STATES.items():
        if not (told := [segment for segment in segments if name in segment]):
            continue
        held = [sum(b["size"] for b in s["blocks"] if b["state"] in states) for s in told]
        found = [segment[name] for segment in told]
        context.same(found, held, f"`{name}` of a segment differs from the sum over its blocks")
    if told := [segment for segment in segments if "requested_size" in segment]:
        held = [sum(b["requested_size"] for b in s["blocks"] if b["state"] in _LIVE) for s in told]
        text = "`requested_size` of a segment differs from the sum over its live blocks"
        context.same([segment["requested_size"] for segment in told], held, text)


#: For each statistic that counts blocks, the one that counts their bytes.
_BYTES = {
    "allocation": "allocated_bytes",
    "active": "active_bytes",
    "inactive_split": "inactive_split_bytes",
}


def _as_in_the_snapshot(segments: list[dict[str, Any]]) -> Counter[str]:
    """Returns the values of statistics that follow from the segments of a snapshot, under the names of memory_stats. A
    block is split if its segment has other blocks, too."""
    found: Counter[str] = Counter()
    for segment in segments:
        for part in ("all", f"{segment['segment_type']}_pool"):
            found[f"segment.{part}.current"] += 1
            found[f"reserved_bytes.{part}.current"] += segment["total_size"]
            for block in segment["blocks"]:
                live, active = block["state"] in _LIVE, block["state"] in _STATES["active_size"]
                split = not active and len(segment["blocks"]) > 1
                for name, counts in (
                    ("allocation", live),
                    ("active", active),
                    ("inactive_split", split),
                ):
                    found[f"{name}.{part}.current"] += counts
                    found[f"{_BYTES[name]}.{part}.current"] += counts * block["size"]
                found[f"requested_bytes.{part}.current"] += live * block["requested_size"]
    return found


def _judge_statistics(context: CaseContext, at: str, waits: bool = False) -> None:
    """Checks that the statistics of blocks and segments are those of the snapshot. Segments that can grow are left out,
    because the device may count their parts. If a freed block ``waits`` for a stream, its requested bytes may still be
    counted: torch's own allocators count them until the block is free."""
    segments, now = _segments(context), context.counters()
    stems = ["allocation", "allocated_bytes", "active", "active_bytes"]
    stems += [] if waits else ["requested_bytes"]
    if not any(segment.get("is_expandable") for segment in segments):
        stems += ["segment", "reserved_bytes", "inactive_split", "inactive_split_bytes"]
    wanted, wrong = _as_in_the_snapshot(segments), {}
    for stem in stems:
        for part in ("all", "small_pool", "large_pool"):
            name = f"{stem}.{part}.current"
            if has_statistics(context, stem) and now.get(name) != wanted[name]:
                wrong[name] = (wanted[name], now.get(name))
    text = "statistics differ from the snapshot (each is given with the value of the snapshot and its own)"
    context.same(wrong, {}, text, at=at)


@cases("allocator.history", requires={"allocator_statistics"})
def statistics(context: CaseContext) -> None:
    """Blocks of many sizes are allocated and freed, and some are cut from larger blocks. Each time, the statistics are those
    of the snapshot: the number and the bytes of segments, of live and active blocks, and of free blocks in segments that
    are split, in total, for small blocks and for large ones."""
    fresh(context)
    _judge_statistics(context, "before blocks were allocated")
    blocks: list[Any] = []
    with new_queue(context):
        for step in range(48):
            if blocks and context.random.random() < 0.45:
                blocks.pop(context.random.randrange(len(blocks)))
            else:
                size = context.random.choice((100, 5000, 300 * KIB, MIB + 1, 3 * MIB, 12 * MIB))
                blocks.append(context.bytes_of(size))
            if step % 3 == 2:
                _judge_statistics(context, f"after step {step}")
        while blocks:
            blocks.pop(context.random.randrange(len(blocks)))
            _judge_statistics(context, f"with {len(blocks)} blocks left")
    fresh(context)
    _judge_statistics(context, "after empty_cache")


#: The fields of segments and blocks that torch documents for ``torch.cuda.memory._snapshot``, with their
#: types.
_SEGMENT = {
    **dict.fromkeys(("address", "total_size", "stream", "allocated_size", "active_size"), int),
    "segment_type": str,
    "blocks": list,
}
_BLOCK = {"size": int, "requested_size": int, "state": str, "frames": list}
#: The same for the events of the history.
_EVENT = {"action": str, "size": int, "stream": int, "frames": list}


@cases("allocator.history")
def documented(context: CaseContext) -> None:
    """Segments and blocks of the snapshot have the documented fields with the documented types, and
    requested_size of a live block is the requested number of bytes."""
    blocks = [context.bytes_of(size) for size in (1000, 90_000, 3 * MIB)]
    segments = _segments(context)
    context.must(len(blocks) == 3 and segments, "the snapshot has no segments")
    every = [block for segment in segments for block in segment["blocks"]]
    for what, fields, found in (("segment", _SEGMENT, segments), ("block", _BLOCK, every)):
        for name, kind in fields.items():
            right = all(isinstance(each.get(name), kind) for each in found)
            context.check(
                right, f"a {what} of the snapshot lacks the field `{name}` of type {kind.__name__}"
            )
    pools = [segment.get("segment_pool_id") for segment in segments]
    right = all(isinstance(pool, tuple) and len(pool) == 2 for pool in pools)
    text = "a segment of the snapshot has no `segment_pool_id` of two integers"
    context.check(right, text, found=pools)
    sorts = {segment["segment_type"] for segment in segments}
    context.check(
        sorts <= {"small", "large"},
        "a segment_type is neither small nor large",
        found=sorted(sorts),
    )
    live = [b["requested_size"] for b in every if b["state"] == "active_allocated"]
    for block in blocks:
        size = block.numel()
        text = f"no live block of the snapshot has the `requested_size` {size}"
        context.check(size in live, text, found=sorted(set(live)))


@cases("allocator.history")
def events_documented(context: CaseContext) -> None:
    """The events of the history have the documented fields with the documented types. The event of an out-of-memory error
    has `device_free`, the bytes that are free on the device, instead of an address, and its size is the number of bytes
    that were requested."""
    with _recorded(context):
        freed_block = context.bytes_of(3 * KIB)
        del freed_block
        with suppress(RuntimeError):
            context.bytes_of(TOO_MUCH)
        events = _trace(context)
    context.must(events, "the recorded memory history has no events")
    for name, kind in _EVENT.items():
        right = all(isinstance(each.get(name), kind) for each in events)
        text = f"an event of the history lacks the field `{name}` of type {kind.__name__}"
        context.check(right, text)
    refused = [each for each in events if each["action"] == "oom"]
    others = [each for each in events if each["action"] != "oom"]
    right = all(isinstance(each.get("addr"), int) for each in others)
    context.check(right, "an event of the history lacks the field `addr` of type int")
    context.check(refused, "an out-of-memory error has no event `oom` in the history")
    for each in refused:
        text = "the event of an out-of-memory error has another size than what was requested"
        context.same(each["size"], TOO_MUCH, text)
        context.check("addr" not in each, "the event of an out-of-memory error has an address")
        free = each.get("device_free")
        text = "the event of an out-of-memory error lacks the field `device_free` of type int"
        context.check(isinstance(free, int), text, found=free)
        if isinstance(free, int) and context.has("allocator_memory_info"):
            now, total = memory_info(context)
            text = "`device_free` of an out-of-memory error is below 0 or above the memory of the device"
            context.check(0 <= free <= total, text, expected=f"0 to {total}", found=free)
            # Other processes may use memory meanwhile, but not half of it.
            text = "`device_free` of an out-of-memory error is far from the free memory that get_memory_info reports"
            context.check(abs(free - now) <= total // 2, text, expected=now, found=free)


@cases("allocator.history", requires={"pointers"})
def segments_come_and_go(context: CaseContext) -> None:
    """While the history is recorded, a block is allocated for which the allocator asks the device for a new segment, and
    after it was freed, empty_cache() gives the segment back. The history has one segment_alloc and one segment_free with
    the address of the segment, and both have its size, which is that of the segment in the snapshot."""
    size = 24 * MIB
    fresh(context)
    with _recorded(context):
        block = context.bytes_of(size)
        place = span(block)[0]
        segments = [each for each in _segments(context) if each["address"] == place]
        del block
        fresh(context)
        events = _trace(context)
    context.must(
        len(segments) == 1, "no segment of the snapshot begins at the address of a new large block"
    )
    for action in ("segment_alloc", "segment_free"):
        mine = [each for each in events if each["action"] == action and each["addr"] == place]
        text = f"the history does not have one {action} for a segment that was allocated and given back"
        context.same(len(mine), 1, text, Kind.COUNT)
        text = f"{action} in the history has another size than the segment in the snapshot"
        context.same(mine[0]["size"], segments[0]["total_size"], text)
    left = [each for each in _segments(context) if each["address"] == place]
    context.same(left, [], "a segment that was given back is still in the snapshot")


@cases("allocator.history", requires={"pointers"})
def kinds_of_segments(context: CaseContext) -> None:
    """In the snapshot, the segment of a live block names the stream on which the block was allocated, and its type: large
    for a block of 24 MiB (more than 1 MB, as documented), and small for one of 3 KiB."""
    stream = context.stream() if context.has("streams") else None
    with nullcontext() if stream is None else stream:
        blocks = [context.bytes_of(24 * MIB), context.bytes_of(3 * KIB)]
    segments = _segments(context)
    for block, sort in zip(blocks, ("large", "small"), strict=True):
        place = span(block)[0]
        mine = [s for s in segments if s["address"] <= place < s["address"] + s["total_size"]]
        context.same(len(mine), 1, "a live block is not in exactly one segment", Kind.COUNT)
        text = f"the segment of a block of {block.numel()} bytes has the wrong `segment_type`"
        context.same(mine[0]["segment_type"], sort, text)
        if stream is not None and context.has("native_handle"):
            known = {stream.native_handle, stream.stream_id}
            text = "the segment of a block names another stream than the one it was allocated on"
            context.check(mine[0]["stream"] in known, text, expected=known, found=mine[0]["stream"])


@cases("allocator.history", requires={"pointers"})
def exact_pointers(context: CaseContext) -> None:
    """The snapshot contains every live block under the block's address, in the state active_allocated."""
    blocks = [context.bytes_of(size) for size in (1000, 90_000, 3 * MIB)]
    there = {
        block.get("address", block.get("addr")): block["state"]
        for segment in _segments(context)
        for block in segment["blocks"]
    }
    for block in blocks:
        state = there.get(span(block)[0])
        context.same(
            state,
            "active_allocated",
            "a live block is missing from the snapshot, or the snapshot gives it the wrong state",
        )


@cases("allocator.history")
def visualiser(context: CaseContext) -> None:
    """The snapshot can be pickled, and torch.cuda._memory_viz can summarize and plot it."""
    fresh(context)
    with _recorded(context):
        block = context.bytes_of(50_000)
        snapshot = context.own("snapshot")()
    read = pickle.loads(pickle.dumps(snapshot))
    context.must(block.numel() == 50_000, "the block does not have the requested size")
    count = f"segments: {len(read['segments'])}"
    context.check(
        count in _memory_viz.segsum(read),
        "_memory_viz.segsum does not report the segments of the snapshot",
        expected=count,
    )
    page = _memory_viz.trace_plot(read)
    context.check(
        "<script" in page, "_memory_viz.trace_plot returned no HTML page", found=page[:80]
    )
