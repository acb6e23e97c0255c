"""streams.wait: what work on one stream sees of another's."""

from __future__ import annotations

from conformance.behaviour.cases import Cases
from conformance.behaviour.context import Context
from conformance.behaviour.watching import ends, ends_early
from conformance.streams.judging import filled, learnt, same_everywhere, two

cases = Cases()


@cases(
    "streams.wait", over={"wait_event": ("event",), "event_wait": ("method",), "wait_stream": ("",)}
)
def sees_earlier_work(context: Context, way: str) -> None:
    """Work queued behind a wait sees what was queued before it on the other stream."""
    first, second = two(context)
    source, target = filled(context, 1), filled(context, 0)
    learnt(context)
    with context.hold(first) as hold:
        with first:
            source.add_(6)
        if way:
            event = context.event()
            event.record(first)
            if way == "event":
                second.wait_event(event)
            else:
                event.wait(second)
        else:
            second.wait_stream(first)
        with second:
            target.copy_(source)
        context.check(not ends_early(second, hold), "the waiting stream waits")
    second.synchronize()
    context.equal(target, same_everywhere(7), "it sees the work that it waited for")


@cases("streams.wait")
def never_recorded(context: Context) -> None:
    """Waiting on an event that was never recorded does nothing."""
    stream, _ = two(context)
    tensor = filled(context, 1)
    stream.wait_event(context.event())
    with stream:
        tensor.add_(6)
    done = context.event()
    done.record(stream)
    context.check(ends(done), "the stream goes on")
    context.equal(tensor, same_everywhere(7), "its work is done")


@cases("streams.wait")
def many_wait(context: Context) -> None:
    """Many streams wait on one event, and all see the work before it."""
    first = context.stream()
    others = [context.stream() for _ in range(4)]
    context.must(first not in others, "the streams differ")
    source, targets = filled(context, 1), [filled(context, 0) for _ in others]
    learnt(context)
    event = context.event()
    with context.hold(first) as hold:
        with first:
            source.add_(6)
        event.record(first)
        for stream, target in zip(others, targets, strict=True):
            stream.wait_event(event)
            with stream:
                target.copy_(source)
        for stream in others:
            context.check(not ends_early(stream, hold, 0.002), "each of them waits")
    for stream, target in zip(others, targets, strict=True):
        stream.synchronize()
        context.equal(target, same_everywhere(7), "each of them sees the work")


@cases("streams.wait")
def later_record_is_not_waited_for(context: Context) -> None:
    """A wait takes the record that exists at the call: one made later does not hold it up."""
    busy, waiting = two(context)
    event = context.event()
    event.record(waiting)
    event.synchronize()
    with context.hold(busy) as hold:
        with context.hold(waiting) as own:
            waiting.wait_event(event)  # of what is done
            event.record(busy)
            done = context.event()
            done.record(waiting)
            own.release()
        context.check(ends(done), "the wait is over, as the record at the call was done")
        hold.must_be_in_flight()


@cases("streams.wait")
def earlier_record_is_waited_for(context: Context) -> None:
    """A wait takes the record that exists at the call: one made later does not end it."""
    busy, waiting = two(context)
    idle, target = context.stream(), filled(context, 0)
    source = filled(context, 1)
    learnt(context)
    event = context.event()
    with context.hold(busy) as hold, context.hold(waiting) as own:
        with busy:
            source.add_(6)
        event.record(busy)
        waiting.wait_event(event)
        with waiting:
            target.copy_(source)
        event.record(idle)
        context.check(ends(event), "the later record is done")
        own.release()
        context.check(not ends_early(waiting, hold), "the stream waits for the first record")
    waiting.synchronize()
    context.equal(target, same_everywhere(7), "it sees the work before the first record")


@cases("streams.wait")
def later_work_is_not_waited_for(context: Context) -> None:
    """A wait is for the work before the record, not for what its stream is given later."""
    busy, waiting = two(context)
    tensor = filled(context, 1)
    event = context.event()
    event.record(busy)
    with context.hold(busy) as hold:
        waiting.wait_event(event)
        with waiting:
            tensor.add_(6)
        done = context.event()
        done.record(waiting)
        context.check(ends(done), "work behind the wait is done")
        hold.must_be_in_flight()
    context.equal(tensor, same_everywhere(7), "with its result")


@cases("streams.wait")
def earlier_work_is_not_held_up(context: Context) -> None:
    """What a stream was given before a wait does not stand behind it."""
    busy, waiting = two(context)
    tensor = filled(context, 1)
    done = context.event()
    with context.hold(busy) as hold:
        with waiting:
            tensor.add_(6)
        done.record(waiting)
        waiting.wait_stream(busy)
        context.check(ends(done), "work before the wait is done")
        context.check(not ends_early(waiting, hold), "the wait holds what comes behind it")
    context.equal(tensor, same_everywhere(7), "with its result")
