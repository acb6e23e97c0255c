"""Drawn programs of streams: the result of running concurrently equals that of running in one order.

A program is data: the index of each stream, instructions, and the order in which its streams are let go.
Of two accesses to one buffer of which one writes, a program orders the second after the first: by its
stream, or by waits. So the result is that of the instructions one by one, whatever runs concurrently.

What a run does is a list of operations: streams, buffers and events are made, the instructions are queued while
each stream is held, then one stream after the other is let go, and in the end the buffers are compared. A repro
script shows the very same operations, line by line.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, nullcontext, suppress
from dataclasses import dataclass, field
from functools import cache, reduce
from itertools import product
from operator import or_
from random import Random
from typing import Any

import torch

from conformance.checks.cases.cases import Cases, Drawn
from conformance.checks.cases.context import Context
from conformance.checks.cases.drawing import (
    Operation,
    Trial,
    operation,
    perform,
    search,
    settle,
    straight,
)
from conformance.checks.cases.in_flight import Hold
from conformance.checks.cases.reach import Key, Reach, reached, steered, without
from conformance.checks.clock import comes_to_be
from conformance.suites.streams.work import SIZE, priorities
from devices.descriptor import Descriptor
from devices.failure import Kind

cases = Cases(Kind.ORDER)

#: Buffers on every index. Each index also has an event, of its number, that a program may record more than once.
BUFFERS = 3
#: Seconds of the turn that streams get which must not be done yet; and longer, for what has failed before.
SHORT, LONG = 0.001, 0.02
_MOST_STREAMS = 4
#: What a stream is, by its number divided by the indices; the remainder is its index.
_KINDS_OF_STREAM = ("", "the default", "of high priority")
_FEW, _MORE = (0, 12), (1, 80)  # seed, programs: of every plan, and of those beyond quick
#: Instructions of a program that is steered, and those drawn of each kind to choose from.
_LENGTH, _CHOICES = 30, 4


@dataclass
class Tables:
    """What instructions work on, by number."""

    streams: dict[int, Any] = field(default_factory=dict)
    buffers: dict[int, torch.Tensor] = field(default_factory=dict)
    events: dict[int, Any] = field(default_factory=dict)


@dataclass(kw_only=True)
class Running(Tables):
    """What the operations of a run work on."""

    context: Context
    stack: ExitStack
    holds: dict[int, Hold] = field(default_factory=dict)


#: How a script names what is in the tables of a run.
_NAMES = {"streams": "s", "buffers": "x", "events": "e", "holds": "hold"}


# -- instructions: the operations of a program. Their numbers are of streams (``on``, ``peer``), events and buffers: a
# ``source`` is read, a ``target`` is written, a ``buffer`` is both.


@operation
def step(run: Tables, on: int, buffer: int, number: int) -> None:
    """Two kernels: with another number, or in another order, the result is another."""
    with run.streams[on]:
        run.buffers[buffer].mul_(3).add_(number)


@operation
def add(run: Tables, on: int, buffer: int, source: int) -> None:
    with run.streams[on]:
        run.buffers[buffer].add_(run.buffers[source])


@operation
def copy(run: Tables, on: int, source: int, target: int) -> None:
    with run.streams[on]:
        run.buffers[target].copy_(run.buffers[source], non_blocking=True)


@operation
def across(run: Tables, on: int, peer: int, source: int, target: int) -> None:
    """The source is on the index of the first stream, the target on the index of the other."""
    with run.streams[on], run.streams[peer]:
        run.buffers[target].copy_(run.buffers[source], non_blocking=True)


@operation
def record(run: Tables, event: int, on: int) -> None:
    run.events[event].record(run.streams[on])


@operation
def wait(run: Tables, on: int, event: int) -> None:
    run.streams[on].wait_event(run.events[event])


@operation
def wait_stream(run: Tables, on: int, peer: int) -> None:
    run.streams[on].wait_stream(run.streams[peer])


_KINDS = {each.__name__: each for each in (step, add, copy, across, record, wait, wait_stream)}
_TEXTS = {
    "step": "s{on}: x{buffer} = 3 x{buffer} + {number}",
    "add": "s{on}: x{buffer} += x{source}",
    "copy": "s{on}: x{target} = x{source}",
    "across": "s{on} to s{peer}: x{target} = x{source}",
    "record": "record e{event} on s{on}",
    "wait": "s{on} waits for e{event}",
    "wait_stream": "s{on} waits for s{peer}",
}


def instruction_of(literal: Sequence[Any]) -> Operation:
    """The instruction of a literal. Raises ValueError if it is not one."""
    name, *numbers = literal
    with suppress(KeyError, ValueError):  # an unknown name; too many numbers, or too few
        if all(type(each) is int for each in numbers):
            return _KINDS[name](*numbers)
    raise ValueError(f"not an instruction: {literal!r}")


def _numbers(instruction: Operation, *names: str) -> list[int]:
    return [instruction.given[name] for name in names if name in instruction.given]


def places(instruction: Operation) -> list[int]:
    return _numbers(instruction, "on", "peer")


def reads(instruction: Operation) -> list[int]:
    return _numbers(instruction, "buffer", "source")


def writes(instruction: Operation) -> list[int]:
    return _numbers(instruction, "buffer", "target")


@dataclass(frozen=True, slots=True)
class Program:
    """``indices`` that are used; ``streams``: a number for each, its index plus ``indices`` times its kind; ``released``:
    the order in which they are let go."""

    indices: int
    streams: tuple[int, ...]
    instructions: tuple[Operation, ...]
    released: tuple[int, ...]

    def index(self, place: int) -> int:
        """The index of a stream."""
        return self.streams[place] % self.indices

    @property
    def literal(self) -> tuple[Any, ...]:
        told = tuple(each.literal for each in self.instructions)
        return self.indices, self.streams, told, self.released

    def __str__(self) -> str:
        kinds = (_KINDS_OF_STREAM[number // self.indices] for number in self.streams)
        where = ", ".join(
            f"s{place} on {self.index(place)}{f' ({kind})' if kind else ''}"
            for place, kind in enumerate(kinds)
        )
        lines = "; ".join(_TEXTS[each.name].format(**each.given) for each in self.instructions)
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


class Order:
    """What has gone before what: by stream and event, a clock of all streams. Clocks are replaced, never changed.

    A stream begins with what holds it, its first tick.
    """

    def __init__(self, streams: int) -> None:
        self.clocks = [Counter({place: 1}) for place in range(streams)]
        self.events: dict[int, Counter[int]] = {}
        self.writes: dict[int, tuple[int, int]] = {}  # buffer -> stream, tick
        self.reads: defaultdict[int, list[tuple[int, int]]] = defaultdict(list)

    def _before(self, instruction: Operation) -> Counter[int]:
        """What has gone before on the streams that an instruction uses."""
        return reduce(or_, (self.clocks[place] for place in places(instruction)))

    def unseen(self, instruction: Operation) -> list[int]:
        """Streams that must be waited for before an instruction may use its buffers."""
        clock = self._before(instruction)
        used = {*reads(instruction), *writes(instruction)}
        before = [self.writes[buffer] for buffer in used if buffer in self.writes]
        before += [access for buffer in writes(instruction) for access in self.reads[buffer]]
        return sorted({stream for stream, tick in before if clock[stream] < tick})

    def take(self, instruction: Operation) -> None:
        match instruction.literal:
            case "record", event, on:
                self.events[event] = self.clocks[on]
            case "wait", on, event:
                self.clocks[on] = self.clocks[on] | self.events.get(event, Counter())
            case "wait_stream", on, peer:
                self.clocks[on] = self.clocks[on] | self.clocks[peer]
            case _:  # work on one stream, or a copy that uses two
                on = places(instruction)
                clock = self._before(instruction) + Counter(on)
                for place in on:
                    self.clocks[place] = clock
                at = on[0], clock[on[0]]
                for buffer in reads(instruction):
                    self.reads[buffer].append(at)
                for buffer in writes(instruction):
                    self.writes[buffer] = at
                    self.reads[buffer] = []


# -- what programs reach


class Walk:
    """A program as it grows, and what its next instruction would reach."""

    def __init__(self, indices: int, streams: tuple[int, ...]) -> None:
        self.program = Program(indices, streams, (), tuple(range(len(streams))))
        self.order = Order(len(streams))
        self.last: Operation | None = None
        self.recorded: dict[int, list[int]] = {}  # the streams that recorded an event, in order
        self.waited: dict[int, int] = {}  # how many waited for its last record

    def kind(self, place: int) -> str:
        return _WORDS[self.program.streams[place] // self.program.indices]

    def between(self, one: int, other: int) -> str:
        if one == other:
            return "same stream"
        alike = self.program.index(one) == self.program.index(other)
        return "other stream" if alike else "other index"

    def reaches(self, instruction: Operation) -> set[Key]:
        name, on, order = instruction.name, instruction.given["on"], self.order
        found: set[Key] = {("instruction", name, self.kind(on))}
        if self.last is not None:
            before = self.last
            found.add(("pair", before.name, name, self.between(before.given["on"], on)))
        match instruction.literal:
            case "record", event, _:
                found.add(("record", _RECORDS[(event in self.recorded) + (event in self.waited)]))
            case "wait", _, event if event not in self.recorded:
                found.add(("wait", "never recorded"))
            case "wait", _, event:
                recorder = self.recorded[event][-1]
                found.add(("wait", self.kind(on), self.kind(recorder), self.between(on, recorder)))
                if event in self.waited:
                    found.add(("wait", "not the first"))
                if len(self.recorded[event]) > 1:
                    found.add(("wait", "recorded again"))
            case ("wait_stream", _, peer) | ("across", _, peer, _, _):
                found.add((name, self.kind(on), self.kind(peer), self.between(on, peer)))
        read, write, places_ = (
            set(reads(instruction)),
            set(writes(instruction)),
            places(instruction),
        )
        for buffer in read | write:
            writer = order.writes.get(buffer, (on,))[0]
            if writer not in places_:
                found |= {("read", name, "others wrote")} if buffer in read else set()
                found |= {("write", name, "others wrote")} if buffer in write else set()
            if buffer in write and {stream for stream, _ in order.reads[buffer]}.difference(
                places_
            ):
                found.add(("write", name, "others read"))
        return found

    def take(self, instruction: Operation) -> None:
        self.order.take(instruction)
        self.last = instruction
        match instruction.literal:
            case "record", event, on:
                self.recorded.setdefault(event, []).append(on)
                self.waited.pop(event, None)
            case "wait", _, event if event in self.recorded:
                self.waited[event] = self.waited.get(event, 0) + 1

    def proposals(self, random: Random) -> list[Operation]:
        """A few of each instruction that needs no wait before it."""
        indices, streams = self.program.indices, range(len(self.program.streams))
        found: list[Operation] = []
        for _ in range(_CHOICES):
            on, peer = random.choice(streams), random.choice(streams)
            here, there = self.program.index(on), self.program.index(peer)
            first, second, third = (
                random.randrange(BUFFERS) * indices + at for at in (here, here, there)
            )
            event = random.randrange(2) * indices
            found += [
                step(on, first, random.randrange(9)),
                record(event + here, on),
                wait(on, event + there),
            ]
            found += [add(on, first, second), copy(on, first, second)] if first != second else []
            found += [wait_stream(on, peer)] if on != peer else []
            found += [across(on, peer, first, third)] if here != there else []
        return [each for each in found if not self.order.unseen(each)]


_WORDS = ("side", "default", "priority")
_RECORDS = ("first", "again", "again after a wait")


@cache
def table(indices: int) -> frozenset[Key]:
    """All that programs on so many indices can reach."""
    names = [name for name in _KINDS if name != "across" or indices > 1]
    where = ["same stream", "other stream", "other index"][: 1 + indices]
    work = [name for name in names if "wait" not in name and name != "record"]
    found: set[Key] = {("instruction", name, kind) for name in names for kind in _WORDS}
    found |= {("pair", one, other, how) for one in names for other in names for how in where}
    found |= {("record", state) for state in _RECORDS}
    found |= {("wait", state) for state in ("never recorded", "not the first", "recorded again")}
    for one, other, how in product(_WORDS, _WORDS, where):
        found.add(("wait", one, other, how))
        found |= {("wait_stream", one, other, how)} if how != "same stream" else set()
        found |= {("across", one, other, how)} if how == "other index" else set()
    found |= {("read", name, "others wrote") for name in work}
    found |= {("write", name, state) for name in work for state in ("others wrote", "others read")}
    return without(found, dict(_impossible(where)))


def _impossible(where: Sequence[str]) -> Iterator[tuple[Key, str]]:
    for one, other, how in product(_WORDS, _WORDS, where):
        if how == "same stream" and one != other:
            yield ("wait", one, other, how), "a stream is of one kind"
        if (one, other, how) == ("default", "default", "other stream"):
            for name in ("wait", "wait_stream"):
                yield (name, one, other, how), "an index has one default stream"


def all_reached(program: Program) -> set[Key]:
    return reached(Walk(program.indices, program.streams), program.instructions)


def steered_programs(indices: int, reach: Reach, seed: int) -> Iterator[Program]:
    """The programs that reach what is missing."""

    def begin(random: Random) -> tuple[Walk, tuple[int, ...]]:
        streams = {random.randrange(indices * len(_WORDS)) for _ in range(_MOST_STREAMS)}
        made = list(streams)
        while len(made) < _MOST_STREAMS:  # default streams are there once
            number = random.randrange(indices * len(_WORDS))
            made += [number] if number // indices != 1 else []
        random.shuffle(made)
        return Walk(indices, tuple(made)), tuple(made)

    random = Random(seed)
    for streams, instructions in steered(reach, seed, _LENGTH, begin):
        released = tuple(random.sample(range(len(streams)), len(streams)))
        yield Program(indices, streams, tuple(instructions), released)


def fresh_buffers(indices: int) -> list[torch.Tensor]:
    """The buffers at the beginning. Buffer ``x`` is on index ``x % indices``."""
    return [arange(number + 1, 0) for number in range(BUFFERS * indices)]


def on_the_cpu(program: Program) -> list[torch.Tensor]:
    """The buffers after the instructions, one by one."""
    buffers = fresh_buffers(program.indices)
    run = Tables(defaultdict(nullcontext), dict(enumerate(buffers)))
    perform(run, filter(writes, program.instructions))
    return buffers


@operation
def make_stream(run: Running, place: int, index: int) -> None:
    run.streams[place] = run.context.stream(index)


@operation
def take_default_stream(run: Running, place: int, index: int) -> None:
    run.streams[place] = run.context.current_stream(index)


@operation
def make_priority_stream(run: Running, place: int, index: int) -> None:
    """A stream that comes first; of the usual priority where the device has no other."""
    urgent = {"priority": priorities(run.context)[1]} if run.context.has("stream_priority") else {}
    run.streams[place] = run.context.stream(index, **urgent)


_MAKE = (make_stream, take_default_stream, make_priority_stream)


@operation
def they_differ(run: Running, places: tuple[int, ...]) -> None:
    streams = [run.streams[place] for place in places]
    run.context.must(len(set(streams)) == len(streams), "the streams differ")


@operation
def make_buffer(run: Running, buffer: int, factor: int, index: int) -> None:
    run.buffers[buffer] = arange(factor, 0).to(run.context.at(index))


@operation
def make_event(run: Running, event: int, index: int) -> None:
    run.events[event] = run.context.event(index)


@operation
def hold(run: Running, place: int) -> None:
    run.holds[place] = run.stack.enter_context(run.context.hold(run.streams[place], needed=False))


@operation
def release(run: Running, place: int) -> None:
    run.holds[place].release()


@operation
def let_go(run: Running, place: int) -> None:
    """Nothing that the stream waits for is held."""
    goes_on(run.context, run.streams[place], f"s{place}")


@operation
def kept_waiting(run: Running, places: tuple[int, ...], held: str, seconds: float) -> None:
    """Something that the streams wait for is held."""
    must_wait(run.context, [run.streams[place] for place in places], held, seconds)


@operation
def done(run: Running, place: int) -> None:
    run.context.check(
        run.context.ends(run.streams[place], 20.0), "all work of a stream is done", at=f"s{place}"
    )


@operation
def equal(run: Running, buffer: int, factor: int, more: int) -> None:
    """A buffer is ``factor`` times 0, 1, 2 … plus ``more``: steps and sums keep it of that form."""
    run.context.equal(
        run.buffers[buffer], arange(factor, more), "a buffer is as in one order", at=f"x{buffer}"
    )


def arange(factor: int, more: int) -> torch.Tensor:
    return torch.arange(SIZE, dtype=torch.int32) * factor + more


def goes_on(context: Context, stream: Any, name: str) -> None:
    text = "a stream continues when nothing that it waits for is held"
    context.check(context.ends(stream, 5.0), text, at=name)


def must_wait(context: Context, streams: Sequence[Any], held: str, seconds: float) -> None:
    """Give streams their turn: none may be done."""
    early = comes_to_be(lambda: True in [stream.query() for stream in streams], seconds)
    for _ in streams:
        context.check(not early, "a stream waits while what it waits for is held", at=held)


def before_and_while_held(
    program: Program, gate: bool, seconds: float
) -> tuple[list[Operation], list[Operation]]:
    """Making what a program uses; and what is done while its streams are held.

    Every stream is held where a gate does it; else the one that is let go last, for a time.
    """
    indices = program.indices
    make = [
        _MAKE[number // indices](place, number % indices)
        for place, number in enumerate(program.streams)
    ]
    make.append(they_differ(tuple(range(len(make)))))
    make += [make_buffer(each, each + 1, each % indices) for each in range(BUFFERS * indices)]
    events: dict[int, int] = {}
    for instruction in program.instructions:
        if "event" in instruction.given:
            index = program.index(instruction.given["on"])
            if instruction.name == "record":  # an event is of the index that it is recorded on
                events[instruction.given["event"]] = index
            events.setdefault(instruction.given["event"], index)
    make += [make_event(event, index) for event, index in events.items()]
    held = program.released if gate else program.released[-1:]
    then = _let_go(program, seconds) if gate else ()
    return [*make, settle()], [*map(hold, held), *program.instructions, *then]


def _let_go(program: Program, seconds: float) -> Iterator[Operation]:
    """Release one stream after the other. What waits for one that is held must not be done; what does not
    must be."""
    order = Order(len(program.streams))
    for instruction in program.instructions:
        order.take(instruction)
    waiting = set(program.released)
    for place in program.released:
        yield release(place)
        waiting.discard(place)
        going = [each for each in program.released if each not in waiting]
        behind = [each for each in going if waiting & set(order.clocks[each])]
        yield from (let_go(each) for each in going if each not in behind)
        if behind:
            held = ", ".join(f"s{one}" for one in sorted(waiting))
            late = ", ".join(f"s{one}" for one in behind)
            yield kept_waiting(tuple(behind), f"{late}; held: {held}", seconds)


def afterwards(program: Program) -> list[Operation]:
    """All streams end, and every buffer is what the instructions make of it one by one."""
    ends_as = [
        equal(number, int(want[1] - want[0]), int(want[0]))
        for number, want in enumerate(on_the_cpu(program))
    ]
    return [*map(done, range(len(program.streams))), settle(), *ends_as]


def run_once(context: Context, program: Program, seconds: float) -> None:
    """Queue all while it is held, let it go, and compare. Raises CheckFailed."""
    before, held = before_and_while_held(program, context.descriptor.gate is not None, seconds)
    with ExitStack() as stack:
        run = Running(context=context, stack=stack)
        perform(run, [*before, *held])
    perform(run, afterwards(program))


def replay(context: Context, *literal: Any) -> None:
    """Run a program that was written down. A race may need more than one run to show."""
    for _ in range(5):
        run_once(context, program_of(*literal), LONG)


def source(descriptor: Descriptor, *literal: Any) -> str:
    """The same as a function, line by line."""
    program = program_of(*literal)
    before, held = before_and_while_held(program, descriptor.gate is not None, LONG)
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


def validate(*literal: Any) -> None:
    """Raises an exception if this is not a program: an unknown instruction, a stream or a buffer that does
    not exist, accesses that nothing orders."""
    program = program_of(*literal)
    streams, buffers = range(len(program.streams)), range(BUFFERS * program.indices)
    if not set(program.streams) <= set(range(program.indices * len(_KINDS_OF_STREAM))):
        raise ValueError(f"streams {program.streams!r}, of {program.indices} indices")
    default = [number for number in program.streams if number // program.indices == 1]
    if len(set(default)) < len(default):
        raise ValueError(f"streams {program.streams!r}: an index has one default stream")
    if sorted(program.released) != [*streams]:
        raise ValueError(f"streams {program.released!r} are let go, of {len(streams)}")
    order = Order(len(streams))
    for each in program.instructions:
        known = set(places(each)) <= set(streams)
        if not known or not {*reads(each), *writes(each)} <= set(buffers):
            raise ValueError(f"not an instruction of this program: {each.literal!r}")
        if order.unseen(each):
            raise ValueError(f"nothing orders {each.literal!r} after what went before")
        order.take(each)
    on_the_cpu(program)


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
    """Leave out what a failure does not need: instructions, where nothing that follows needs them."""
    indices, streams, instructions, released = literal

    def whole(fewer: Sequence[Any]) -> tuple[Any, ...]:
        return indices, streams, tuple(fewer), released

    trial.shorten(
        instructions, whole, lambda fewer: run_once(trial.context, program_of(*whole(fewer)), LONG)
    )


@cache
def drawn_programs(indices: int) -> Any:
    """A strategy for programs on so many indices. One for all searches: hypothesis keeps what it sees."""
    from hypothesis import strategies as st

    number, place = st.integers(0, 11), st.integers(0, _MOST_STREAMS - 1)
    kinds = ("step", "copy", "record", "wait", "add", "wait_stream", "across", "hand_over")
    drawn_step = st.tuples(st.sampled_from(kinds), place, number, number)
    # Lists of no least length shrink to nothing; several of them make a program long enough.
    some = st.lists(drawn_step, max_size=12)
    kind = st.sampled_from((0, 0, 1, 2))
    stream = st.tuples(kind, st.integers(0, indices - 1))
    streams = st.lists(stream, min_size=2, max_size=_MOST_STREAMS)

    def whole(drawn: Any) -> Program:
        drawn_streams, steps, ranks = drawn
        where: list[int] = []
        for kind, index in drawn_streams:
            taken = kind == 1 and indices + index in where  # an index has one default stream
            where.append(index if taken else kind * indices + index)
        return ordered(tuple(where), [one for part in steps for one in part], ranks, indices)

    ranks = st.tuples(*[st.integers(0, 9)] * _MOST_STREAMS)
    return st.tuples(streams, st.tuples(some, some, some), ranks).map(whole)


def ordered(
    streams: tuple[int, ...], drawn: Iterable[Any], ranks: Sequence[int], indices: int
) -> Program:
    """The program of drawn numbers, with the waits that it lacks: by an event, or for a stream."""
    order, made = Order(len(streams)), list[Operation]()
    fresh = indices  # the number of the next event that is recorded once

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
