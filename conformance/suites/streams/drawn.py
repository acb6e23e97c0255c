"""Cases that draw stream programs at random and run them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import cache, partial
from random import Random
from typing import Any

from conformance.checks.cases.cases import Cases, Drawn
from conformance.checks.cases.context import CaseContext
from conformance.checks.programs.language import Reach, Step, steered
from conformance.checks.programs.trials import Trial, search
from conformance.suites.streams.stream_programs import (
    LONG,
    MOST_STREAMS,
    NUMBERS,
    SHORT,
    STREAMS,
    Model,
    Program,
    replay,
    run_once,
    source,
    validate,
)
from devices.failure import Kind

cases = Cases(Kind.ORDER)

_FEW, _MORE = (0, 12), (1, 80)  # (seed, number of programs): in every plan; beyond quick

_DRAWN = Drawn(replay, lambda *literal: str(Program(*literal)), validate, source)
_LENGTH = 30  # the most instructions of a steered program
_SLOW: dict[str, Any] = {"slow": True, "drawn": _DRAWN}


@cases("streams.wait", over={"drawn": (1, *_FEW)}, **_SLOW)
@cases("streams.wait", over={"drawn_more": (1, *_MORE)}, more=True, **_SLOW)
@cases("streams.cross_device", over={"drawn": (2, *_FEW)}, indices=2, **_SLOW)
@cases("streams.cross_device", over={"drawn_more": (2, *_MORE)}, indices=2, more=True, **_SLOW)
def drawn(context: CaseContext, indices: int, seed: int, programs: int) -> None:
    """Programs of kernels, copies, event records and waits on several streams are drawn at random. Running a
    program concurrently gives the same values as running its instructions one by one."""
    trial, reach = Trial(context, _DRAWN), Reach(STREAMS.table(Model(indices)))

    def holds(program: Program) -> None:
        if trial.begin():
            seconds = LONG if trial.found else SHORT
            reach.missing -= program.begin().reached(program.instructions)
            trial.run(program.literal, lambda: run_once(context, program, seconds))

    def run(*literal: Any) -> None:
        run_once(context, Program(*literal), LONG)

    trial.judge(
        reach,
        programs,
        search=lambda: search(drawn_programs(indices), holds, seed, programs),
        steered=steered_programs(indices, reach, seed),
        holds=holds,
        shorter=partial(trial.shorten, 2, run),
    )


@cache
def drawn_programs(indices: int) -> Any:
    """Returns the hypothesis strategy that draws programs on the given number of device indices. All searches
    use the same strategy, because hypothesis keeps data about every strategy."""
    from hypothesis import strategies as st

    number, place = st.integers(0, NUMBERS - 1), st.integers(0, MOST_STREAMS - 1)
    # This order of the kinds decides which programs a seed draws.
    kinds = (*dict.fromkeys(("step", "copy", *STREAMS.instructions)), "hand_over")
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
    model, made = Model(indices, streams), list[Step]()
    fresh = indices  # the number of the next event for a single record

    def put(*steps: Step) -> None:
        for each in steps:
            model.take(each)
            made.append(each)

    for kind, place, one, two in drawn:
        on, peer = place % len(streams), one % len(streams)
        alike = [each for each in range(len(streams)) if model.index(each) == model.index(on)]
        if kind == "hand_over":  # an event that is recorded again after a wait for it
            index = model.index(on)
            again = ("record", index, alike[two % len(alike)])
            put(("record", index, on), ("wait", peer, index), again)
            continue
        if kind == "across":
            others = sorted({*range(len(streams))} - {*alike}) or [on]
            peer = others[one % len(others)]
        buffers = {"first": one, "second": two, "third": two}
        step = model.drawn(
            kind, on=on, peer=peer, there=one % indices, event=0, number=two, **buffers
        )
        operands = model.operands(step)
        if model.misuse(operands):
            continue
        for other in model.unseen(operands):
            if (one if kind in ("add", "copy") else two) % 2:
                put(("wait_stream", on, other))
            else:
                put(("record", fresh, other), ("wait", on, fresh))
                fresh += 1
        put(step)
    released = sorted(range(len(streams)), key=lambda each: (ranks[each], each))
    return Program(indices, streams, tuple(made), tuple(released))


def steered_programs(indices: int, reach: Reach, seed: int) -> Iterator[Program]:
    """Yields programs that cover the pairs of instructions and the states in ``reach.missing``."""

    def begin(random: Random) -> Model:
        streams = {random.randrange(indices * 3) for _ in range(MOST_STREAMS)}
        made = list(streams)
        while len(made) < MOST_STREAMS:  # each index has one default stream
            number = random.randrange(indices * 3)
            made += [number] if number // indices != 1 else []
        random.shuffle(made)
        return Model(indices, made)

    random = Random(seed)
    for model, instructions in steered(begin, reach, seed, _LENGTH):
        released = tuple(random.sample(range(MOST_STREAMS), MOST_STREAMS))
        yield Program(indices, model.streams, tuple(instructions), released)
