"""allocator.history: what the recorded history and the snapshot say of blocks and segments."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch.cuda import _memory_viz

from conformance.allocator.judging import KIB, MIB, fresh, span
from conformance.behaviour.cases import Cases
from conformance.behaviour.context import Context

cases = Cases()

_ACTIONS = ("alloc", "free_requested", "free_completed")


@contextmanager
def _recorded(context: Context) -> Iterator[None]:
    context.own("record_history")("all")
    try:
        yield
    finally:
        context.own("record_history")(None)


def _trace(context: Context, index: int = 0) -> list[dict[str, Any]]:
    return list(context.own("snapshot")()["device_traces"][index])


@cases("allocator.history", over={"small": (3 * KIB,), "uneven": (70_001,), "large": (5 * MIB,)})
def one_of_each(context: Context, size: int) -> None:
    """A block has one alloc, one free_requested and one free_completed, with its address and stream."""
    stream = context.current_stream()
    with _recorded(context):
        block = context.bytes_of(size)
        address = span(block)[0]
        del block
        events = [event for event in _trace(context) if event["action"] in _ACTIONS]
    context.must(events, "something was recorded")
    mine = [event for event in events if event["addr"] == address]
    context.same(
        [event["action"] for event in mine], list(_ACTIONS), "the block's events, in order"
    )
    sizes = {event["size"] for event in mine}
    context.check(
        len(sizes) == 1 and min(sizes) >= size, f"each says at least {size} bytes", got=sizes
    )
    streams = {event["stream"] for event in mine}
    if context.has("native_handle"):
        expected = {stream.native_handle, stream.stream_id}
        context.check(streams <= expected, "each names the stream", expected=expected, got=streams)


@cases("allocator.history")
def in_order(context: Context) -> None:
    """The events of several blocks stand in the order in which they happened."""
    with _recorded(context):
        blocks = [context.bytes_of(size) for size in (1000, 90_000, 3 * MIB)]
        places = [span(block)[0] for block in blocks]
        for _ in range(3):
            blocks.pop()
        events = [e for e in _trace(context) if e["action"] in ("alloc", "free_requested")]
    wanted = [("alloc", place) for place in places]
    wanted += [("free_requested", place) for place in reversed(places)]
    context.same([(e["action"], e["addr"]) for e in events], wanted, "every event, in order")


def _segments(context: Context) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = context.own("snapshot")()["segments"]
    return [segment for segment in found if segment["device"] == 0]


@cases("allocator.history", requires={"allocator_statistics"})
def sums(context: Context) -> None:
    """The snapshot's segments sum to reserved, its blocks to allocated."""
    blocks = [context.bytes_of(size) for size in (1000, 90_000, 3 * MIB)]
    now, segments = context.counters(), _segments(context)
    context.must(len(blocks) == 3 and segments, "there are segments")
    total = sum(segment["total_size"] for segment in segments)
    context.same(total, now.reserved, "the segments sum to `reserved`")
    live = [
        block["size"]
        for segment in segments
        for block in segment["blocks"]
        if block["state"] == "active_allocated"
    ]
    context.same(sum(live), now.allocated, "the live blocks sum to `allocated`")
    parts = [sum(block["size"] for block in segment["blocks"]) for segment in segments]
    totals = [segment["total_size"] for segment in segments]
    context.same(parts, totals, "the blocks of each segment fill it")


@cases("allocator.history")
def exact_pointers(context: Context) -> None:
    """A live block stands in the snapshot under its own address."""
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
    context.check("<script" in page, "trace_plot makes a page of it", got=page[:80])
