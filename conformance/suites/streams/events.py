"""Cases about events: the point of a stream that an event marks, the times between events, and events of
several processes."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from conformance.checks.behaviour.queued_work import (
    filled,
    hold_stream,
    leaves,
    queue,
    same_everywhere,
    special,
    step,
    two,
)
from conformance.checks.cases.cases import Cases
from conformance.checks.cases.context import CaseContext
from conformance.checks.cases.exceptions import NotDeclared
from conformance.checks.cases.held_streams import SOON, WaitingCall
from conformance.checks.clock import Clock, comes_to_be
from devices.failure import Kind

cases = Cases(Kind.ORDER)


@dataclass(frozen=True, slots=True)
class _Kind:
    """A pair of functions that make events and streams, either of torch's generic classes or of the device's
    own classes."""

    event: Callable[..., Any]
    stream: Callable[..., Any]


def _own(context: CaseContext) -> _Kind:
    made = context.own("stream")
    return _Kind(context.own("event"), lambda index=0: made(device=context.at(index)))


def _kinds(context: CaseContext) -> Iterator[_Kind]:
    """Yields functions that make objects of torch's generic classes and, if the descriptor names them, of the
    device's own classes."""
    yield _Kind(context.event, context.stream)
    if {"event", "stream"} <= set(context.descriptor.functions):
        yield _own(context)


@cases("events.record")
def later_work_is_not_in_it(context: CaseContext) -> None:
    """An event is complete when the work has finished that was queued on its stream before record(); work that is
    queued later does not delay it."""
    for kind in _kinds(context):
        event, stream, tensor = kind.event(), kind.stream(), filled(context, 1)
        with stream:
            step(tensor, 4)
            event.record()
        with context.hold(stream):
            context.check(
                context.ends(event),
                "the event did not complete although only work that was queued after it is blocked",
            )


@cases("events.record")
def behind_held_work(context: CaseContext) -> None:
    """An event is recorded on a stream behind work that is blocked. The event does not complete while the work
    is blocked, and completes afterwards."""
    for kind in _kinds(context):
        event, (stream, other) = kind.event(), two(context, make=kind.stream)
        other.synchronize()
        with context.hold(stream) as hold:
            with stream:
                event.record()
            hold.waits(event, "the event has completed although its stream is blocked")
        event.synchronize()
        context.check(event.query(), "query() is False after synchronize() of the event")


@cases("events.record")
def takes_the_point_of_the_call(context: CaseContext) -> None:
    """An event marks the point of its stream at the time of record(), not the point at the time when the
    stream reaches the event."""
    for kind in _kinds(context):
        event, stream = kind.event(), kind.stream()
        with context.hold(stream) as first:
            with stream:
                event.record()
            with context.hold(stream):
                first.release()
                context.check(
                    context.ends(event),
                    "the event did not complete although only work that was queued after it is blocked",
                )


@cases("events.record")
def moved_away(context: CaseContext) -> None:
    """An event is recorded on a busy stream and again on an idle stream. Only the latest record counts: query()
    is True and synchronize() returns."""
    for kind in _kinds(context):
        event, (busy, idle) = kind.event(), two(context, make=kind.stream)
        with context.hold(busy) as hold:
            event.record(busy)
            event.record(idle)
            context.check(
                context.ends(event),
                "the event did not complete although the work before its latest record has finished",
            )
            returned = hold.call(event.synchronize, SOON).early
            context.check(returned, "synchronize() waited for an earlier record of the event")


@cases("events.record", over={"moved": (True,), "synchronize_waits": (False,)})
def of_the_latest(context: CaseContext, moved: bool) -> None:
    """query() and synchronize() of an event refer to the latest record of the event: synchronize() returns when
    the work before that record has finished, and not earlier."""
    for kind in _kinds(context):
        event, (stream, _) = kind.event(), two(context, make=kind.stream)
        if moved:
            event.record(stream)
            event.synchronize()
            context.check(event.query(), "query() is False after synchronize() of the event")
        with hold_stream(context, stream) as hold:
            event.record(stream)
            hold.pending("query() is True although the latest record has not completed", event)
            hold.keeps_waiting(
                event.synchronize, "synchronize() returned before the latest record had completed"
            )
        context.check(event.query(), "query() is False after synchronize() of the event")


@cases("events.record", over={"on_the_default_stream": ("default",)})
@cases("events.record", requires={"stream_priority"}, over={"on_a_priority_stream": ("priority",)})
def on_other_kinds(context: CaseContext, kind: str) -> None:
    """An event is recorded on the default stream or on a priority stream. Its query() is False and its
    synchronize() waits while the stream is busy, also if another stream waits for the event."""
    stream, waiting, event = special(context, kind), context.stream(), context.event()
    context.must(
        stream != waiting,
        "the recording stream and the waiting stream are the same",
        by="streams.identity",
    )
    with hold_stream(context, stream) as hold:
        event.record(stream)
        waiting.wait_event(event)
        hold.pending("query() is True while the work is in flight", event)
        hold.keeps_waiting(event.synchronize, "synchronize() returned while the work was in flight")
    context.check(event.query(), "query() is False after synchronize() of the event")
    waiting.synchronize()


@cases("events.record")
def never_recorded(context: CaseContext) -> None:
    """For an event that was never recorded, query() returns True, and synchronize() returns immediately."""
    for kind in _kinds(context):
        event = kind.event()
        context.check(event.query(), "query() of an event that was never recorded is False")
        with WaitingCall(event.synchronize) as call:
            context.check(
                call.ended(SOON), "synchronize() of an event that was never recorded did not return"
            )


@cases("events.record")
def recorded_by_the_stream(context: CaseContext) -> None:
    """Stream.record_event() records an event at the current point of the stream: the event that was passed, or a new
    event, which it returns."""
    stream, _ = two(context)
    own = context.event()
    with hold_stream(context, stream) as hold:
        made = stream.record_event()
        stream.record_event(own)
        hold.pending(
            "an event from record_event() has completed although its stream is blocked", made, own
        )
    stream.synchronize()
    context.same(
        [made.query(), own.query()],
        [True, True],
        "an event from record_event() has not completed after its stream was synchronized",
    )


@cases("events.record", own_process=True, slow=True, seconds=30.0)
def again_after_its_wait(context: CaseContext) -> None:
    """A stream records an event, waits for the event and records it again. The calls return, and the event
    completes."""
    for kind in _kinds(context):
        event, stream = kind.event(), kind.stream()

        def chain(event: Any = event, stream: Any = stream) -> None:
            event.record(stream)
            event.wait(stream)
            event.record(stream)

        with WaitingCall(chain) as call:
            context.check(call.ended(SOON), "record, wait and record on one stream did not return")
        context.check(context.ends(event), "the event did not complete")


#: Seconds between two events, much longer than the clocks of host and device can differ by.
_APART = 0.03


def _work(context: CaseContext, milliseconds: float) -> None:
    """Queues work that takes about the given number of milliseconds on the current stream."""
    if context.descriptor.busy is not None:
        context.descriptor.busy(milliseconds)
        return
    tensor = torch.ones(2**20, device=context.device)
    for _ in range(round(4 * milliseconds)):
        tensor.mul_(1.0001)


@cases("events.elapsed")
def grows(context: CaseContext) -> None:
    """elapsed_time() between two events is at least 0, and grows with the work between the events. It is 0 from an event
    to itself."""
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
        context.check(one >= 0, "elapsed_time() is negative", found=one)
        context.check(
            one < both,
            "elapsed_time() does not grow with the work between the events",
            found=(one, both),
        )
        itself = first.elapsed_time(first)
        context.check(itself == 0, "elapsed_time() of an event to itself is not 0", found=itself)


@cases("events.elapsed", over={"in_milliseconds": (0,)})
@cases("events.elapsed", over={"in_milliseconds_of_another_index": (1,)}, indices=2)
def in_milliseconds(context: CaseContext, index: int) -> None:
    """elapsed_time() returns milliseconds: the result agrees with the times that the host measured around the
    records of the two events, on each device index."""
    for kind in _kinds(context):
        first, second = (kind.event(enable_timing=True) for _ in range(2))
        stream, clock = kind.stream(index), time.perf_counter
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
        text = f"elapsed_time() is not the time in milliseconds ({least:.1f} to {most:.1f} ms passed on the host)"
        context.check(0.9 * least - 1 <= found <= 1.1 * most + 1, text, found=found)


@cases("events.elapsed", over={"untimed": (False,), "unrecorded": (True,)})
def without_time(context: CaseContext, timed: bool) -> None:
    """elapsed_time() raises ValueError if one of the two events was made without timing or was never recorded."""
    kind_of_event = "was never recorded" if timed else "was made without timing"
    text = f"elapsed_time() with an event that {kind_of_event} did not raise ValueError"
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
def across_indices(context: CaseContext) -> None:
    """elapsed_time() between events of two device indices raises RuntimeError or ValueError."""
    for kind in _kinds(context):
        events = [kind.event(enable_timing=True) for _ in range(2)]
        for index, event in enumerate(events):
            event.record(kind.stream(index))
            event.synchronize()
        text = "elapsed_time() between events of two device indices did not raise the documented exception"
        for start, end in (events, reversed(events)):
            context.raises((RuntimeError, ValueError), start.elapsed_time, end, text=text)


@cases("events.elapsed")
def incomplete(context: CaseContext) -> None:
    """elapsed_time() with an event that has not completed yet raises RuntimeError or waits for the event."""
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
            refused, text = (
                call.value == -1.0,
                "elapsed_time() returned although an event has not completed",
            )
            context.check(refused or not call.early, text, found=call.value)
        stream.synchronize()
        context.check(start.elapsed_time(end) >= 0, "elapsed_time() is negative")


@cases("events.identity")
def distinct(context: CaseContext) -> None:
    """Events that are alive and recorded have distinct event_id values."""
    for kind in _kinds(context):
        stream = kind.stream()
        events = [kind.event() for _ in range(8)]
        for event in events:
            event.record(stream)
        stream.synchronize()
        ids = {event.event_id for event in events}
        context.same(
            len(ids),
            len(events),
            "live recorded events share an event_id: there are fewer distinct ids than events",
        )


@cases("events.identity")
def same_after_each_record(context: CaseContext) -> None:
    """An event has the same event_id after each of its records, on one stream or on two."""
    for kind in _kinds(context):
        event, streams = kind.event(), two(context, make=kind.stream)
        ids = []
        for stream in (streams[0], streams[0], streams[1]):
            event.record(stream)
            event.synchronize()
            ids.append(event.event_id)
        context.same(
            ids, [ids[0]] * 3, "the event_id of an event changed when it was recorded again"
        )


@cases("events.identity")
def index_is_set_by_the_record(context: CaseContext) -> None:
    """The device of an event has no index before the first record of the event. After the first record it has
    the index of the stream."""
    for index in context.indices:
        for kind in _kinds(context):
            event = kind.event()
            before = event.device
            none = before is None or before.index is None
            context.check(none, "a new event already has a device index", found=before)
            event.record(kind.stream(index))
            event.synchronize()
            context.same(
                event.device,
                context.at(index),
                "the device of a recorded event differs from the device of its stream",
            )


#: Seconds to wait for the other process.
_OTHER_SECONDS = 120.0


def _file(folder: str, name: str, text: str = "") -> None:
    """Writes a file atomically, so that a reader never sees only a part of its text."""
    path = Path(folder, name)
    path.with_suffix(".new").write_text(text)
    path.with_suffix(".new").rename(path)


def _awaited(context: CaseContext, folder: str, name: str) -> str:
    """Waits until another process has written a file into the folder, and returns the text of the file."""
    path = Path(folder, name)

    def is_there(seconds: float) -> bool:
        time.sleep(min(seconds, 0.001))
        return path.exists()

    context.must(
        Clock().wait(is_there, _OTHER_SECONDS),
        f"the other process did not write the file {name!r} in time",
    )
    return path.read_text()


def waiting_process(context: CaseContext, folder: str) -> None:
    """Runs in the other process of an IPC case: opens an event by its handle, waits for the event on a new
    stream, and checks the result."""
    stream, tensor = context.own("stream")(device=context.device), filled(context, 1)
    handle = bytes.fromhex(_awaited(context, folder, "handle"))
    event = context.own("event").from_ipc_handle(context.device, handle)
    _file(folder, "ready")
    _awaited(context, folder, "recorded")
    event.wait(stream)
    queue(stream, tensor, 4)
    waits = not comes_to_be(stream.query) and not event.query()
    _file(folder, "seen")
    context.check(waits, "a stream of the other process did not wait for the event")
    context.check(
        context.ends(stream, 20.0),
        "the stream of the other process did not continue after the event",
    )
    context.check(
        event.query(),
        "query() of the event is False in the other process although the work before the event has finished",
    )
    context.equal(
        tensor,
        same_everywhere(7),
        "the work after the event gave wrong values in the other process",
    )


@cases("events.ipc", slow=True)
def orders_processes(context: CaseContext) -> None:
    """Another process opens an event by its IPC handle before the event is first recorded. A stream of that process
    that waits for the event sees the work that was queued before the record."""
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
        context.ended_well(call.value, "the waiting process did not exit with status 0")
    context.check(
        event.query(),
        "query() of the event is False in this process although the work before the event has finished",
    )


@cases("events.ipc")
def handle_is_stable(context: CaseContext) -> None:
    """ipc_handle() of an interprocess event returns the same handle at every call. ipc_handle() of an event that is not
    interprocess raises an error."""
    event = context.own("event")(interprocess=True)
    context.check(
        event.ipc_handle() == event.ipc_handle(),
        "two calls of ipc_handle() returned different handles",
    )
    plain = context.own("event")()
    context.raises(
        (RuntimeError, ValueError),
        plain.ipc_handle,
        text="ipc_handle() of an event that is not interprocess did not raise the documented exception",
    )


@cases("events.ipc", over={"works_in_its_process": (0,)})
@cases("events.ipc", over={"works_on_another_index": (1,)}, indices=2)
def works_in_its_process(context: CaseContext, index: int) -> None:
    """An interprocess event also orders two streams of its own process, on each device index."""
    first, second = two(context, index, make=_own(context).stream)
    event, tensor = context.own("event")(interprocess=True), filled(context, 1, index)
    with context.hold(first) as hold:
        event.record(first)
        event.wait(second)
        queue(second, tensor, 4)
        hold.waits(second, "the waiting stream did not wait for the event")
        hold.pending("query() of the event is True while its stream is blocked", event)
    leaves(context, second, tensor, 7, "the work after the event gave wrong values")


@cases("events.ipc")
def latest_record_of_several_streams(context: CaseContext) -> None:
    """An interprocess event is recorded on a busy stream and then on an idle one. Only the latest record counts: query() is
    True and synchronize() returns while the first stream is still busy, and query() stays True when that stream has
    finished. synchronize() waits for a record on a busy stream."""
    first, second = two(context, make=_own(context).stream)
    event, tensor = context.own("event")(interprocess=True), filled(context, 1)
    with context.hold(first) as hold:
        event.record(first)
        hold.waits(event, "an interprocess event has completed although its stream is blocked")
        event.record(second)
        second.synchronize()
        done = context.ends(event)
        context.check(done, "query() is False although the stream of the latest record is idle")
        hold.call(event.synchronize)
    leaves(context, first, tensor, 1, "a record changed a tensor")
    context.check(event.query(), "query() became False when an earlier record was reached")
    with context.hold(first) as hold:
        event.record(first)
        text = (
            "synchronize() of an interprocess event returned before its latest record had completed"
        )
        hold.keeps_waiting(event.synchronize, text)
    context.check(event.query(), "query() is False after synchronize() of an interprocess event")


@cases("events.ipc")
def handle_of_no_event(context: CaseContext) -> None:
    """from_ipc_handle() with a handle that is no event's raises an exception."""
    handle = context.own("event")(interprocess=True).ipc_handle()
    context.must(len(handle) > 1, "ipc_handle() of an event is shorter than two bytes")
    context.raises(
        Exception,
        context.own("event").from_ipc_handle,
        context.device,
        handle[: len(handle) // 2],
        text="from_ipc_handle() with a part of a handle did not raise an exception",
    )


@cases("streams.wait")
def of_both_classes(context: CaseContext) -> None:
    """An event of the device's own class is recorded on a stream of the generic class torch.Stream, and a stream of that class
    waits for it; and the other way round. The event marks the work of its stream, and work after the wait runs after
    that work."""
    kinds = list(_kinds(context))
    if len(kinds) < 2:
        raise NotDeclared("the descriptor names no classes `event` and `stream` of the device")
    for one, other in (kinds, reversed(kinds)):
        event, (stream, waiting) = one.event(), two(context, make=other.stream)
        tensor = filled(context, 1)
        with context.hold(stream) as hold:
            event.record(stream)
            hold.waits(event, "the event has completed although its stream is blocked")
            event.wait(waiting)
            queue(waiting, tensor, 4)
            hold.waits(waiting, "the stream did not wait for an event of another class")
        leaves(context, waiting, tensor, 7, "the work after the event gave wrong values")
        event.synchronize()
        context.check(event.query(), "query() is False after synchronize() of the event")
