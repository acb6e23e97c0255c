"""Cases about several threads that queue work: each on a stream of its own, all on one, and one after the other."""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial
from typing import Any

from conformance.checks.behaviour.queued_work import (
    filled,
    hold_stream,
    learnt,
    leaves,
    queue,
    recorded,
    same_everywhere,
    step,
    steps,
)
from conformance.checks.cases.cases import Cases
from conformance.checks.cases.context import CaseContext
from conformance.checks.cases.exceptions import Blocked
from devices.failure import Kind

cases = Cases(Kind.ORDER)

_THREADS, _STEPS = 6, 25
#: Launches of one thread during a launch of another, after which threads have queued work at the same time often enough
#: for a lost launch to show; and the rounds in which there must be some.
OVERLAPS, ROUNDS = 100, 50


class Launches:
    """Counts the launches that begin while another thread is in a launch. Use it as ``with launches:`` around each
    launch."""

    def __init__(self) -> None:
        self.overlapping = 0
        self._inside: set[int] = set()

    def __enter__(self) -> None:
        self._inside.add(threading.get_ident())
        self.overlapping += len(self._inside) > 1

    def __exit__(self, *error: object) -> None:
        self._inside.discard(threading.get_ident())


def until_they_overlap(context: CaseContext, round_of: Callable[[Launches], None]) -> None:
    """Runs rounds until the launches of different threads have overlapped often. On a busy machine the threads of one round
    may run one after the other, which shows nothing. The checks of one round are counted, because the number of
    rounds is chance."""
    launches, before, counted = Launches(), context.checks, 0
    for number in range(ROUNDS):
        round_of(launches)
        counted = counted if number else context.checks - before
        context.checks = before + counted
        if launches.overlapping >= OVERLAPS:
            return
    if not launches.overlapping:
        text = f"in {ROUNDS} rounds, no two of {_THREADS} threads queued work at the same time"
        raise Blocked("streams.concurrent", f"the check could not be made: {text}")


@cases("streams.threads")
def a_stream_each(context: CaseContext) -> None:
    """Each of several threads queues work on a stream of its own, until the launches of different threads have
    overlapped. The work of each thread runs in the order in which the thread queued it."""
    learnt(context)
    streams = [context.stream() for _ in range(_THREADS)]

    def once(launches: Launches) -> None:
        tensors = [filled(context, 1) for _ in streams]

        def work(place: int) -> None:
            with streams[place]:
                for number in range(place, place + _STEPS):
                    with launches:
                        step(tensors[place], number)
            streams[place].synchronize()

        works = [partial(work, place) for place in range(_THREADS)]
        context.together(*works)
        for place, tensor in enumerate(tensors):
            want = steps(1, range(place, place + _STEPS))
            context.equal(
                tensor,
                same_everywhere(want),
                "the work of a thread did not run in the order in which the thread queued it",
            )

    until_they_overlap(context, once)


@cases("streams.threads")
def one_stream(context: CaseContext) -> None:
    """Several threads queue work on one shared stream, until their launches have overlapped. Every launch runs exactly
    once."""
    learnt(context)
    stream = context.stream()

    def once(launches: Launches) -> None:
        tensor = filled(context, 0)

        def work() -> None:
            with stream:
                for _ in range(_STEPS):
                    with launches:
                        tensor.add_(1)

        context.together(*[work] * _THREADS)
        leaves(
            context,
            stream,
            tensor,
            _THREADS * _STEPS,
            "launches from several threads on one stream were lost or ran twice",
        )

    until_they_overlap(context, once)


@cases("streams.threads")
def hand_over(context: CaseContext) -> None:
    """One thread queues work and records an event. Another thread makes its stream wait for the event. The
    stream sees the work, without a wait on the host."""
    learnt(context)
    first, second = context.stream(), context.stream()
    source, target = filled(context, 1), filled(context, 0)

    def give() -> Any:
        queue(first, source, *range(_STEPS))
        return recorded(context, first)

    with hold_stream(context, first) as hold:
        [event] = context.together(give)

        def take() -> None:
            second.wait_event(event)
            with second:
                target.copy_(source)

        context.together(take)
        hold.give_others_a_turn()  # so that a stream that does not wait has read too early
    want = steps(1, range(_STEPS))
    leaves(
        context,
        second,
        target,
        want,
        "the stream of the other thread did not see the work before the event",
    )
