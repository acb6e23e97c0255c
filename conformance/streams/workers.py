"""streams.threads: streams used from many threads at once."""

from __future__ import annotations

from functools import partial
from typing import Any

from conformance.behaviour.cases import Cases
from conformance.behaviour.context import Context
from conformance.streams.judging import filled, learnt, same_everywhere, step, steps

cases = Cases()

_THREADS, _STEPS = 6, 25


@cases("streams.threads")
def a_stream_each(context: Context) -> None:
    """Threads with a stream each get the results of their own order."""
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
