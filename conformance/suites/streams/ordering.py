"""The order of work: in a stream, between streams, from threads, and in backward."""

from __future__ import annotations

import warnings
from functools import partial
from typing import Any

import torch

from conformance.checks.cases.cases import Cases
from conformance.checks.cases.context import Context
from conformance.checks.cases.in_flight import SOON, WaitingCall
from conformance.suites.streams.work import (
    SIZE,
    filled,
    held,
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
from devices.failure import Kind

cases = Cases(Kind.ORDER)

_NUMBERS = (5, -2, 7, 11, 1, 8, -9, 4, 6, 3)


@cases("streams.in_order")
def one_after_the_other(context: Context) -> None:
    """Kernels on one tensor are done in the order in which they were queued."""
    stream, tensor = context.stream(), filled(context, 1)
    learnt(context)
    with held(context, stream):
        queue(stream, tensor, *_NUMBERS)
    leaves(context, stream, tensor, steps(1, _NUMBERS), "the result is that of the order")


@cases("streams.in_order")
def from_tensor_to_tensor(context: Context) -> None:
    """A chain of copies and kernels over three tensors is done in its order."""
    stream, tensors = context.stream(), [filled(context, value) for value in (1, 2, 3)]
    learnt(context)
    with held(context, stream), stream:
        _chain(*tensors)
    stream.synchronize()
    want = [same_everywhere(value) for value in (1, 2, 3)]
    _chain(*want)
    for got, value in zip(tensors, want, strict=True):
        context.equal(got, value, "each tensor is as the order makes it")


def _chain(first: torch.Tensor, second: torch.Tensor, third: torch.Tensor) -> None:
    for number in _NUMBERS:
        step(first, number)
        second.copy_(first)
        first.add_(third)
        third.copy_(second)


@cases("streams.in_order")
def events_in_between(context: Context) -> None:
    """A later event of a stream is not done before an earlier one."""
    stream, tensor = context.stream(), filled(context, 1)
    events = [context.event() for _ in range(6)]
    learnt(context)
    with held(context, stream) as hold:
        for event in events:
            queue(stream, tensor, 2)
            event.record(stream)
        hold.pending("none is done while it is held", *events)
    for place, event in enumerate(events):
        event.synchronize()
        context.check(all(each.query() for each in events[:place]), "those before it are done")


@cases("streams.concurrent")
def finish_first(context: Context) -> None:
    """While one stream is busy, the declared number of launches on another finish first."""
    count = context.descriptor.concurrent_launches or 1
    busy, other, tensor = context.stream(), context.stream(), filled(context, 1)
    learnt(context)
    with context.hold(busy, limit=4 * SOON):
        with other:
            for _ in range(count):
                tensor.add_(1)
        done = recorded(context, other)
        context.check(context.ends(done), f"{count} launches on an idle stream are done")
    context.equal(tensor, same_everywhere(1 + count), "and their result is there")


@cases("streams.concurrent")
def none_is_the_default(context: Context) -> None:
    """While the default stream is busy, work on every new stream of the pool is done."""
    pool = [context.stream() for _ in range(context.descriptor.stream_pool_size or 4)]
    tensors = [filled(context, 1) for _ in pool]
    learnt(context)
    with context.hold(limit=4 * SOON):
        for stream, tensor in zip(pool, tensors, strict=True):
            queue(stream, tensor, 4)
        text = "work on a new stream is done while the default stream is busy"
        for done in [recorded(context, stream) for stream in pool]:
            context.check(context.ends(done), text)
    context.settle()


@cases("streams.concurrent")
def host_goes_on(context: Context) -> None:
    """Launches on a busy stream return while it is busy."""
    stream, tensor = context.stream(), filled(context, 1)
    learnt(context)
    with context.hold(stream, limit=SOON) as hold:
        queue(stream, tensor, *_NUMBERS)
        hold.pending("the launches have returned, and are not done", stream)
    leaves(context, stream, tensor, steps(1, _NUMBERS), "they are done in the end")


@cases("streams.query")
def false_in_flight(context: Context) -> None:
    """query is False while work is in flight, True after synchronize."""
    stream, tensor = context.stream(), filled(context, 1)
    with held(context, stream) as hold:
        queue(stream, tensor, 4)
        hold.pending("query is False while work is in flight", stream)
    stream.synchronize()
    context.check(stream.query(), "query is True after synchronize")


@cases("streams.query")
def never_early(context: Context) -> None:
    """Once query says True, every event recorded before is done."""
    stream, tensor = context.stream(), filled(context, 1)
    with held(context, stream) as hold:
        queue(stream, tensor, *_NUMBERS)
        last = recorded(context, stream)
        hold.waits(stream, "query stays False while work is held")
    context.check(context.ends(stream, 20 * SOON), "query is True in the end")
    context.check(last.query(), "what was queued is done when query is True")


@cases("streams.query")
def of_this_stream(context: Context) -> None:
    """query is about its own stream: another's work does not make it False."""
    idle, busy = two(context)
    idle.synchronize()
    with context.hold(busy) as hold:
        hold.pending("the busy stream says False", busy)
        context.check(idle.query(), "the idle stream says True")


#: Streams that are neither the default one nor of the usual priority.
_SPECIAL = ("priority", "least_priority")


@cases("streams.synchronize")
def waits(context: Context) -> None:
    """Synchronising a stream returns when its work is done, not before."""
    stream, tensor = context.stream(), filled(context, 1)
    with held(context, stream) as hold:
        queue(stream, tensor, 4)
        done = recorded(context, stream)
        hold.keeps_waiting(stream.synchronize, "synchronize waits while work is in flight")
    context.check(done.query(), "the work is done when synchronize has returned")
    context.equal(tensor, same_everywhere(7), "and its result is there")


@cases("streams.synchronize")
def for_no_other(context: Context) -> None:
    """Synchronising a stream does not wait for another's work."""
    busy, stream, tensor = context.stream(), context.stream(), filled(context, 1)
    with context.hold(busy) as hold:
        queue(stream, tensor, 4)
        returned = hold.call(stream.synchronize, SOON).early
        context.check(returned, "synchronize returns while another stream is busy")
    context.equal(tensor, same_everywhere(7), "the stream's work is done")


@cases("streams.synchronize", over={"device": (False,), "device_by_index": (True,)})
def all_streams(context: Context, named: bool) -> None:
    """Synchronising a device waits for every stream of it."""
    first, second = two(context)

    def synchronize() -> None:
        torch.accelerator.set_device_index(0)  # a thread begins wherever it does
        torch.accelerator.synchronize(*[context.at(0)] * named)

    one, other = (held(context, stream) for stream in (first, second))
    with context.on(0), one, other:
        events = [recorded(context, stream) for stream in (first, second)]
        with WaitingCall(synchronize) as call:
            for hold, busy in ((one, "two streams are busy"), (other, "the second stream is busy")):
                other.check(lambda: not call.is_early(), f"synchronize waits while {busy}")
                hold.release()
    context.same([each.query() for each in events], [True, True], "the work of both is done")


@cases("streams.synchronize", indices=2)
def device_that_is_current(context: Context) -> None:
    """Synchronising without an index waits for the one that is current, which need not be the first."""
    stream = context.stream(1)

    def synchronize() -> None:
        torch.accelerator.set_device_index(1)  # a thread begins wherever it does
        torch.accelerator.synchronize()

    with held(context, stream) as hold:
        hold.keeps_waiting(
            synchronize, "synchronize waits while a stream of the current index is busy"
        )
    context.check(stream.query(), "its work is done when synchronize returns")


@cases("streams.synchronize", over={"device_waits_for_the_default": ("default",)})
@cases(
    "streams.synchronize",
    requires={"stream_priority"},
    over={f"device_waits_for_{kind}": (kind,) for kind in _SPECIAL},
)
def other_kinds(context: Context, kind: str) -> None:
    """Synchronising a device waits for its default stream, and for streams with a priority."""
    stream, tensor = special(context, kind), filled(context, 1)
    with context.on(0), held(context, stream) as hold:
        queue(stream, tensor, 4)
        done = recorded(context, stream)
        text = "synchronize waits while that stream is busy"
        hold.keeps_waiting(lambda: torch.accelerator.synchronize(context.at(0)), text)
        context.check(done.query(), "its work is done when synchronize has returned")
    context.equal(tensor, same_everywhere(7), "and its result is there")


@cases("streams.synchronize", indices=2)
def of_that_index(context: Context) -> None:
    """Synchronising an index does not wait for another's streams."""
    there = context.stream(1)
    with context.hold(there) as hold:
        returned = hold.call(lambda: torch.accelerator.synchronize(context.at(0)), SOON).early
        context.check(returned, "index 0 is synchronised while index 1 is busy")
    with context.hold(there) as hold:
        text = "index 1 is waited for when it is the one asked for"
        hold.keeps_waiting(lambda: torch.accelerator.synchronize(context.at(1)), text)


@cases("streams.synchronize")
def results_are_there(context: Context) -> None:
    """What another stream has computed is read after synchronize, without more."""
    stream, tensor = context.stream(), filled(context, 1)
    queue(stream, tensor, *_NUMBERS)
    stream.synchronize()
    read, want = torch.empty(SIZE, dtype=torch.int32).copy_(tensor), steps(1, _NUMBERS)
    context.equal(read, same_everywhere(want), "the result is read on the default stream")


@cases("streams.wait", over={n: (n,) for n in ("wait_event", "event_wait", "wait_stream")})
def sees_earlier_work(context: Context, way: str) -> None:
    """Work queued after a wait sees what was queued before it on the other stream."""
    _sees(context, *two(context), way)


@cases("streams.wait", over={"for_the_default": ("default", False), "of_the_default": ("default", True)})  # fmt: skip
@cases(
    "streams.wait",
    requires={"stream_priority"},
    over={f"for_{kind}": (kind, False) for kind in _SPECIAL} | {"of_priority": ("priority", True)},
)
def of_other_kinds(context: Context, kind: str, waits: bool) -> None:
    """Waits for the default stream and for streams with a priority, and waits of theirs, order work too."""
    for way in ("wait_event", "wait_stream"):
        side, other = context.stream(), special(context, kind)
        context.must(side != other, "the streams differ", by="streams.identity")
        _sees(context, *((side, other) if waits else (other, side)), way)


def _sees(context: Context, first: Any, second: Any, way: str) -> None:
    source, target = filled(context, 1), filled(context, 0)
    learnt(context)
    with held(context, first) as hold:
        queue(first, source, 4)
        if way == "wait_stream":
            second.wait_stream(first)
        elif way == "wait_event":
            second.wait_event(recorded(context, first))
        else:
            recorded(context, first).wait(second)
        with second:
            target.copy_(source)
        hold.waits(second, "the waiting stream waits")
    leaves(context, second, target, 7, "it sees the work that it waited for")


@cases("streams.wait")
def never_recorded(context: Context) -> None:
    """Waiting on an event that was never recorded does nothing."""
    stream, _ = two(context)
    tensor = filled(context, 1)
    stream.wait_event(context.event())
    queue(stream, tensor, 4)
    context.check(context.ends(recorded(context, stream)), "the stream continues")
    context.equal(tensor, same_everywhere(7), "its work is done")


@cases("streams.wait")
def many_wait(context: Context) -> None:
    """Many streams wait on one event, and all see the work before it."""
    first = context.stream()
    others = [context.stream() for _ in range(4)]
    context.must(first not in others, "the streams differ", by="streams.identity")
    source, targets = filled(context, 1), [filled(context, 0) for _ in others]
    learnt(context)
    with held(context, first) as hold:
        queue(first, source, 4)
        event = recorded(context, first)
        for stream, target in zip(others, targets, strict=True):
            stream.wait_event(event)
            with stream:
                target.copy_(source)
        for stream in others:
            hold.waits(stream, "each of them waits")
    for stream, target in zip(others, targets, strict=True):
        leaves(context, stream, target, 7, "each of them sees the work")


@cases("streams.wait")
def later_record_is_not_waited_for(context: Context) -> None:
    """A wait takes the record that exists at the call: one made later does not hold it up."""
    busy, waiting = two(context)
    event = recorded(context, waiting)
    event.synchronize()
    # Two holds last longer than that of the other stream, where each takes a time.
    with context.hold(busy), context.hold(busy):
        with context.hold(waiting) as own:
            waiting.wait_event(event)  # of what is done
            event.record(busy)
            done = recorded(context, waiting)
            own.release()
        context.check(context.ends(done), "the wait is over, as the record at the call was done")


@cases("streams.wait")
def earlier_record_is_waited_for(context: Context) -> None:
    """A wait takes the record that exists at the call: one made later does not end it."""
    busy, waiting = two(context)
    idle, target = context.stream(), filled(context, 0)
    source = filled(context, 1)
    learnt(context)
    holds = [held(context, stream) for stream in (busy, waiting)]
    with holds[0] as hold, holds[1] as own:
        queue(busy, source, 4)
        event = recorded(context, busy)
        waiting.wait_event(event)
        with waiting:
            target.copy_(source)
        event.record(idle)
        context.check(context.ends(event), "the later record is done")
        own.release()
        hold.waits(waiting, "the stream waits for the first record")
    leaves(context, waiting, target, 7, "it sees the work before the first record")


@cases("streams.wait")
def later_work_is_not_waited_for(context: Context) -> None:
    """A wait is for the work before the record, not for what its stream is given later."""
    busy, waiting = two(context)
    tensor = filled(context, 1)
    event = recorded(context, busy)
    with context.hold(busy):
        waiting.wait_event(event)
        queue(waiting, tensor, 4)
        context.check(context.ends(recorded(context, waiting)), "work after the wait is done")
    context.equal(tensor, same_everywhere(7), "with its result")


@cases("streams.wait")
def earlier_work_is_not_held_up(context: Context) -> None:
    """What a stream was given before a wait does not wait for it."""
    busy, waiting = two(context)
    tensor = filled(context, 1)
    with context.hold(busy) as hold:
        queue(waiting, tensor, 4)
        done = recorded(context, waiting)
        waiting.wait_stream(busy)
        context.check(context.ends(done), "work before the wait is done")
        hold.waits(waiting, "the wait holds what comes after it")
    context.equal(tensor, same_everywhere(7), "with its result")


_THREADS, _STEPS = 6, 25


@cases("streams.threads")
def a_stream_each(context: Context) -> None:
    """Threads that have one stream each get the results of their own order."""
    learnt(context)
    streams = [context.stream() for _ in range(_THREADS)]
    tensors = [filled(context, 1) for _ in streams]

    def work(place: int) -> None:
        queue(streams[place], tensors[place], *range(place, place + _STEPS))
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
    leaves(context, stream, tensor, _THREADS * _STEPS, "every launch was done once")


@cases("streams.threads")
def hand_over(context: Context) -> None:
    """What one thread queues and another waits for is ordered, without a host that waits."""
    learnt(context)
    first, second = context.stream(), context.stream()
    source, target = filled(context, 1), filled(context, 0)

    def give() -> Any:
        queue(first, source, *range(_STEPS))
        return recorded(context, first)

    with held(context, first):
        [event] = context.together(give)

        def take() -> None:
            second.wait_event(event)
            with second:
                target.copy_(source)

        context.together(take)
    want = steps(1, range(_STEPS))
    leaves(context, second, target, want, "the other thread's stream sees the work")


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
    """A leaf whose gradient was once computed."""
    made = filled(context, 1, dtype=torch.float32).requires_grad_()
    (made * 3).backward(filled(context, 1, dtype=torch.float32))
    made.grad = None
    context.settle()
    return made


def _tripled(context: Context, stream: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """A leaf, and three times it, made on a stream."""
    x = _leaf(context)
    with stream:
        y = x * 3
    context.settle()
    return x, y


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
        _backward(z, filled(context, 1, dtype=torch.float32))
    caller.synchronize()
    context.same(seen, [second, first], "the nodes run on the streams of their forwards")
    context.must(x.grad is not None, "the leaf has a gradient")
    assert x.grad is not None
    context.equal(x.grad, torch.full((SIZE,), 9.0), "the gradient is right")


@cases("streams.autograd")
def caller_waits_for_backward(context: Context) -> None:
    """Work of the caller's stream after backward() sees the gradients."""
    forward, caller = two(context)
    x, y = _tripled(context, forward)
    given, target = (filled(context, value, dtype=torch.float32) for value in (1, 0))

    def backward() -> None:
        with caller:
            _backward(y, given)
            assert x.grad is not None
            target.copy_(x.grad)

    # A device may let the host wait for backward(): then nothing is early either.
    with held(context, forward) as hold, WaitingCall(backward) as call:
        if call.is_early():
            hold.waits(caller, "the caller's stream waits for the nodes' streams")
        hold.release()
    caller.synchronize()
    context.equal(target, torch.full((SIZE,), 3.0), "it reads the whole gradient")


@cases("streams.autograd")
def backward_waits_for_the_caller(context: Context) -> None:
    """The first nodes see the gradient that the caller's stream computes."""
    forward, caller = two(context)
    (x, y), given = _tripled(context, forward), filled(context, 1, dtype=torch.float32)

    def backward() -> None:
        with caller:
            _backward(y, given)

    with held(context, caller) as hold:
        with caller:
            given.fill_(5.0)
        hold.call(backward)
    caller.synchronize()
    assert x.grad is not None
    context.equal(x.grad, torch.full((SIZE,), 15.0), "the gradient is that of the caller's work")
