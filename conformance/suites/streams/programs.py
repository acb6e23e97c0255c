"""Drawn programs of streams: the result of running concurrently equals that of running in one order.

A program is data: the index of each stream, instructions, and the order in which its streams are let go.
Of two accesses to one buffer of which one writes, a program orders the second after the first: by its
stream, or by waits. So the result is that of the instructions one by one, whatever runs concurrently.

What a run does is a list of operations: streams, buffers and events are made, the instructions are queued while
each stream is held, then one stream after the other is let go, and in the end the buffers are compared. A repro
script shows the very same operations, line by line.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import astuple, dataclass, field
from functools import cache
from typing import Any, ClassVar

import torch

from conformance.checks.cases.cases import Cases, Drawn
from conformance.checks.cases.context import Context
from conformance.checks.cases.drawing import Trial, search, straight
from conformance.checks.cases.in_flight import Hold, ends
from conformance.suites.streams.work import SIZE
from devices.descriptor import Descriptor
from devices.failure import Kind

cases = Cases(Kind.ORDER)

Clock = dict[int, int]  # by stream, how much of it has gone before

#: Buffers, and events that a program may record more than once, on every index.
BUFFERS, EVENTS = 3, 1
#: Seconds for which streams are watched that must not be done yet; and longer, for what has failed before.
GLANCE, LONG_GLANCE = 0.001, 0.02
_MOST_STREAMS = 4
_FEW, _MORE = (0, 20), (1, 80)  # seed, programs: of every plan, and of those beyond quick


class Running:
    """What the operations of a run work on."""

    def __init__(self, context: Context, stack: ExitStack) -> None:
        self.context = context
        self.stack = stack
        self.streams: dict[int, Any] = {}
        self.buffers: dict[int, torch.Tensor] = {}
        self.events: dict[int, Any] = {}
        self.holds: dict[int, Hold] = {}


#: How a script names what is in the tables of a run.
_NAMES = {"streams": "s", "buffers": "x", "events": "e", "holds": "hold"}


# -- instructions


@dataclass(frozen=True, slots=True)
class Instruction:
    """One instruction of a program. Its fields are numbers of streams, buffers and events."""

    name: ClassVar[str]
    uses: ClassVar[tuple[str, ...]] = ("on",)  # the fields that are the streams it uses
    gets: ClassVar[tuple[str, ...]] = ()  # … buffers that it reads
    puts: ClassVar[tuple[str, ...]] = ()  # … buffers that it writes

    @property
    def literal(self) -> tuple[Any, ...]:
        return self.name, *astuple(self)

    @property
    def places(self) -> tuple[int, ...]:
        return tuple(getattr(self, name) for name in self.uses)

    @property
    def reads(self) -> tuple[int, ...]:
        return tuple(getattr(self, name) for name in self.gets)

    @property
    def writes(self) -> tuple[int, ...]:
        return tuple(getattr(self, name) for name in self.puts)

    def do(self, run: Running) -> None:
        """Queue it."""
        raise NotImplementedError

    def compute(self, buffers: Sequence[torch.Tensor]) -> None:
        """What it makes of the buffers, on the CPU."""


@dataclass(frozen=True, slots=True)
class Step(Instruction):
    """x = 3 x + number, in two kernels: with another number, or in another order, the result is another."""

    name, gets, puts = "step", ("buffer",), ("buffer",)
    on: int
    buffer: int
    number: int

    def do(self, run: Running) -> None:
        with run.streams[self.on]:
            run.buffers[self.buffer].mul_(3).add_(self.number)

    def compute(self, buffers: Sequence[torch.Tensor]) -> None:
        buffers[self.buffer].mul_(3).add_(self.number)

    def __str__(self) -> str:
        return f"s{self.on}: x{self.buffer} = 3 x{self.buffer} + {self.number}"


@dataclass(frozen=True, slots=True)
class Add(Instruction):
    """x = x + other."""

    name, gets, puts = "add", ("buffer", "other"), ("buffer",)
    on: int
    buffer: int
    other: int

    def do(self, run: Running) -> None:
        with run.streams[self.on]:
            run.buffers[self.buffer].add_(run.buffers[self.other])

    def compute(self, buffers: Sequence[torch.Tensor]) -> None:
        buffers[self.buffer].add_(buffers[self.other])

    def __str__(self) -> str:
        return f"s{self.on}: x{self.buffer} += x{self.other}"


@dataclass(frozen=True, slots=True)
class Copy(Instruction):
    """target = source."""

    name, gets, puts = "copy", ("source",), ("target",)
    on: int
    source: int
    target: int

    def do(self, run: Running) -> None:
        with run.streams[self.on]:
            run.buffers[self.target].copy_(run.buffers[self.source], non_blocking=True)

    def compute(self, buffers: Sequence[torch.Tensor]) -> None:
        buffers[self.target].copy_(buffers[self.source])

    def __str__(self) -> str:
        return f"s{self.on}: x{self.target} = x{self.source}"


@dataclass(frozen=True, slots=True)
class Across(Instruction):
    """target = source; the source is on the index of the first stream, the target on the index of the other."""

    name, gets, puts, uses = "across", ("source",), ("target",), ("on", "other")
    on: int
    other: int
    source: int
    target: int

    def do(self, run: Running) -> None:
        with run.streams[self.on], run.streams[self.other]:
            run.buffers[self.target].copy_(run.buffers[self.source], non_blocking=True)

    def compute(self, buffers: Sequence[torch.Tensor]) -> None:
        buffers[self.target].copy_(buffers[self.source])

    def __str__(self) -> str:
        return f"s{self.on} to s{self.other}: x{self.target} = x{self.source}"


@dataclass(frozen=True, slots=True)
class Record(Instruction):
    """Record an event on a stream."""

    name = "record"
    event: int
    on: int

    def do(self, run: Running) -> None:
        run.events[self.event].record(run.streams[self.on])

    def __str__(self) -> str:
        return f"record e{self.event} on s{self.on}"


@dataclass(frozen=True, slots=True)
class Wait(Instruction):
    """A stream waits for an event."""

    name = "wait"
    on: int
    event: int

    def do(self, run: Running) -> None:
        run.streams[self.on].wait_event(run.events[self.event])

    def __str__(self) -> str:
        return f"s{self.on} waits for e{self.event}"


@dataclass(frozen=True, slots=True)
class WaitStream(Instruction):
    """A stream waits for another."""

    name, uses = "wait_stream", ("on", "other")
    on: int
    other: int

    def do(self, run: Running) -> None:
        run.streams[self.on].wait_stream(run.streams[self.other])

    def __str__(self) -> str:
        return f"s{self.on} waits for s{self.other}"


_KINDS = {kind.name: kind for kind in (Step, Add, Copy, Across, Record, Wait, WaitStream)}


def instruction_of(literal: Sequence[Any]) -> Instruction:
    """The instruction of a literal. Raises ValueError if it is not one."""
    name, *numbers = literal
    kind = _KINDS.get(name)
    if kind is None or not all(type(each) is int for each in numbers):
        raise ValueError(f"not an instruction: {literal!r}")
    try:
        return kind(*numbers)
    except TypeError:  # too many numbers, or too few
        raise ValueError(f"not an instruction: {literal!r}") from None


@dataclass(frozen=True, slots=True)
class Program:
    """``indices`` that are used; ``streams``: the index of each; ``released``: the order in which they
    are let go."""

    indices: int
    streams: tuple[int, ...]
    instructions: tuple[Instruction, ...]
    released: tuple[int, ...]

    @property
    def literal(self) -> tuple[Any, ...]:
        """The program as literals."""
        told = tuple(each.literal for each in self.instructions)
        return self.indices, self.streams, told, self.released

    def __str__(self) -> str:
        where = ", ".join(f"s{place} on {index}" for place, index in enumerate(self.streams))
        lines = "; ".join(map(str, self.instructions))
        order = ", ".join(f"s{place}" for place in self.released)
        return f"[{where}] {lines or 'nothing'} [let go: {order}]"


def program_of(
    indices: int,
    streams: Sequence[int],
    instructions: Sequence[Sequence[Any]],
    released: Sequence[int],
) -> Program:
    """The program of a literal. Raises ValueError if an instruction is not one."""
    made = tuple(instruction_of(each) for each in instructions)
    return Program(indices, tuple(streams), made, tuple(released))


# -- what a program orders, and what it computes


def _later(mine: Clock, other: Clock) -> Clock:
    return {key: max(mine.get(key, 0), other.get(key, 0)) for key in {*mine, *other}}


@dataclass(slots=True)
class Order:
    """What has gone before what: by stream and event, a clock of all streams.

    A stream begins with what holds it, its first tick.
    """

    streams: tuple[int, ...]
    clocks: list[Clock] = field(default_factory=list)
    events: dict[int, Clock] = field(default_factory=dict)
    writes: dict[int, tuple[int, int]] = field(default_factory=dict)  # buffer -> stream, tick
    reads: dict[int, list[tuple[int, int]]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.clocks = [{place: 1} for place in range(len(self.streams))]

    def unseen(self, instruction: Instruction) -> list[int]:
        """Streams that must be waited for before an instruction may use its buffers."""
        clock: Clock = {}
        for place in instruction.places:
            clock = _later(clock, self.clocks[place])
        used = (*instruction.reads, *instruction.writes)
        before = [self.writes[buffer] for buffer in used if buffer in self.writes]
        before += [access for buffer in instruction.writes for access in self.reads.get(buffer, ())]
        return sorted({stream for stream, tick in before if clock.get(stream, 0) < tick})

    def take(self, instruction: Instruction) -> None:
        """Go on by one instruction."""
        match instruction:
            case Record(event, on):
                self.events[event] = dict(self.clocks[on])
            case Wait(on, event):
                self.clocks[on] = _later(self.clocks[on], self.events.get(event, {}))
            case WaitStream(on, other):
                self.clocks[on] = _later(self.clocks[on], self.clocks[other])
            case _:
                self._work(instruction)

    def _work(self, instruction: Instruction) -> None:
        """Work on one stream, or a copy that uses two."""
        on, clock = instruction.places, Clock()
        for place in on:
            clock = _later(clock, self.clocks[place])
        for place in on:
            clock[place] = clock.get(place, 0) + 1
        for place in on:
            self.clocks[place] = dict(clock)
        at = on[0], clock[on[0]]
        for buffer in instruction.reads:
            self.reads.setdefault(buffer, []).append(at)
        for buffer in instruction.writes:
            self.writes[buffer] = at
            self.reads[buffer] = []


def fresh_buffers(indices: int) -> list[torch.Tensor]:
    """The buffers at the beginning. Buffer ``x`` is on index ``x % indices``."""
    return [
        torch.arange(SIZE, dtype=torch.int32) * (number + 1) for number in range(BUFFERS * indices)
    ]


def on_the_cpu(program: Program) -> list[torch.Tensor]:
    """The buffers after the instructions, one by one."""
    buffers = fresh_buffers(program.indices)
    for instruction in program.instructions:
        instruction.compute(buffers)
    return buffers


# -- a run, as operations


@dataclass(frozen=True, slots=True)
class MakeStream:
    place: int
    index: int

    def do(self, run: Running) -> None:
        run.streams[self.place] = run.context.stream(self.index)


@dataclass(frozen=True, slots=True)
class TheyDiffer:
    places: tuple[int, ...]

    def do(self, run: Running) -> None:
        streams = [run.streams[place] for place in self.places]
        run.context.must(len(set(streams)) == len(streams), "the streams differ")


@dataclass(frozen=True, slots=True)
class MakeBuffer:
    buffer: int
    factor: int
    index: int

    def do(self, run: Running) -> None:
        run.buffers[self.buffer] = arange(self.factor, 0).to(run.context.at(self.index))


@dataclass(frozen=True, slots=True)
class MakeEvent:
    event: int
    index: int

    def do(self, run: Running) -> None:
        run.events[self.event] = run.context.event(self.index)


@dataclass(frozen=True, slots=True)
class Settle:
    def do(self, run: Running) -> None:
        run.context.settle()


@dataclass(frozen=True, slots=True)
class Held:
    place: int

    def do(self, run: Running) -> None:
        run.holds[self.place] = run.stack.enter_context(run.context.hold(run.streams[self.place]))


@dataclass(frozen=True, slots=True)
class InFlight:
    place: int

    def do(self, run: Running) -> None:
        run.holds[self.place].must_be_in_flight()


@dataclass(frozen=True, slots=True)
class Release:
    place: int

    def do(self, run: Running) -> None:
        run.holds[self.place].release()


@dataclass(frozen=True, slots=True)
class GoesOn:
    """Nothing that the stream waits for is held."""

    place: int

    def do(self, run: Running) -> None:
        goes_on(run.context, run.streams[self.place], f"s{self.place}")


@dataclass(frozen=True, slots=True)
class MustWait:
    """Something that the streams wait for is held."""

    places: tuple[int, ...]
    held: str
    glance: float

    def do(self, run: Running) -> None:
        must_wait(
            run.context, [run.streams[place] for place in self.places], self.held, self.glance
        )


@dataclass(frozen=True, slots=True)
class Done:
    place: int

    def do(self, run: Running) -> None:
        run.context.check(
            ends(run.streams[self.place], 20.0), "all work of a stream is done", at=f"s{self.place}"
        )


@dataclass(frozen=True, slots=True)
class Equal:
    """A buffer is ``factor`` times 0, 1, 2 … plus ``more``: steps and sums keep it of that form."""

    buffer: int
    factor: int
    more: int

    def do(self, run: Running) -> None:
        run.context.equal(
            run.buffers[self.buffer],
            arange(self.factor, self.more),
            "a buffer is as in one order",
            at=f"x{self.buffer}",
        )


def arange(factor: int, more: int) -> torch.Tensor:
    return torch.arange(SIZE, dtype=torch.int32) * factor + more


def goes_on(context: Context, stream: Any, name: str) -> None:
    text = "a stream continues when nothing that it waits for is held"
    context.check(ends(stream, 5.0), text, at=name)


def must_wait(context: Context, streams: Sequence[Any], held: str, glance: float) -> None:
    """Watch streams for a glance: none may be done."""
    end, early = time.monotonic() + glance, False
    while streams and not early and time.monotonic() < end:
        early = True in [stream.query() for stream in streams]
        time.sleep(0.0001)
    for _ in streams:
        context.check(not early, "a stream waits while what it waits for is held", at=held)


def before_and_while_held(
    program: Program, gate: bool, glance: float
) -> tuple[list[Any], list[Any]]:
    """Making what a program uses; and what is done while its streams are held.

    Every stream is held where a gate does it; else the one that is let go last, for a time.
    """
    places = range(len(program.streams))
    make: list[Any] = [MakeStream(place, program.streams[place]) for place in places]
    make.append(TheyDiffer(tuple(places)))
    indices = program.indices
    make += [MakeBuffer(each, each + 1, each % indices) for each in range(BUFFERS * indices)]
    events: dict[int, int] = {}
    for instruction in program.instructions:
        if isinstance(instruction, (Record, Wait)):
            events.setdefault(instruction.event, program.streams[instruction.on])
    make += [MakeEvent(event, index) for event, index in events.items()]
    held = program.released if gate else program.released[-1:]
    queued: list[Any] = [Held(place) for place in held]
    queued += program.instructions
    queued += [InFlight(place) for place in held]
    return [*make, Settle()], [*queued, *(_let_go(program, glance) if gate else ())]


def _let_go(program: Program, glance: float) -> Iterator[Any]:
    """Release one stream after the other. What waits for one that is held must not be done; what does not
    must be."""
    order = Order(program.streams)
    for instruction in program.instructions:
        order.take(instruction)
    waiting = set(program.released)
    for place in program.released:
        yield Release(place)
        waiting.discard(place)
        let_go = [each for each in program.released if each not in waiting]
        behind = [each for each in let_go if waiting & set(order.clocks[each])]
        yield from (GoesOn(each) for each in let_go if each not in behind)
        if behind:
            held = ", ".join(f"s{one}" for one in sorted(waiting))
            late = ", ".join(f"s{one}" for one in behind)
            yield MustWait(tuple(behind), f"{late}; held: {held}", glance)


def afterwards(program: Program) -> list[Any]:
    """All streams end, and every buffer is what the instructions make of it one by one."""
    done: list[Any] = [Done(place) for place in range(len(program.streams))]
    ends_as = [
        Equal(number, int(want[1] - want[0]), int(want[0]))
        for number, want in enumerate(on_the_cpu(program))
    ]
    return [*done, Settle(), *ends_as]


def run_once(context: Context, program: Program, glance: float) -> None:
    """Queue all while it is held, let it go, and compare. Raises CheckFailed."""
    gate = context.descriptor.gate is not None
    before, held = before_and_while_held(program, gate, glance)
    with ExitStack() as stack:
        run = Running(context, stack)
        for operation in (*before, *held):
            operation.do(run)
    for operation in afterwards(program):
        operation.do(run)


def replay(context: Context, *literal: Any) -> None:
    """Run a program that was written down. A race may need more than one run to show."""
    for _ in range(5):
        run_once(context, program_of(*literal), LONG_GLANCE)


def source(descriptor: Descriptor, *literal: Any) -> str:
    """The same as a function, line by line."""
    program = program_of(*literal)
    before, held = before_and_while_held(program, descriptor.gate is not None, LONG_GLANCE)
    return (
        "def once(context: Context) -> None:\n"
        + straight(before, _NAMES, 1)
        + "    with ExitStack() as stack:\n"
        + straight(held, _NAMES, 2)
        + straight(afterwards(program), _NAMES, 1)
        + "\n\ndef program(context: Context) -> None:\n"
        + f'    """{program}"""\n'
        + "    for _ in range(5):  # a race may need more than one run to show\n        once(context)\n"
    )


def validate(
    indices: int,
    streams: Sequence[int],
    instructions: Sequence[Sequence[Any]],
    released: Sequence[int],
) -> None:
    """Raises an exception if these are not a program: an unknown instruction, a stream or a buffer that does
    not exist, accesses that nothing orders."""
    order = Order(tuple(streams))
    if not set(streams) <= set(range(indices)):
        raise ValueError(f"indices {streams!r}, of {indices}")
    if sorted(released) != list(range(len(streams))):
        raise ValueError(f"streams {released!r} are let go, of {len(streams)}")
    program = program_of(indices, streams, instructions, released)
    for each in program.instructions:
        buffers = (*each.reads, *each.writes)
        known = all(place in range(len(streams)) for place in each.places)
        if not known or not all(buffer in range(BUFFERS * indices) for buffer in buffers):
            raise ValueError(f"not an instruction of this program: {each.literal!r}")
        if order.unseen(each):
            raise ValueError(f"nothing orders {each.literal!r} after what went before")
        order.take(each)
    on_the_cpu(program)


# -- drawing programs


_DRAWN = Drawn(replay, lambda *literal: str(program_of(*literal)), validate, source)
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
            trial.run(program.literal, lambda: run_once(context, program, glance))

    with trial.shrunk():
        search(drawn_programs(indices), holds, seed, programs)
    trial.must_have_run(programs)


@cache
def drawn_programs(indices: int) -> Any:
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
    streams: tuple[int, ...], drawn: Iterable[Any], ranks: Sequence[int], indices: int
) -> Program:
    """The program of drawn numbers, with the waits that it lacks: by an event, or for a stream."""
    order, made = Order(streams), list[Instruction]()
    fresh = EVENTS * indices

    def put(*instructions: Instruction) -> None:
        for instruction in instructions:
            order.take(instruction)
            made.append(instruction)

    def after(instruction: Instruction, way: int) -> None:
        nonlocal fresh
        on = instruction.places[0]
        for other in order.unseen(instruction):
            if way % 2:
                put(WaitStream(on, other))
                continue
            put(Record(fresh, other), Wait(on, fresh))
            fresh += 1
        put(instruction)

    def buffer(number: int, index: int) -> int:
        return number % BUFFERS * indices + index

    for kind, place, one, two in drawn:
        on = place % len(streams)
        index = streams[on]
        first, second = buffer(one, index), buffer(two, index)
        others = [each for each, where in enumerate(streams) if where != index]
        if kind == "step":
            after(Step(on, first, two), two)
        elif kind == "record":
            put(Record(one % EVENTS * indices + index, on))
        elif kind == "wait":
            put(Wait(on, one % (EVENTS * indices)))
        elif kind == "hand_over":  # an event that is recorded again after a wait for it
            event = one % EVENTS * indices + index
            alike = [each for each, where in enumerate(streams) if where == index]
            put(Record(event, on))
            put(Wait(one % len(streams), event))
            put(Record(event, alike[two % len(alike)]))
        elif kind == "wait_stream" and one % len(streams) != on:
            put(WaitStream(on, one % len(streams)))
        elif kind == "across" and others:
            other = others[one % len(others)]
            after(Across(on, other, first, buffer(two, streams[other])), two)
        elif kind == "add" and first != second:
            after(Add(on, first, second), one)
        elif kind == "copy" and first != second:
            after(Copy(on, first, second), one)
    released = sorted(range(len(streams)), key=lambda each: (ranks[each], each))
    return Program(indices, streams, tuple(made), tuple(released))
