"""Cases that draw stream programs at random and run them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cache
from typing import Any

from conformance.checks.cases.cases import Cases, Drawn
from conformance.checks.cases.context import CaseContext
from conformance.checks.cases.program_coverage import Reach
from conformance.checks.cases.random_programs import Operation, Trial, search
from conformance.suites.streams.program_states import all_reached, steered_programs, table
from conformance.suites.streams.programs import (
    BUFFERS,
    LONG,
    MOST_STREAMS,
    SHORT,
    Order,
    Program,
    across,
    add,
    copy,
    program_of,
    record,
    replay,
    run_once,
    source,
    step,
    validate,
    wait,
    wait_stream,
)
from devices.failure import Kind

cases = Cases(Kind.ORDER)

_FEW, _MORE = (0, 12), (1, 80)  # (seed, number of programs): in every plan; beyond quick

_DRAWN = Drawn(replay, lambda *literal: str(program_of(*literal)), validate, source)
_SLOW: dict[str, Any] = {"slow": True, "drawn": _DRAWN}


@cases("streams.wait", over={"drawn": (1, *_FEW)}, **_SLOW)
@cases("streams.wait", over={"drawn_more": (1, *_MORE)}, more=True, **_SLOW)
@cases("streams.cross_device", over={"drawn": (2, *_FEW)}, indices=2, **_SLOW)
@cases("streams.cross_device", over={"drawn_more": (2, *_MORE)}, indices=2, more=True, **_SLOW)
def drawn(context: CaseContext, indices: int, seed: int, programs: int) -> None:
    """Programs of kernels, copies, event records and waits on several streams are drawn at random. Running a
    program concurrently gives the same values as running its instructions one by one."""
    trial = Trial(context, _DRAWN)

    def holds(program: Program) -> None:
        if trial.begin():
            seconds = LONG if trial.found else SHORT
            reach.missing -= all_reached(program)
            trial.run(program.literal, lambda: run_once(context, program, seconds))

    reach = Reach(table(indices))
    with trial.shrunk():
        search(drawn_programs(indices), holds, seed, programs)
    with trial.shrunk(lambda found: _shorter(trial, *found)):
        trial.steered(steered_programs(indices, reach, seed), holds)
    trial.must_have_run(programs)
    trial.must_have_reached(reach)


def _shorter(trial: Trial, *literal: Any) -> None:
    """Removes from a failing program the instructions that the failure does not need. An instruction that a later
    instruction needs is kept."""
    indices, streams, instructions, released = literal

    def whole(fewer: Sequence[Any]) -> tuple[Any, ...]:
        return indices, streams, tuple(fewer), released

    trial.shorten(
        instructions, whole, lambda fewer: run_once(trial.context, program_of(*whole(fewer)), LONG)
    )


@cache
def drawn_programs(indices: int) -> Any:
    """Returns the hypothesis strategy that draws programs on the given number of device indices. All searches
    use the same strategy, because hypothesis keeps data about every strategy."""
    from hypothesis import strategies as st

    number, place = st.integers(0, 11), st.integers(0, MOST_STREAMS - 1)
    kinds = ("step", "copy", "record", "wait", "add", "wait_stream", "across", "hand_over")
    drawn_step = st.tuples(st.sampled_from(kinds), place, number, number)
    # Lists without a minimum length shrink to nothing; several of them make a program long enough.
    some = st.lists(drawn_step, max_size=12)
    kind = st.sampled_from((0, 0, 1, 2))
    stream = st.tuples(kind, st.integers(0, indices - 1))
    streams = st.lists(stream, min_size=2, max_size=MOST_STREAMS)

    def whole(drawn: Any) -> Program:
        drawn_streams, steps, ranks = drawn
        where: list[int] = []
        for kind, index in drawn_streams:
            taken = kind == 1 and indices + index in where  # an index has one default stream
            where.append(index if taken else kind * indices + index)
        return ordered(tuple(where), [one for part in steps for one in part], ranks, indices)

    ranks = st.tuples(*[st.integers(0, 9)] * MOST_STREAMS)
    return st.tuples(streams, st.tuples(some, some, some), ranks).map(whole)


def ordered(
    streams: tuple[int, ...], drawn: Iterable[Any], ranks: Sequence[int], indices: int
) -> Program:
    """Builds a program from drawn numbers. Adds waits, each for an event or for a stream, that order
    conflicting accesses to a buffer."""
    order, made = Order(len(streams)), list[Operation]()
    fresh = indices  # the number of the next event for a single record

    def put(*instructions: Operation) -> None:
        for instruction in instructions:
            order.take(instruction)
            made.append(instruction)

    def after(instruction: Operation, way: int) -> None:
        nonlocal fresh
        on = instruction.given["on"]
        for other in order.unseen(instruction):
            if way % 2:
                put(wait_stream(on, other))
            else:
                put(record(fresh, other), wait(on, fresh))
                fresh += 1
        put(instruction)

    def buffer(number: int, index: int) -> int:
        return number % BUFFERS * indices + index

    for kind, place, one, two in drawn:
        on = place % len(streams)
        index = streams[on] % indices
        first, second = buffer(one, index), buffer(two, index)
        others = [each for each, where in enumerate(streams) if where % indices != index]
        if kind == "step":
            after(step(on, first, two), two)
        elif kind == "record":
            put(record(index, on))
        elif kind == "wait":
            put(wait(on, one % indices))
        elif kind == "hand_over":  # an event that is recorded again after a wait for it
            alike = [each for each, where in enumerate(streams) if where % indices == index]
            again = record(index, alike[two % len(alike)])
            put(record(index, on), wait(one % len(streams), index), again)
        elif kind == "wait_stream" and one % len(streams) != on:
            put(wait_stream(on, one % len(streams)))
        elif kind == "across" and others:
            other = others[one % len(others)]
            after(across(on, other, first, buffer(two, streams[other] % indices)), two)
        elif kind == "add" and first != second:
            after(add(on, first, second), one)
        elif kind == "copy" and first != second:
            after(copy(on, first, second), one)
    released = sorted(range(len(streams)), key=lambda each: (ranks[each], each))
    return Program(indices, streams, tuple(made), tuple(released))
