"""The events family: what an event marks, and what it says."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from conformance.behaviour.cases import Cases
from conformance.behaviour.context import Context
from conformance.behaviour.watching import GLANCE, Aside, ends, ends_early
from conformance.streams.judging import filled, step, two

cases = Cases()


def _made(context: Context, **options: Any) -> Iterator[Any]:
    """An event of the generic class, and one of the device's own where the descriptor names it."""
    yield context.event(**options)
    if "event" in context.descriptor.functions:
        yield context.own("event")(**options)


# -- record


@cases("events.record")
def later_work_is_not_in_it(context: Context) -> None:
    """A record is of the stream's work until the call, and of nothing later."""
    for event in _made(context):
        stream, tensor = context.stream(), filled(context, 1)
        with stream:
            step(tensor, 4)
            event.record()
        with context.hold(stream) as hold:
            context.check(ends(event), "the event is done while later work is held")
            hold.must_be_in_flight()


@cases("events.record")
def behind_held_work(context: Context) -> None:
    """A record behind work queued first is not done while that work is held."""
    for event in _made(context):
        stream, other = two(context)
        other.synchronize()
        with context.hold(stream) as hold:
            with stream:
                event.record()
            context.check(not ends_early(event, hold, 0.002), "it waits with its stream")
        event.synchronize()
        context.check(event.query(), "it is done in the end")


@cases("events.record")
def takes_the_point_of_the_call(context: Context) -> None:
    """A record takes its point when it is called, not when the stream comes to it."""
    for event in _made(context):
        stream = context.stream()
        with context.hold(stream) as first:
            with stream:
                event.record()
            with context.hold(stream) as second:
                first.release()
                context.check(ends(event), "the event is done while later work is held")
                second.must_be_in_flight()


@cases("events.record")
def moved(context: Context) -> None:
    """A second record moves the event: query and synchronize are about the latest."""
    for event in _made(context):
        stream, _ = two(context)
        event.record(stream)
        event.synchronize()
        context.check(event.query(), "the first record is done")
        with context.hold(stream) as hold:
            event.record(stream)
            context.check(not event.query(), "query is about the latest record")
            with Aside(event.synchronize) as call:
                early = call.ended(GLANCE)
                hold.must_be_in_flight()
                hold.release()
            context.check(not early, "synchronize waits for the latest record")
        context.check(event.query(), "the latest record is done")


@cases("events.record")
def moved_away(context: Context) -> None:
    """A second record elsewhere makes the event forget the first."""
    for event in _made(context):
        busy, idle = two(context)
        with context.hold(busy) as hold:
            event.record(busy)
            event.record(idle)
            context.check(ends(event), "the event is done as its latest record is")
            with Aside(event.synchronize) as call:
                returned = call.ended(1.0)
                hold.must_be_in_flight()
                hold.release()
            context.check(returned, "synchronize returns as the latest record is done")


@cases("events.record")
def synchronize_waits(context: Context) -> None:
    """Synchronising an event returns when the work before it is done, not before."""
    for event in _made(context):
        stream, _ = two(context)
        with context.hold(stream) as hold:
            event.record(stream)
            with Aside(event.synchronize) as call:
                early = call.ended(GLANCE)
                hold.must_be_in_flight()
                hold.release()
            context.check(not early, "it waits while the work is held")
        context.check(event.query(), "the event is done when it returns")


@cases("events.record")
def never_recorded(context: Context) -> None:
    """An event that was never recorded queries True, and synchronising it returns."""
    for event in _made(context):
        context.check(event.query(), "it queries True")
        with Aside(event.synchronize) as call:
            context.check(call.ended(1.0), "synchronize returns")


@cases("events.record")
def recorded_by_the_stream(context: Context) -> None:
    """Stream.record_event gives an event at the stream's point, or moves the one that it is given."""
    stream, _ = two(context)
    own = context.event()
    with context.hold(stream) as hold:
        made = stream.record_event()
        stream.record_event(own)
        context.same([made.query(), own.query()], [False, False], "both stand behind the work")
        hold.must_be_in_flight()
    stream.synchronize()
    context.same([made.query(), own.query()], [True, True], "both are done with it")


# -- elapsed


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
    for first, second, third in zip(
        *(_made(context, enable_timing=True) for _ in range(3)), strict=True
    ):
        stream = context.stream()
        with stream:
            _work(context, 1.0)
            first.record()
            _work(context, 1.0)
            second.record()
            _work(context, 4.0)
            third.record()
        stream.synchronize()
        one, both = first.elapsed_time(second), first.elapsed_time(third)
        context.check(one >= 0, "a time is not negative", got=one)
        context.check(one < both, "it grows with the work between", got=(one, both))
        context.check(first.elapsed_time(first) >= 0, "an event is not before itself")


@cases("events.elapsed")
def untimed(context: Context) -> None:
    """Events without timing raise ValueError, at either end."""
    for timed, other in zip(
        _made(context, enable_timing=True), _made(context, enable_timing=False), strict=True
    ):
        stream = context.stream()
        timed.record(stream)
        other.record(stream)
        stream.synchronize()
        for start, end in ((timed, other), (other, timed)):
            context.raises(ValueError, start.elapsed_time, end, text="an untimed event has no time")


@cases("events.elapsed")
def unrecorded(context: Context) -> None:
    """Events that were never recorded raise ValueError, at either end."""
    for recorded, other in zip(
        _made(context, enable_timing=True), _made(context, enable_timing=True), strict=True
    ):
        stream = context.stream()
        recorded.record(stream)
        stream.synchronize()
        for start, end in ((recorded, other), (other, recorded)):
            context.raises(ValueError, start.elapsed_time, end, text="no record, no time")


@cases("events.elapsed")
def incomplete(context: Context) -> None:
    """Events that are not done raise RuntimeError, or are waited for."""
    for start, end in zip(
        _made(context, enable_timing=True), _made(context, enable_timing=True), strict=True
    ):
        stream = context.stream()
        start.record(stream)

        def ask(start: Any = start, end: Any = end) -> float:
            try:
                return float(start.elapsed_time(end))
            except RuntimeError:
                return -1.0

        with context.hold(stream) as hold:
            end.record(stream)
            with Aside(ask) as call:
                returned = call.ended(GLANCE)
                hold.must_be_in_flight()
                hold.release()
            refused = call.value == -1.0
            context.check(
                refused or not returned, "an event in flight has no time yet", got=call.value
            )
        stream.synchronize()
        context.check(start.elapsed_time(end) >= 0, "it has one when it is done")


# -- identity


@cases("events.identity")
def distinct(context: Context) -> None:
    """Live recorded events have distinct ids."""
    stream = context.stream()
    events = [event for _ in range(8) for event in _made(context)]
    for event in events:
        event.record(stream)
    stream.synchronize()
    ids = {event.event_id for event in events}
    context.same(len(ids), len(events), "live recorded events have distinct ids")


@cases("events.identity")
def index_is_set_by_the_record(context: Context) -> None:
    """An event has no index before its first record, and that of its stream behind it."""
    for index in context.indices:
        for event in _made(context):
            before = event.device
            context.check(
                before is None or before.index is None,
                "an event begins without an index",
                got=before,
            )
            event.record(context.stream(index))
            event.synchronize()
            context.same(event.device, context.at(index), "it takes the index of the stream")
