"""Cases about the order of work: within a stream, and between streams that wait for each other."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from conformance.checks.behaviour.queued_work import (
    SIZE,
    filled,
    hold_stream,
    learnt,
    leaves,
    queue,
    recorded,
    same_everywhere,
    special,
    step,
    steps,
    two,
)
from conformance.checks.cases.cases import Cases
from conformance.checks.cases.context import CaseContext
from conformance.checks.cases.held_streams import SOON, WaitingCall
from devices.failure import Kind

cases = Cases(Kind.ORDER)

_NUMBERS = (5, -2, 7, 11, 1, 8, -9, 4, 6, 3)


@cases("streams.in_order")
def one_after_the_other(context: CaseContext) -> None:
    """Kernels that change one tensor are queued on one stream. They run in the order in which they were queued."""
    stream, tensor = context.stream(), filled(context, 1)
    learnt(context)
    with hold_stream(context, stream):
        queue(stream, tensor, *_NUMBERS)
    leaves(
        context,
        stream,
        tensor,
        steps(1, _NUMBERS),
        "kernels of one stream did not run in the order in which they were queued",
    )


@cases("streams.in_order")
def from_tensor_to_tensor(context: CaseContext) -> None:
    """A chain of copies and kernels over three tensors is queued on one stream. The chain runs in the order in
    which it was queued."""
    stream, tensors = context.stream(), [filled(context, value) for value in (1, 2, 3)]
    learnt(context)
    with hold_stream(context, stream), stream:
        _chain(*tensors)
    stream.synchronize()
    want = [same_everywhere(value) for value in (1, 2, 3)]
    _chain(*want)
    for got, value in zip(tensors, want, strict=True):
        context.equal(
            got,
            value,
            "copies and kernels of one stream did not run in the order in which they were queued",
        )


def _chain(first: torch.Tensor, second: torch.Tensor, third: torch.Tensor) -> None:
    for number in _NUMBERS:
        step(first, number)
        second.copy_(first)
        first.add_(third)
        third.copy_(second)


@cases("streams.in_order")
def events_in_between(context: CaseContext) -> None:
    """Events are recorded between kernels of one stream, which is blocked before the first event and once more before
    the last ones. Each event completes when the work before it has finished, and not while the work before it is
    blocked."""
    stream, tensor = context.stream(), filled(context, 1)
    events = [context.event() for _ in range(6)]
    learnt(context)

    def record(some: Sequence[Any]) -> None:
        for event in some:
            queue(stream, tensor, 2)
            event.record(stream)

    with context.hold(stream, needed=False) as first:
        record(events[:3])
        with hold_stream(context, stream) as hold:
            record(events[3:])
            hold.pending("an event has completed although its stream is blocked", *events)
            first.release()
            hold.give_others_a_turn()
            for event in events[3:]:
                hold.waits(event, "an event completed before the work that was queued before it")
    events[-1].synchronize()
    context.check(
        all(each.query() for each in events[:-1]),
        "an event completed before an earlier event of its stream",
    )
    context.equal(
        tensor,
        same_everywhere(steps(1, [2] * len(events))),
        "kernels and events of one stream did not run in the order in which they were queued",
    )


@cases("streams.concurrent")
def finish_first(context: CaseContext) -> None:
    """While one stream is busy, launches on another stream finish. As many launches are made as the descriptor's
    ``concurrent_launches`` says (1 if it is not declared)."""
    count = context.descriptor.concurrent_launches or 1
    busy, other, tensor = context.stream(), context.stream(), filled(context, 1)
    learnt(context)
    with context.hold(busy, limit=4 * SOON):
        with other:
            for _ in range(count):
                tensor.add_(1)
        done = recorded(context, other)
        context.check(
            context.ends(done),
            f"{count} launches on an idle stream did not finish while another stream was busy",
        )
    context.equal(
        tensor, same_everywhere(1 + count), "launches on an idle stream gave wrong values"
    )


@cases("streams.concurrent")
def none_is_the_default(context: CaseContext) -> None:
    """While the default stream is busy, work on each new stream finishes. The number of new streams is the size of
    the device's stream pool (4 if the descriptor does not declare it)."""
    pool = [context.stream() for _ in range(context.descriptor.stream_pool_size or 4)]
    tensors = [filled(context, 1) for _ in pool]
    learnt(context)
    with context.hold(limit=4 * SOON):
        for stream, tensor in zip(pool, tensors, strict=True):
            queue(stream, tensor, 4)
        text = "work on a new stream did not finish while the default stream was busy"
        for done in [recorded(context, stream) for stream in pool]:
            context.check(context.ends(done), text)
    context.settle()


@cases("streams.concurrent")
def host_goes_on(context: CaseContext) -> None:
    """Launching kernels on a busy stream does not block the host: the calls return while the stream is still
    busy."""
    stream, tensor = context.stream(), filled(context, 1)
    learnt(context)
    with context.hold(stream, limit=SOON) as hold:
        queue(stream, tensor, *_NUMBERS)
        hold.pending("query() is True although work of the stream is blocked", stream)
    leaves(
        context,
        stream,
        tensor,
        steps(1, _NUMBERS),
        "work that was queued on a busy stream gave wrong values",
    )


@cases("streams.query")
def false_in_flight(context: CaseContext) -> None:
    """query() of a stream is False while work of the stream has not finished, and True after synchronize()."""
    stream, tensor = context.stream(), filled(context, 1)
    with hold_stream(context, stream) as hold:
        queue(stream, tensor, 4)
        hold.pending("query() is True while work is in flight", stream)
    stream.synchronize()
    context.check(stream.query(), "query() is False after synchronize()")


@cases("streams.query")
def never_early(context: CaseContext) -> None:
    """When query() of a stream returns True, every event that was recorded on the stream before the call
    has completed."""
    stream, tensor = context.stream(), filled(context, 1)
    with hold_stream(context, stream) as hold:
        queue(stream, tensor, *_NUMBERS)
        last = recorded(context, stream)
        hold.waits(stream, "query() is True while work of the stream is blocked")
    context.check(
        context.ends(stream, 20 * SOON), "query() did not become True after the work was unblocked"
    )
    context.check(last.query(), "query() is True but an event recorded earlier has not completed")


@cases("streams.query")
def of_this_stream(context: CaseContext) -> None:
    """query() of a stream refers only to that stream: it returns True while another stream is busy."""
    idle, busy = two(context)
    idle.synchronize()
    with context.hold(busy) as hold:
        hold.pending("query() of the busy stream is True", busy)
        context.check(idle.query(), "query() of the idle stream is False")


#: Kinds of streams that are not the default stream and do not have the usual priority.
_SPECIAL = ("priority", "least_priority")


@cases("streams.synchronize")
def waits(context: CaseContext) -> None:
    """synchronize() of a stream returns when the work of the stream has finished, and not earlier."""
    stream, tensor = context.stream(), filled(context, 1)
    with hold_stream(context, stream) as hold:
        queue(stream, tensor, 4)
        done = recorded(context, stream)
        hold.keeps_waiting(stream.synchronize, "synchronize() returned while work was in flight")
    context.check(done.query(), "the stream's work has not finished after synchronize()")
    context.equal(tensor, same_everywhere(7), "the stream's work gave wrong values")


@cases("streams.synchronize")
def for_no_other(context: CaseContext) -> None:
    """synchronize() of a stream does not wait for the work of another stream."""
    busy, stream, tensor = context.stream(), context.stream(), filled(context, 1)
    with context.hold(busy) as hold:
        queue(stream, tensor, 4)
        returned = hold.call(stream.synchronize, SOON).early
        context.check(returned, "synchronize() waited for another stream")
    context.equal(tensor, same_everywhere(7), "the stream's work gave wrong values")


@cases("streams.synchronize", over={"device": (False,), "device_by_index": (True,)})
def all_streams(context: CaseContext, named: bool) -> None:
    """torch.accelerator.synchronize, with and without an explicit device, waits for every stream of the
    device."""
    first, second = two(context)

    def synchronize() -> None:
        torch.accelerator.set_device_index(0)  # the current device of a new thread is unspecified
        torch.accelerator.synchronize(*[context.at(0)] * named)

    one, other = (hold_stream(context, stream) for stream in (first, second))
    with context.on(0), one, other:
        events = [recorded(context, stream) for stream in (first, second)]
        with WaitingCall(synchronize) as call:
            for hold, busy in (
                (one, "two streams were busy"),
                (other, "the second stream was busy"),
            ):
                other.check(
                    lambda: not call.is_early(),
                    f"synchronize() of the device returned while {busy}",
                )
                hold.release()
    context.same(
        [each.query() for each in events],
        [True, True],
        "the work of a stream has not finished after synchronize() of the device",
    )


@cases("streams.synchronize", indices=2)
def device_that_is_current(context: CaseContext) -> None:
    """torch.accelerator.synchronize without an argument waits for the streams of the current device index, here
    the second index."""
    stream = context.stream(1)

    def synchronize() -> None:
        torch.accelerator.set_device_index(1)  # the current device of a new thread is unspecified
        torch.accelerator.synchronize()

    with hold_stream(context, stream) as hold:
        hold.keeps_waiting(
            synchronize,
            "synchronize() returned while a stream of the current device index was busy",
        )
    context.check(
        stream.query(), "the work of the current device index has not finished after synchronize()"
    )


@cases("streams.synchronize", over={"device_waits_for_the_default": ("default",)})
@cases(
    "streams.synchronize",
    requires={"stream_priority"},
    over={f"device_waits_for_{kind}": (kind,) for kind in _SPECIAL},
)
def other_kinds(context: CaseContext, kind: str) -> None:
    """torch.accelerator.synchronize waits for the default stream and for streams with a priority."""
    stream, tensor = special(context, kind), filled(context, 1)
    with context.on(0), hold_stream(context, stream) as hold:
        queue(stream, tensor, 4)
        done = recorded(context, stream)
        text = "synchronize() of the device returned while the stream was busy"
        hold.keeps_waiting(lambda: torch.accelerator.synchronize(context.at(0)), text)
        context.check(
            done.query(), "the stream's work has not finished after synchronize() of the device"
        )
    context.equal(tensor, same_everywhere(7), "the stream's work gave wrong values")


@cases("streams.synchronize")
def by_the_module(context: CaseContext) -> None:
    """synchronize() of the device's own module waits for the streams of the current device index, as
    torch.accelerator.synchronize does."""
    context.functions_of_the_module("synchronize")
    stream = context.stream()

    def synchronize() -> None:
        torch.accelerator.set_device_index(0)  # the current device of a new thread is unspecified
        context.module.synchronize()

    with context.on(0), hold_stream(context, stream) as hold:
        text = "synchronize of the device's module returned while a stream was busy"
        hold.keeps_waiting(synchronize, text)
    context.check(stream.query(), "synchronize returned before the work of the stream had finished")


@cases("streams.synchronize", indices=2)
def of_that_index(context: CaseContext) -> None:
    """torch.accelerator.synchronize for one device index does not wait for streams of another index."""
    there = context.stream(1)
    with context.hold(there) as hold:
        returned = hold.call(lambda: torch.accelerator.synchronize(context.at(0)), SOON).early
        context.check(returned, "synchronize() of index 0 waited for index 1")
    with context.hold(there) as hold:
        text = "synchronize() of index 1 returned while a stream of index 1 was busy"
        hold.keeps_waiting(lambda: torch.accelerator.synchronize(context.at(1)), text)


@cases("streams.synchronize")
def results_are_there(context: CaseContext) -> None:
    """After synchronize() of a stream, the results of its work can be read on the default stream without
    another wait."""
    stream, tensor = context.stream(), filled(context, 1)
    read, want = torch.empty(SIZE, dtype=torch.int32), steps(1, _NUMBERS)
    learnt(context)

    def synchronize() -> None:
        stream.synchronize()
        with context.on(0):  # the current device of a new thread is unspecified
            read.copy_(tensor)

    with hold_stream(context, stream) as hold:
        queue(stream, tensor, *_NUMBERS)
        hold.call(synchronize)  # which reads too early where it does not wait
    context.equal(
        read, same_everywhere(want), "the default stream read wrong values after synchronize()"
    )


@cases("streams.wait", over={n: (n,) for n in ("wait_event", "event_wait", "wait_stream")})
def sees_earlier_work(context: CaseContext, way: str) -> None:
    """A stream waits for another stream. The wait is made by Stream.wait_event, Event.wait or Stream.wait_stream.
    Work queued after the wait sees the work that was queued on the other stream before the wait."""
    _sees(context, *two(context), way)


@cases("streams.wait", over={"for_the_default": ("default", False), "of_the_default": ("default", True)})  # fmt: skip
@cases(
    "streams.wait",
    requires={"stream_priority"},
    over={f"for_{kind}": (kind, False) for kind in _SPECIAL} | {"of_priority": ("priority", True)},
)
def of_other_kinds(context: CaseContext, kind: str, waits: bool) -> None:
    """A stream waits for the default stream or for a stream with a priority, or such a stream waits for another
    stream. Work after the wait sees the earlier work of the other stream."""
    for way in ("wait_event", "wait_stream"):
        side, other = context.stream(), special(context, kind)
        context.must(
            side != other, "the two new streams are the same stream", by="streams.identity"
        )
        _sees(context, *((side, other) if waits else (other, side)), way)


def _sees(context: CaseContext, first: Any, second: Any, way: str) -> None:
    source, target = filled(context, 1), filled(context, 0)
    learnt(context)
    with hold_stream(context, first) as hold:
        queue(first, source, 4)
        if way == "wait_stream":
            second.wait_stream(first)
        elif way == "wait_event":
            second.wait_event(recorded(context, first))
        else:
            recorded(context, first).wait(second)
        with second:
            target.copy_(source)
        hold.waits(second, "the waiting stream did not wait")
    leaves(
        context,
        second,
        target,
        7,
        "the waiting stream did not see the result of the work that it waited for",
    )


@cases("streams.wait")
def never_recorded(context: CaseContext) -> None:
    """Waiting for an event that was never recorded does nothing: the stream continues."""
    stream, _ = two(context)
    tensor = filled(context, 1)
    stream.wait_event(context.event())
    queue(stream, tensor, 4)
    context.check(
        context.ends(recorded(context, stream)),
        "the stream did not continue after waiting for an event that was never recorded",
    )
    context.equal(tensor, same_everywhere(7), "the stream's work gave wrong values")


@cases("streams.wait")
def many_wait(context: CaseContext) -> None:
    """Four streams wait for one event. Each stream sees the work that was queued before the event."""
    first = context.stream()
    others = [context.stream() for _ in range(4)]
    context.must(first not in others, "two of the streams are the same", by="streams.identity")
    source, targets = filled(context, 1), [filled(context, 0) for _ in others]
    learnt(context)
    with hold_stream(context, first) as hold:
        queue(first, source, 4)
        event = recorded(context, first)
        for stream, target in zip(others, targets, strict=True):
            stream.wait_event(event)
            with stream:
                target.copy_(source)
        for stream in others:
            hold.waits(stream, "a stream did not wait for the event")
    for stream, target in zip(others, targets, strict=True):
        leaves(context, stream, target, 7, "a waiting stream did not see the work before the event")


@cases("streams.wait")
def later_record_is_not_waited_for(context: CaseContext) -> None:
    """A stream waits for an event. The wait refers to the record that was the latest when the wait was queued:
    recording the event again on a busy stream does not prolong the wait."""
    busy, waiting = two(context)
    event = recorded(context, waiting)
    event.synchronize()
    # Two holds on the busy stream outlast the one on the waiting stream, if holds take a fixed time.
    with context.hold(busy), context.hold(busy):
        with context.hold(waiting) as own:
            waiting.wait_event(event)  # its record has already completed
            event.record(busy)
            done = recorded(context, waiting)
            own.release()
        context.check(
            context.ends(done), "the stream waited for a record that was made after the wait"
        )


@cases("streams.wait")
def earlier_record_is_waited_for(context: CaseContext) -> None:
    """A stream waits for an event. The wait refers to the record that was the latest when the wait was queued:
    recording the event again on an idle stream does not end the wait."""
    busy, waiting = two(context)
    idle, target = context.stream(), filled(context, 0)
    source = filled(context, 1)
    learnt(context)
    holds = [hold_stream(context, stream) for stream in (busy, waiting)]
    with holds[0] as hold, holds[1] as own:
        queue(busy, source, 4)
        event = recorded(context, busy)
        waiting.wait_event(event)
        with waiting:
            target.copy_(source)
        event.record(idle)
        context.check(context.ends(event), "the later record on an idle stream did not complete")
        own.release()
        hold.waits(
            waiting, "the stream did not wait for the work before the event's first record()"
        )
    leaves(
        context,
        waiting,
        target,
        7,
        "the stream did not see the work before the event's first record()",
    )


@cases("streams.wait")
def later_work_is_not_waited_for(context: CaseContext) -> None:
    """A stream waits for an event. The wait covers the work queued before the event was recorded, and no work
    that is queued later on the recording stream."""
    busy, waiting = two(context)
    tensor = filled(context, 1)
    event = recorded(context, busy)
    with context.hold(busy):
        waiting.wait_event(event)
        queue(waiting, tensor, 4)
        context.check(
            context.ends(recorded(context, waiting)),
            "the stream waited for work that was queued after the event was recorded",
        )
    context.equal(tensor, same_everywhere(7), "the work after the wait gave wrong values")


@cases("streams.wait")
def earlier_work_is_not_held_up(context: CaseContext) -> None:
    """A stream gets work and then waits for another stream. Work that was queued before the wait does not wait for the
    other stream. Work that was queued after the wait waits for it."""
    busy, waiting = two(context)
    tensor = filled(context, 1)
    with context.hold(busy) as hold:
        queue(waiting, tensor, 4)
        done = recorded(context, waiting)
        waiting.wait_stream(busy)
        context.check(context.ends(done), "work that was queued before the wait did not finish")
        hold.waits(
            waiting, "the stream that called wait_stream() did not wait for the other stream"
        )
    context.equal(tensor, same_everywhere(7), "the work before the wait gave wrong values")
