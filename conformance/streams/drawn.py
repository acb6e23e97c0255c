"""Programs of streams that hypothesis draws: run beside one another, they equal themselves run in one order.

The seeds are pinned, so that a plan draws the same programs every time. What fails is shrunk, and its repro
script replays the shrunk program, without hypothesis.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

from conformance.behaviour.cases import Cases, Drawn
from conformance.behaviour.context import Context
from conformance.behaviour.drawing import Trial, search
from conformance.streams.program import (
    BUFFERS,
    EVENTS,
    GLANCE,
    LONG_GLANCE,
    Order,
    Program,
    Running,
    replay,
    told,
    validate,
)

cases = Cases()

_FEW, _MORE = (0, 20), (1, 80)  # seed, programs: of every plan, and of those beyond quick
_MOST_STREAMS = 4


_DRAWN = Drawn(replay, lambda *program: told(Program(*program)), validate)
_SLOW: dict[str, Any] = {"slow": True, "drawn": _DRAWN}


@cases("streams.wait", over={"drawn": (1, *_FEW)}, **_SLOW)
@cases("streams.wait", over={"drawn_more": (1, *_MORE)}, more=True, **_SLOW)
@cases("streams.cross_device", over={"drawn": (2, *_FEW)}, indices=2, **_SLOW)
@cases("streams.cross_device", over={"drawn_more": (2, *_MORE)}, indices=2, more=True, **_SLOW)
def drawn(context: Context, indices: int, seed: int, programs: int) -> None:
    """Drawn programs of kernels, copies, records and waits equal themselves run in one order."""
    trial = Trial(context, _DRAWN)

    def holds(program: Program) -> None:
        if trial.begin():
            glance = LONG_GLANCE if trial.found else GLANCE
            trial.run(program.literal, lambda: Running(context, program, glance).run())

    with trial.shrunk():
        search(_programs(indices), holds, seed, programs)
    trial.must_have_run(programs)


@cache
def _programs(indices: int) -> Any:
    """A strategy for programs on so many indices. One for all searches: hypothesis keeps what it sees."""
    from hypothesis import strategies as st

    number, place = st.integers(0, 11), st.integers(0, _MOST_STREAMS - 1)
    kinds = ("step", "copy", "record", "wait", "add", "wait_stream", "across", "hand_over")
    kind = st.sampled_from(kinds)
    drawn_step = st.tuples(kind, place, number, number)
    # Lists of no least length shrink to nothing; several of them make a program long enough.
    some = st.lists(drawn_step, max_size=12)
    streams = st.lists(st.integers(0, indices - 1), min_size=2, max_size=_MOST_STREAMS)

    def whole(drawn: Any) -> Program:
        where, steps, ranks = drawn
        return ordered(tuple(where), [one for part in steps for one in part], ranks, indices)

    ranks = st.tuples(*[st.integers(0, 9)] * _MOST_STREAMS)
    return st.tuples(streams, st.tuples(some, some, some), ranks).map(whole)


def ordered(
    streams: tuple[int, ...], drawn: Sequence[Any], ranks: Sequence[int], indices: int
) -> Program:
    """The program of drawn numbers, with the waits that it lacks: by an event, or for a stream."""
    order, made = Order(streams), []
    fresh = EVENTS * indices

    def put(*instruction: Any) -> None:
        order.take(instruction)
        made.append(instruction)

    def after(on: Sequence[int], reads: Sequence[int], writes: Sequence[int], way: int) -> None:
        nonlocal fresh
        for other in order.unseen(on, reads, writes):
            if way % 2:
                put("wait_stream", on[0], other)
                continue
            put("record", fresh, other)
            put("wait", on[0], fresh)
            fresh += 1

    def buffer(number: int, index: int) -> int:
        return number % BUFFERS * indices + index

    for kind, place, one, two in drawn:
        on = place % len(streams)
        index = streams[on]
        first, second = buffer(one, index), buffer(two, index)
        others = [each for each, where in enumerate(streams) if where != index]
        if kind == "step":
            after((on,), (), (first,), two)
            put("step", on, first, two)
        elif kind == "record":
            put("record", one % EVENTS * indices + index, on)
        elif kind == "wait":
            put("wait", on, one % (EVENTS * indices))
        elif kind == "hand_over":  # an event that is recorded again behind a wait for it
            event = one % EVENTS * indices + index
            alike = [each for each, where in enumerate(streams) if where == index]
            put("record", event, on)
            put("wait", one % len(streams), event)
            put("record", event, alike[two % len(alike)])
        elif kind == "wait_stream" and one % len(streams) != on:
            put("wait_stream", on, one % len(streams))
        elif kind == "across" and others:
            other = others[one % len(others)]
            target = buffer(two, streams[other])
            after((on, other), (first,), (target,), two)
            put("across", on, other, first, target)
        elif kind in ("add", "copy") and first != second:
            reads, writes = ((first, second), (first,)) if kind == "add" else ((first,), (second,))
            after((on,), reads, writes, one)
            put(kind, on, first, second)
    released = sorted(range(len(streams)), key=lambda each: (ranks[each], each))
    return Program(indices, streams, tuple(made), tuple(released))
