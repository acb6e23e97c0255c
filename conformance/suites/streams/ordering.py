"""The order of work: in a stream, between streams, from threads, and in backward."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from conformance.checks.cases.cases import Cases
from conformance.checks.cases.context import Context
from conformance.checks.cases.in_flight import GLANCE, SOON, WaitingCall, ends, ends_early
from conformance.suites.streams.work import SIZE, filled, learnt, same_everywhere, step, steps, two
from devices.failure import Kind

cases = Cases(Kind.ORDER)


# -- streams.in_order, concurrent, query, synchronize: what is done, when, and who knows


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
        with WaitingCall(stream.synchronize) as call:
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
        with WaitingCall(stream.synchronize) as call:
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
        with WaitingCall(_on_first(*arguments)) as call:
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
        with WaitingCall(lambda: torch.accelerator.synchronize(context.at(0))) as call:
            returned = call.ended(SOON)
            hold.must_be_in_flight()
            hold.release()
        context.check(returned, "index 0 is synchronised while index 1 is busy")
    with context.hold(there) as hold:
        with WaitingCall(lambda: torch.accelerator.synchronize(context.at(1))) as call:
            early = call.ended(GLANCE)
            hold.must_be_in_flight()
            hold.release()
        context.check(not early, "index 1 is waited for when it is the one asked for")


@cases("streams.synchronize")
def results_are_there(context: Context) -> None:
    """What another stream has computed is read after synchronize, without more."""
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


# -- streams.wait: what work on one stream sees of another's


@cases(
    "streams.wait", over={"wait_event": ("event",), "event_wait": ("method",), "wait_stream": ("",)}
)
def sees_earlier_work(context: Context, way: str) -> None:
    """Work queued after a wait sees what was queued before it on the other stream."""
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
    context.check(ends(done), "the stream continues")
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
        context.check(ends(done), "work after the wait is done")
        hold.must_be_in_flight()
    context.equal(tensor, same_everywhere(7), "with its result")


@cases("streams.wait")
def earlier_work_is_not_held_up(context: Context) -> None:
    """What a stream was given before a wait does not wait for it."""
    busy, waiting = two(context)
    tensor = filled(context, 1)
    done = context.event()
    with context.hold(busy) as hold:
        with waiting:
            tensor.add_(6)
        done.record(waiting)
        waiting.wait_stream(busy)
        context.check(ends(done), "work before the wait is done")
        context.check(not ends_early(waiting, hold), "the wait holds what comes after it")
    context.equal(tensor, same_everywhere(7), "with its result")


# -- streams.threads: streams used from many threads at once


_THREADS, _STEPS = 6, 25


@cases("streams.threads")
def a_stream_each(context: Context) -> None:
    """Threads that have one stream each get the results of their own order."""
    learnt(context)
    streams = [context.stream() for _ in range(_THREADS)]
    tensors = [filled(context, 1) for _ in streams]

    def work(place: int) -> None:
        with streams[place]:
            for number in range(_STEPS):
                step(tensors[place], number + place)
        streams[place].synchronize()

    context.together(*(partial(work, place) for place in range(_THREADS)))
    for place, tensor in enumerate(tensors):
        want = steps(1, range(place, place + _STEPS))
        context.equal(tensor, same_everywhere(want), "a thread's work is done in its order")


@cases("streams.threads")
def one_stream(context: Context) -> None:
    """Threads that share a stream lose none of their work."""
    learnt(context)
    stream, tensor = context.stream(), filled(context, 0)

    def work() -> None:
        with stream:
            for _ in range(_STEPS):
                tensor.add_(1)

    context.together(*[work] * _THREADS)
    stream.synchronize()
    context.equal(tensor, same_everywhere(_THREADS * _STEPS), "every launch was done once")


@cases("streams.threads")
def hand_over(context: Context) -> None:
    """What one thread queues and another waits for is ordered, without a host that waits."""
    learnt(context)
    first, second = context.stream(), context.stream()
    source, target = filled(context, 1), filled(context, 0)

    def give() -> Any:
        event = context.event()
        with first:
            for number in range(_STEPS):
                step(source, number)
        event.record(first)
        return event

    with context.hold(first) as hold:
        [event] = context.together(give)

        def take() -> None:
            second.wait_event(event)
            with second:
                target.copy_(source)

        context.together(take)
        hold.must_be_in_flight()
    second.synchronize()
    want = steps(1, range(_STEPS))
    context.equal(target, same_everywhere(want), "the other thread's stream sees the work")


# -- streams.autograd: the streams of a backward pass


class _Noting(torch.autograd.Function):
    """y = 3 x; its backward notes the current stream."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, device: torch.device, seen: list[Any]) -> torch.Tensor:
        ctx.device, ctx.seen = device, seen
        return x * 3

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> Any:
        ctx.seen.append(torch.accelerator.current_stream(ctx.device))
        return grads[0] * 3, None, None


def _noting(x: torch.Tensor, context: Context, seen: list[Any]) -> torch.Tensor:
    made: torch.Tensor = _Noting.apply(x, context.device, seen)  # type: ignore[no-untyped-call]
    return made


def _backward(output: torch.Tensor, given: torch.Tensor) -> None:
    """``output.backward(given)``, without the advice to make leaves on the stream of their use."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "The AccumulateGrad node's stream")
        output.backward(given)


def _leaf(context: Context) -> torch.Tensor:
    made = torch.ones(SIZE, device=context.device).requires_grad_()
    (made * 3).backward(torch.ones(SIZE, device=context.device))
    made.grad = None
    context.settle()
    return made


def _given(context: Context, value: float) -> torch.Tensor:
    made = torch.full((SIZE,), value, device=context.device)
    context.settle()
    return made


@cases("streams.autograd")
def on_the_streams_of_forward(context: Context) -> None:
    """Each node runs on the stream of its forward, not on the stream that is current at the call."""
    first, second = two(context)
    caller, x = context.stream(), _leaf(context)
    seen: list[Any] = []
    with first:
        y = _noting(x, context, seen)
    second.wait_stream(first)
    with second:
        z = _noting(y, context, seen)
    caller.wait_stream(second)
    with caller:
        _backward(z, _given(context, 1.0))
    caller.synchronize()
    context.same(seen, [second, first], "the nodes run on the streams of their forwards")
    context.must(x.grad is not None, "the leaf has a gradient")
    assert x.grad is not None
    context.equal(x.grad, torch.full((SIZE,), 9.0), "the gradient is right")


@cases("streams.autograd")
def caller_waits_for_backward(context: Context) -> None:
    """Work of the caller's stream after backward() sees the gradients."""
    forward, caller = two(context)
    x, given, target = _leaf(context), _given(context, 1.0), _given(context, 0.0)
    with forward:
        y = x * 3
    context.settle()

    def backward() -> None:
        with caller:
            _backward(y, given)
            assert x.grad is not None
            target.copy_(x.grad)

    # A device may let the host wait for backward(): then nothing is early either.
    with context.hold(forward) as hold, WaitingCall(backward) as call:
        returned = call.ended(5 * GLANCE)
        early = returned and ends_early(caller, hold)
        context.check(not early, "the caller's stream waits for the nodes' streams")
        hold.release()
    caller.synchronize()
    context.equal(target, torch.full((SIZE,), 3.0), "it reads the whole gradient")


@cases("streams.autograd")
def backward_waits_for_the_caller(context: Context) -> None:
    """The first nodes see the gradient that the caller's stream computes."""
    forward, caller = two(context)
    x, given = _leaf(context), _given(context, 1.0)
    with forward:
        y = x * 3
    context.settle()

    def backward() -> None:
        with caller:
            _backward(y, given)

    with context.hold(caller) as hold:
        with caller:
            given.fill_(5.0)
        with WaitingCall(backward) as call:
            call.ended(5 * GLANCE)
            hold.must_be_in_flight()
            hold.release()
    caller.synchronize()
    assert x.grad is not None
    context.equal(x.grad, torch.full((SIZE,), 15.0), "the gradient is that of the caller's work")
