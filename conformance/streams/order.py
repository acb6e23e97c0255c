"""streams.in_order, concurrent, query, synchronize: what is done, when, and who knows."""

from __future__ import annotations

from collections.abc import Callable

import torch

from conformance.behaviour.cases import Cases
from conformance.behaviour.context import Context
from conformance.behaviour.watching import GLANCE, SOON, Aside, ends, ends_early
from conformance.streams.judging import SIZE, filled, learnt, same_everywhere, step, steps, two

cases = Cases()

_NUMBERS = (5, -2, 7, 11, 1, 8, -9, 4, 6, 3)


# -- one stream


@cases("streams.in_order")
def one_after_the_other(context: Context) -> None:
    """Kernels on one tensor are done in the order in which they were queued."""
    stream, tensor = context.stream(), filled(context, 1)
    learnt(context)
    with context.hold(stream) as hold:
        with stream:
            for number in _NUMBERS:
                step(tensor, number)
        hold.must_be_in_flight()
    stream.synchronize()
    context.equal(tensor, same_everywhere(steps(1, _NUMBERS)), "the result is that of the order")


@cases("streams.in_order")
def from_tensor_to_tensor(context: Context) -> None:
    """A chain of copies and kernels over three tensors is done in its order."""
    stream = context.stream()
    first, second, third = (filled(context, value) for value in (1, 2, 3))
    learnt(context)
    with context.hold(stream) as hold:
        with stream:
            for number in _NUMBERS:
                step(first, number)
                second.copy_(first)
                first.add_(third)
                third.copy_(second)
        hold.must_be_in_flight()
    stream.synchronize()
    want = [torch.tensor(value, dtype=torch.int32) for value in (1, 2, 3)]
    for number in _NUMBERS:
        step(want[0], number)
        want[1].copy_(want[0])
        want[0].add_(want[2])
        want[2].copy_(want[1])
    for got, value in zip((first, second, third), want, strict=True):
        context.equal(got, same_everywhere(int(value)), "each tensor is as the order makes it")


@cases("streams.in_order")
def events_in_between(context: Context) -> None:
    """A later event of a stream is not done before an earlier one."""
    stream, tensor = context.stream(), filled(context, 1)
    events = [context.event() for _ in range(6)]
    learnt(context)
    with context.hold(stream) as hold:
        for event in events:
            with stream:
                step(tensor, 2)
            event.record(stream)
        hold.must_be_in_flight()
        context.same(
            [each.query() for each in events], [False] * 6, "none is done while it is held"
        )
    for place, event in enumerate(events):
        event.synchronize()
        context.check(all(each.query() for each in events[:place]), "those before it are done")


# -- two streams


@cases("streams.concurrent")
def finish_first(context: Context) -> None:
    """While one stream is busy, the declared number of launches on another finish first."""
    count = context.descriptor.concurrent_launches or 1
    busy, other, tensor = context.stream(), context.stream(), filled(context, 1)
    learnt(context)
    with context.hold(busy, limit=4 * SOON) as hold:
        with other:
            for _ in range(count):
                tensor.add_(1)
        done = context.event()
        done.record(other)
        context.check(ends(done), f"{count} launches on an idle stream are done")
        hold.must_be_in_flight()
    context.equal(tensor, same_everywhere(1 + count), "and their result is there")


@cases("streams.concurrent")
def host_goes_on(context: Context) -> None:
    """Launches on a busy stream return while it is busy."""
    stream, tensor = context.stream(), filled(context, 1)
    learnt(context)
    with context.hold(stream, limit=SOON) as hold:
        with stream:
            for number in _NUMBERS:
                step(tensor, number)
        hold.must_be_in_flight()
        context.check(not stream.query(), "the launches have returned, and are not done")
    stream.synchronize()
    context.equal(tensor, same_everywhere(steps(1, _NUMBERS)), "they are done in the end")


# -- query


@cases("streams.query")
def false_in_flight(context: Context) -> None:
    """query is False while work is in flight, True after synchronize."""
    stream, tensor = context.stream(), filled(context, 1)
    with context.hold(stream) as hold:
        with stream:
            step(tensor, 4)
        context.check(not stream.query(), "query is False while work is in flight")
        hold.must_be_in_flight()
    stream.synchronize()
    context.check(stream.query(), "query is True after synchronize")


@cases("streams.query")
def never_early(context: Context) -> None:
    """Once query says True, every event recorded before is done."""
    stream, tensor = context.stream(), filled(context, 1)
    last = context.event()
    with context.hold(stream) as hold:
        with stream:
            for number in _NUMBERS:
                step(tensor, number)
        last.record(stream)
        context.check(not ends_early(stream, hold), "query stays False while work is held")
    context.check(ends(stream, 20 * SOON), "query is True in the end")
    context.check(last.query(), "what was queued is done when query is True")


@cases("streams.query")
def of_this_stream(context: Context) -> None:
    """query is about its own stream: another's work does not make it False."""
    idle, busy = two(context)
    idle.synchronize()
    with context.hold(busy) as hold:
        context.check(not busy.query(), "the busy stream says False")
        context.check(idle.query(), "the idle stream says True")
        hold.must_be_in_flight()


# -- synchronize


@cases("streams.synchronize")
def waits(context: Context) -> None:
    """Synchronising a stream returns when its work is done, not before."""
    stream, tensor = context.stream(), filled(context, 1)
    done = context.event()
    with context.hold(stream) as hold:
        with stream:
            step(tensor, 4)
        done.record(stream)
        with Aside(stream.synchronize) as call:
            early = call.ended(GLANCE)
            hold.must_be_in_flight()
            context.check(not early, "synchronize waits while work is in flight")
            hold.release()
    context.check(done.query(), "the work is done when synchronize has returned")
    context.equal(tensor, same_everywhere(7), "and its result is there")


@cases("streams.synchronize")
def for_no_other(context: Context) -> None:
    """Synchronising a stream does not wait for another's work."""
    busy, stream, tensor = context.stream(), context.stream(), filled(context, 1)
    with context.hold(busy) as hold:
        with stream:
            step(tensor, 4)
        with Aside(stream.synchronize) as call:
            returned = call.ended(SOON)
            hold.must_be_in_flight()
            hold.release()
        context.check(returned, "synchronize returns while another stream is busy")
    context.equal(tensor, same_everywhere(7), "the stream's work is done")


@cases("streams.synchronize", over={"device": (False,), "device_by_index": (True,)})
def all_streams(context: Context, named: bool) -> None:
    """Synchronising a device waits for every stream of it."""
    first, second = two(context)
    events = [context.event(), context.event()]
    with context.on(0), context.hold(first) as one, context.hold(second) as other:
        for event, stream in zip(events, (first, second), strict=True):
            event.record(stream)
        arguments = (context.at(0),) if named else ()
        with Aside(_on_first(*arguments)) as call:
            early = call.ended(GLANCE)
            other.must_be_in_flight()
            context.check(not early, "synchronize waits while two streams are busy")
            one.release()
            early = call.ended(GLANCE)
            other.must_be_in_flight()
            context.check(not early, "synchronize waits while the second stream is busy")
            other.release()
    context.same([each.query() for each in events], [True, True], "the work of both is done")


def _on_first(*arguments: torch.device) -> Callable[[], None]:
    def call() -> None:
        torch.accelerator.set_device_index(0)  # a thread begins wherever it does
        torch.accelerator.synchronize(*arguments)

    return call


@cases("streams.synchronize", indices=2)
def of_that_index(context: Context) -> None:
    """Synchronising an index does not wait for another's streams."""
    there = context.stream(1)
    with context.hold(there) as hold:
        with Aside(lambda: torch.accelerator.synchronize(context.at(0))) as call:
            returned = call.ended(SOON)
            hold.must_be_in_flight()
            hold.release()
        context.check(returned, "index 0 is synchronised while index 1 is busy")
    with context.hold(there) as hold:
        with Aside(lambda: torch.accelerator.synchronize(context.at(1))) as call:
            early = call.ended(GLANCE)
            hold.must_be_in_flight()
            hold.release()
        context.check(not early, "index 1 is waited for when it is the one asked for")


@cases("streams.synchronize")
def results_are_there(context: Context) -> None:
    """What another stream has computed is read behind synchronize, without more."""
    stream, tensor = context.stream(), filled(context, 1)
    with stream:
        for number in _NUMBERS:
            step(tensor, number)
    stream.synchronize()
    context.equal(
        torch.empty(SIZE, dtype=torch.int32).copy_(tensor),
        same_everywhere(steps(1, _NUMBERS)),
        "the result is read on the default stream",
    )
