"""The events family: what an event marks, and what it says."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from conformance.checks.cases.cases import Cases
from conformance.checks.cases.context import Context
from conformance.checks.cases.in_flight import SOON, WaitingCall
from conformance.checks.clock import Clock, comes_to_be
from conformance.suites.streams.work import (
    filled,
    held,
    leaves,
    queue,
    same_everywhere,
    special,
    step,
    two,
)
from devices.failure import Kind

cases = Cases(Kind.ORDER)


@dataclass(frozen=True, slots=True)
class _Kind:
    """How events and streams of one sort are made: torch's generic ones, or the device's own."""

    event: Callable[..., Any]
    stream: Callable[..., Any]


def _own(context: Context) -> _Kind:
    made = context.own("stream")
    return _Kind(context.own("event"), lambda index=0: made(device=context.at(index)))


def _kinds(context: Context) -> Iterator[_Kind]:
    """The generic classes, and the device's own if the descriptor names them."""
    yield _Kind(context.event, context.stream)
    if {"event", "stream"} <= set(context.descriptor.functions):
        yield _own(context)


@cases("events.record")
def later_work_is_not_in_it(context: Context) -> None:
    """A record is of the stream's work until the call, and of nothing later."""
    for kind in _kinds(context):
        event, stream, tensor = kind.event(), kind.stream(), filled(context, 1)
        with stream:
            step(tensor, 4)
            event.record()
        with context.hold(stream):
            context.check(context.ends(event), "the event is done while later work is held")


@cases("events.record")
def behind_held_work(context: Context) -> None:
    """A record after work queued first is not done while that work is held."""
    for kind in _kinds(context):
        event, (stream, other) = kind.event(), two(context, make=kind.stream)
        other.synchronize()
        with context.hold(stream) as hold:
            with stream:
                event.record()
            hold.waits(event, "it waits with its stream")
        event.synchronize()
        context.check(event.query(), "it is done in the end")


@cases("events.record")
def takes_the_point_of_the_call(context: Context) -> None:
    """A record takes its point when it is called, not when the stream comes to it."""
    for kind in _kinds(context):
        event, stream = kind.event(), kind.stream()
        with context.hold(stream) as first:
            with stream:
                event.record()
            with context.hold(stream):
                first.release()
                context.check(context.ends(event), "the event is done while later work is held")


@cases("events.record")
def moved_away(context: Context) -> None:
    """A second record elsewhere makes the event forget the first."""
    for kind in _kinds(context):
        event, (busy, idle) = kind.event(), two(context, make=kind.stream)
        with context.hold(busy) as hold:
            event.record(busy)
            event.record(idle)
            context.check(context.ends(event), "the event is done as its latest record is")
            returned = hold.call(event.synchronize, SOON).early
            context.check(returned, "synchronize returns as the latest record is done")


@cases("events.record", over={"moved": (True,), "synchronize_waits": (False,)})
def of_the_latest(context: Context, moved: bool) -> None:
    """Query and synchronize are about the latest record: synchronize returns when its work is done, not before."""
    for kind in _kinds(context):
        event, (stream, _) = kind.event(), two(context, make=kind.stream)
        if moved:
            event.record(stream)
            event.synchronize()
            context.check(event.query(), "the first record is done")
        with held(context, stream) as hold:
            event.record(stream)
            hold.pending("query is about the latest record", event)
            hold.keeps_waiting(event.synchronize, "synchronize waits for the latest record")
        context.check(event.query(), "the latest record is done")


@cases("events.record", over={"on_the_default_stream": ("default",)})
@cases("events.record", requires={"stream_priority"}, over={"on_a_priority_stream": ("priority",)})
def on_other_kinds(context: Context, kind: str) -> None:
    """Query and synchronize are about work of the default stream and of one with a priority too, also once a stream
    waits for the event."""
    stream, waiting, event = special(context, kind), context.stream(), context.event()
    context.must(stream != waiting, "the streams differ", by="streams.identity")
    with held(context, stream) as hold:
        event.record(stream)
        waiting.wait_event(event)
        hold.pending("query is False while the work is in flight", event)
        hold.keeps_waiting(event.synchronize, "synchronize waits for it")
    context.check(event.query(), "the event is done")
    waiting.synchronize()


@cases("events.record")
def never_recorded(context: Context) -> None:
    """An event that was never recorded queries True, and synchronising it returns."""
    for kind in _kinds(context):
        event = kind.event()
        context.check(event.query(), "it queries True")
        with WaitingCall(event.synchronize) as call:
            context.check(call.ended(SOON), "synchronize returns")


@cases("events.record")
def recorded_by_the_stream(context: Context) -> None:
    """Stream.record_event gives an event at the stream's point, or moves the one that it is given."""
    stream, _ = two(context)
    own = context.event()
    with held(context, stream) as hold:
        made = stream.record_event()
        stream.record_event(own)
        hold.pending("both wait for the work", made, own)
    stream.synchronize()
    context.same([made.query(), own.query()], [True, True], "both are done with it")


@cases("events.record", own_process=True, slow=True, seconds=30.0)
def again_after_its_wait(context: Context) -> None:
    """A stream may record an event, wait for it and record it again: the calls return, and the event is done."""
    for kind in _kinds(context):
        event, stream = kind.event(), kind.stream()

        def chain(event: Any = event, stream: Any = stream) -> None:
            event.record(stream)
            event.wait(stream)
            event.record(stream)

        with WaitingCall(chain) as call:
            context.check(call.ended(SOON), "record, wait and record on one stream return")
        context.check(context.ends(event), "the event is done")


#: Seconds between two events: much more than clocks differ by.
_APART = 0.03


def _work(context: Context, milliseconds: float) -> None:
    """Work that takes some time on the current stream."""
    if context.descriptor.busy is not None:
        context.descriptor.busy(milliseconds)
        return
    tensor = torch.ones(2**20, device=context.device)
    for _ in range(round(4 * milliseconds)):
        tensor.mul_(1.0001)


@cases("events.elapsed")
def grows(context: Context) -> None:
    """The time between two events is at least 0, and grows with the work between them."""
    for kind in _kinds(context):
        first, second, third = (kind.event(enable_timing=True) for _ in range(3))
        stream = kind.stream()
        with stream:
            _work(context, 1.0)
            first.record()
            _work(context, 1.0)
            second.record()
            _work(context, 4.0)
            third.record()
        stream.synchronize()
        one, both = first.elapsed_time(second), first.elapsed_time(third)
        context.check(one >= 0, "a time is not negative", found=one)
        context.check(one < both, "it grows with the work between", found=(one, both))
        context.check(first.elapsed_time(first) >= 0, "an event is not before itself")


@cases("events.elapsed")
def in_milliseconds(context: Context) -> None:
    """The time between two events is in milliseconds: it lies within what the host's clock saw around them."""
    for kind in _kinds(context):
        first, second = (kind.event(enable_timing=True) for _ in range(2))
        stream, clock = kind.stream(), time.perf_counter
        stream.synchronize()
        before = clock()
        first.record(stream)
        stream.synchronize()
        between = clock()
        time.sleep(_APART)
        after = clock()
        second.record(stream)
        stream.synchronize()
        most, least = 1e3 * (clock() - before), 1e3 * (after - between)
        found = first.elapsed_time(second)
        text = f"a time is in milliseconds: from {least:.1f} to {most:.1f} ms passed on the host"
        context.check(0.9 * least - 1 <= found <= 1.1 * most + 1, text, found=found)


@cases("events.elapsed", over={"untimed": (False,), "unrecorded": (True,)})
def without_time(context: Context, timed: bool) -> None:
    """Events without timing, and events that were never recorded, raise ValueError, at either end."""
    text = "no record, no time" if timed else "an untimed event has no time"
    for kind in _kinds(context):
        good, bad = kind.event(enable_timing=True), kind.event(enable_timing=timed)
        stream = kind.stream()
        good.record(stream)
        if not timed:
            bad.record(stream)
        stream.synchronize()
        for start, end in ((good, bad), (bad, good)):
            context.raises(ValueError, start.elapsed_time, end, text=text)


@cases("events.elapsed", indices=2)
def across_indices(context: Context) -> None:
    """Events of two indices have no time between them: RuntimeError or ValueError."""
    for kind in _kinds(context):
        events = [kind.event(enable_timing=True) for _ in range(2)]
        for index, event in enumerate(events):
            event.record(kind.stream(index))
            event.synchronize()
        text = "no time between events of two indices"
        for start, end in (events, reversed(events)):
            context.raises((RuntimeError, ValueError), start.elapsed_time, end, text=text)


@cases("events.elapsed")
def incomplete(context: Context) -> None:
    """Events that are not done raise RuntimeError, or are waited for."""
    for kind in _kinds(context):
        start, end = kind.event(enable_timing=True), kind.event(enable_timing=True)
        stream = kind.stream()
        start.record(stream)

        def ask(start: Any = start, end: Any = end) -> float:
            try:
                return float(start.elapsed_time(end))
            except RuntimeError:
                return -1.0

        with context.hold(stream) as hold:
            end.record(stream)
            call = hold.call(ask)
            refused, text = call.value == -1.0, "an event in flight has no time yet"
            context.check(refused or not call.early, text, found=call.value)
        stream.synchronize()
        context.check(start.elapsed_time(end) >= 0, "it has one when it is done")


@cases("events.identity")
def distinct(context: Context) -> None:
    """Live recorded events have distinct ids."""
    for kind in _kinds(context):
        stream = kind.stream()
        events = [kind.event() for _ in range(8)]
        for event in events:
            event.record(stream)
        stream.synchronize()
        ids = {event.event_id for event in events}
        context.same(len(ids), len(events), "live recorded events have distinct ids")


@cases("events.identity")
def index_is_set_by_the_record(context: Context) -> None:
    """An event has no index before its first record, and that of its stream after it."""
    for index in context.indices:
        for kind in _kinds(context):
            event = kind.event()
            before = event.device
            none = before is None or before.index is None
            context.check(none, "an event begins without an index", found=before)
            event.record(kind.stream(index))
            event.synchronize()
            context.same(event.device, context.at(index), "it takes the index of the stream")


#: Seconds for what another process does.
_OTHER_SECONDS = 120.0


def _file(folder: str, name: str, text: str = "") -> None:
    """Write a file that appears whole."""
    path = Path(folder, name)
    path.with_suffix(".new").write_text(text)
    path.with_suffix(".new").rename(path)


def _awaited(context: Context, folder: str, name: str) -> str:
    """What another process writes into a file."""
    path = Path(folder, name)

    def is_there(seconds: float) -> bool:
        time.sleep(min(seconds, 0.001))
        return path.exists()

    context.must(Clock().wait(is_there, _OTHER_SECONDS), f"the other process says {name!r}")
    return path.read_text()


def waiting_process(context: Context, folder: str) -> None:
    """The process that opens an event by its handle, and waits for it on a new stream."""
    stream, tensor = context.own("stream")(device=context.device), filled(context, 1)
    handle = bytes.fromhex(_awaited(context, folder, "handle"))
    event = context.own("event").from_ipc_handle(context.device, handle)
    _file(folder, "ready")
    _awaited(context, folder, "recorded")
    event.wait(stream)
    queue(stream, tensor, 4)
    waits = not comes_to_be(stream.query) and not event.query()
    _file(folder, "seen")
    context.check(waits, "a stream of another process waits for the event")
    context.check(context.ends(stream, 20.0), "it continues when the event is done")
    context.check(event.query(), "and the event reports that there")
    context.equal(tensor, same_everywhere(7), "the work after it is done")


@cases("events.ipc", slow=True)
def orders_processes(context: Context) -> None:
    """Work of another process waits for an event that it has opened by its handle, before the first record."""
    stream = context.own("stream")(device=context.device)
    event = context.own("event")(interprocess=True)
    with tempfile.TemporaryDirectory() as folder:
        _file(folder, "handle", event.ipc_handle().hex())
        with WaitingCall(
            lambda: context.child(waiting_process, folder), 2 * _OTHER_SECONDS
        ) as call:
            _awaited(context, folder, "ready")
            with context.hold(stream):
                event.record(stream)
                _file(folder, "recorded")
                _awaited(context, folder, "seen")
        context.ended_well(call.value, "the waiting process exits normally")
    context.check(event.query(), "the event is done in this process")


@cases("events.ipc")
def handle_is_stable(context: Context) -> None:
    """An event has one handle; an event that is only for its process has none."""
    event = context.own("event")(interprocess=True)
    context.check(event.ipc_handle() == event.ipc_handle(), "the handle stays the same")
    plain = context.own("event")()
    context.raises((RuntimeError, ValueError), plain.ipc_handle, text="no handle of a plain event")


@cases("events.ipc")
def works_in_its_process(context: Context) -> None:
    """An interprocess event also orders the streams of its own process."""
    first, second = two(context, make=_own(context).stream)
    event, tensor = context.own("event")(interprocess=True), filled(context, 1)
    with context.hold(first) as hold:
        event.record(first)
        event.wait(second)
        queue(second, tensor, 4)
        hold.waits(second, "the other stream waits")
        hold.pending("the event says that it is not done", event)
    leaves(context, second, tensor, 7, "and continues after it")
