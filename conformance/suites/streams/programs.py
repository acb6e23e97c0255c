"""Randomly drawn stream programs. Running a program concurrently must give the same result as running its
instructions one by one.

A program is data: the device index of each stream, the instructions, and the order in which the streams are
unblocked. If two instructions access the same buffer and one of them writes, the program orders the second after
the first: both run on one stream, or waits order them. So the result does not depend on which instructions run
concurrently.

A run is a list of operations. They make streams, buffers and events, queue the instructions while the streams
are blocked, unblock one stream after the other, and compare the buffers. A repro script contains the same
operations, one on each line.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, nullcontext, suppress
from dataclasses import dataclass, field
from functools import reduce
from operator import or_
from typing import Any

import torch

from conformance.checks.behaviour.queued_work import SIZE, priorities
from conformance.checks.cases.context import CaseContext
from conformance.checks.cases.held_streams import Hold
from conformance.checks.cases.random_programs import Operation, operation, perform, settle, straight
from conformance.checks.clock import comes_to_be
from devices.descriptor import Descriptor

#: The number of buffers on each index. Each index also has one event, with the number of the index, that a
#: program may record more than once.
BUFFERS = 3
#: Seconds for which to watch that streams do not finish too early; LONG is used for programs that have failed
#: before.
SHORT, LONG = 0.001, 0.02
MOST_STREAMS = 4
#: The kinds of streams. A stream's number divided by the number of indices is its kind; the remainder is its
#: index.
_KINDS_OF_STREAM = ("", "the default", "of high priority")


@dataclass
class Tables:
    """The streams, buffers and events that instructions use, by number."""

    streams: dict[int, Any] = field(default_factory=dict)
    buffers: dict[int, torch.Tensor] = field(default_factory=dict)
    events: dict[int, Any] = field(default_factory=dict)


@dataclass(kw_only=True)
class Running(Tables):
    """The streams, buffers, events and holds (which block streams) that the operations of a run use."""

    context: CaseContext
    stack: ExitStack
    holds: dict[int, Hold] = field(default_factory=dict)


#: The prefixes of the variables in a script, by table of the run.
_NAMES = {"streams": "s", "buffers": "x", "events": "e", "holds": "hold"}


# -- instructions: the operations of a program. Their arguments are numbers of streams (``on``, ``peer``),
# events and buffers: a ``source`` is read, a ``target`` is written, a ``buffer`` is both.


@operation
def step(run: Tables, on: int, buffer: int, number: int) -> None:
    """Runs two kernels whose result depends on ``number`` and on the order in which steps run."""
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
    """Copies a buffer on the device index of the stream ``on`` to a buffer on the device index of the stream
    ``peer``."""
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


KINDS = {each.__name__: each for each in (step, add, copy, across, record, wait, wait_stream)}
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
    """Converts a literal such as ``("wait", 0, 1)`` to an instruction. Raises ValueError if the literal does
    not describe an instruction."""
    name, *numbers = literal
    with suppress(KeyError, ValueError):  # unknown name, or wrong number of arguments
        if all(type(each) is int for each in numbers):
            return KINDS[name](*numbers)
    raise ValueError(f"{literal!r} is not an instruction of a stream program")


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
    """A stream program on ``indices`` device indices. ``streams`` has a number for each stream: its device
    index plus ``indices`` times the place of its kind in ``_KINDS_OF_STREAM``. ``released`` is the order in which the
    streams are unblocked."""

    indices: int
    streams: tuple[int, ...]
    instructions: tuple[Operation, ...]
    released: tuple[int, ...]

    def index(self, place: int) -> int:
        """Returns the device index of the stream at ``place``."""
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
        return f"[{where}] {lines or 'nothing'} [unblocked: {order}]"


def program_of(
    indices: int,
    streams: Sequence[int],
    instructions: Sequence[Sequence[Any]],
    released: Sequence[int],
) -> Program:
    """Converts the literals of a program to a program. Raises ValueError if an instruction is invalid."""
    made = tuple(instruction_of(each) for each in instructions)
    return Program(indices, tuple(streams), made, tuple(released))


class Order:
    """The order that streams and waits impose on the work of a program. Each stream and each event has a vector
    clock over all streams. Clocks are replaced, never changed in place.

    The first tick of a stream stands for the hold that blocks the stream.
    """

    def __init__(self, streams: int) -> None:
        self.clocks = [Counter({place: 1}) for place in range(streams)]
        self.events: dict[int, Counter[int]] = {}
        self.writes: dict[int, tuple[int, int]] = {}  # buffer -> (stream, tick) of its last write
        self.reads: defaultdict[int, list[tuple[int, int]]] = defaultdict(list)

    def _before(self, instruction: Operation) -> Counter[int]:
        """Returns the vector clock of all work that must finish before an instruction can start on its streams."""
        return reduce(or_, (self.clocks[place] for place in places(instruction)))

    def unseen(self, instruction: Operation) -> list[int]:
        """Returns the streams for which an instruction must wait before it may use its buffers."""
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


def fresh_buffers(indices: int) -> list[torch.Tensor]:
    """Returns the buffers with their initial values, on the CPU. On the device, buffer ``x`` is on the device
    index ``x % indices``."""
    return [arange(number + 1, 0) for number in range(BUFFERS * indices)]


def on_the_cpu(program: Program) -> list[torch.Tensor]:
    """Returns the buffers after the instructions of a program were run one by one on the CPU."""
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
    """Makes a stream of the highest priority, or of the usual priority if the device has no priorities."""
    urgent = {"priority": priorities(run.context)[1]} if run.context.has("stream_priority") else {}
    run.streams[place] = run.context.stream(index, **urgent)


_MAKE = (make_stream, take_default_stream, make_priority_stream)


@operation
def they_differ(run: Running, places: tuple[int, ...]) -> None:
    streams = [run.streams[place] for place in places]
    run.context.must(len(set(streams)) == len(streams), "some streams of the program are the same")


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
    """Checks that a stream finishes when no stream that it waits for is blocked any more."""
    goes_on(run.context, run.streams[place], f"s{place}")


@operation
def kept_waiting(run: Running, places: tuple[int, ...], held: str, seconds: float) -> None:
    """Checks that streams do not finish while a stream that they wait for is blocked."""
    must_wait(run.context, [run.streams[place] for place in places], held, seconds)


@operation
def done(run: Running, place: int) -> None:
    run.context.check(
        run.context.ends(run.streams[place], 20.0),
        "a stream did not finish after all streams were unblocked",
        at=f"s{place}",
    )


@operation
def equal(run: Running, buffer: int, factor: int, more: int) -> None:
    """Checks that the elements of a buffer are ``factor`` times 0, 1, 2, … plus ``more``. Every instruction
    keeps the elements in this form."""
    run.context.equal(
        run.buffers[buffer],
        arange(factor, more),
        "the value of a buffer differs from its value after running the instructions one by one",
        at=f"x{buffer}",
    )


def arange(factor: int, more: int) -> torch.Tensor:
    return torch.arange(SIZE, dtype=torch.int32) * factor + more


def goes_on(context: CaseContext, stream: Any, name: str) -> None:
    text = "a stream did not finish although no stream that it waits for is blocked"
    context.check(context.ends(stream, 5.0), text, at=name)


def must_wait(context: CaseContext, streams: Sequence[Any], held: str, seconds: float) -> None:
    """Gives streams the given number of seconds to finish, and checks that none of them finishes."""
    early = comes_to_be(lambda: True in [stream.query() for stream in streams], seconds)
    for _ in streams:
        context.check(
            not early, "a stream finished while a stream that it waits for is blocked", at=held
        )


def before_and_while_held(
    program: Program, gate: bool, seconds: float
) -> tuple[list[Operation], list[Operation]]:
    """Returns two lists of operations: those that make the streams, buffers and events of a program, and those
    that run while streams are blocked.

    If ``gate`` is True, the device can block a stream until the test unblocks it, and every stream is blocked.
    Otherwise only one stream is blocked, for a fixed time: the last one in the order of unblocking.
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
            if instruction.name == "record":  # an event belongs to the index that it is recorded on
                events[instruction.given["event"]] = index
            events.setdefault(instruction.given["event"], index)
    make += [make_event(event, index) for event, index in events.items()]
    held = program.released if gate else program.released[-1:]
    then = _let_go(program, seconds) if gate else ()
    return [*make, settle()], [*map(hold, held), *program.instructions, *then]


def _let_go(program: Program, seconds: float) -> Iterator[Operation]:
    """Yields operations that unblock one stream after the other. Each time, streams that wait for a blocked stream
    must not have finished, and all other unblocked streams must finish."""
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
            verb = "is" if len(waiting) == 1 else "are"
            yield kept_waiting(tuple(behind), f"{late} while {held} {verb} blocked", seconds)


def afterwards(program: Program) -> list[Operation]:
    """Returns operations that check that all streams finish and that every buffer has the same value as after
    running the instructions one by one."""
    ends_as = [
        equal(number, int(want[1] - want[0]), int(want[0]))
        for number, want in enumerate(on_the_cpu(program))
    ]
    return [*map(done, range(len(program.streams))), settle(), *ends_as]


def run_once(context: CaseContext, program: Program, seconds: float) -> None:
    """Queues a whole program while streams are blocked, unblocks the streams, and compares the buffers. Raises
    CheckFailed if the program fails."""
    before, held = before_and_while_held(program, context.descriptor.gate is not None, seconds)
    with ExitStack() as stack:
        run = Running(context=context, stack=stack)
        perform(run, [*before, *held])
    perform(run, afterwards(program))


def replay(context: CaseContext, *literal: Any) -> None:
    """Runs a program five times, because a race may not show in one run."""
    for _ in range(5):
        run_once(context, program_of(*literal), LONG)


def source(descriptor: Descriptor, *literal: Any) -> str:
    """Returns the program as the Python source of a function with one operation on each line."""
    program = program_of(*literal)
    before, held = before_and_while_held(program, descriptor.gate is not None, LONG)
    return (
        "def once(context: CaseContext) -> None:\n"
        + straight(before, _NAMES, 1)
        + "    with ExitStack() as stack:\n"
        + straight(held, _NAMES, 2)
        + straight(afterwards(program), _NAMES, 1)
        + "\n\ndef program(context: CaseContext) -> None:\n"
        + f'    """{program}"""\n'
        + "    for _ in range(5):  # a race may need more than one run to show\n        once(context)\n"
    )


def validate(*literal: Any) -> None:
    """Raises ValueError if the literals are not a valid program. A program is invalid if it has an unknown
    instruction, a stream or buffer that does not exist, or conflicting accesses to a buffer in no defined
    order."""
    program = program_of(*literal)
    streams, buffers = range(len(program.streams)), range(BUFFERS * program.indices)
    if not set(program.streams) <= set(range(program.indices * len(_KINDS_OF_STREAM))):
        raise ValueError(
            f"invalid stream number in {program.streams!r} for {program.indices} device indices"
        )
    default = [number for number in program.streams if number // program.indices == 1]
    if len(set(default)) < len(default):
        raise ValueError(
            f"expected at most one default stream per device index, got the streams {program.streams!r}"
        )
    if sorted(program.released) != [*streams]:
        raise ValueError(
            f"expected each of the {len(streams)} streams once in the order of unblocking, got {program.released!r}"
        )
    order = Order(len(streams))
    for each in program.instructions:
        known = set(places(each)) <= set(streams)
        if not known or not {*reads(each), *writes(each)} <= set(buffers):
            raise ValueError(
                f"the instruction {each.literal!r} uses a stream or buffer that does not exist"
            )
        if order.unseen(each):
            raise ValueError(
                f"the instruction {each.literal!r} conflicts with an earlier access to the same buffer, and no wait orders the two"
            )
        order.take(each)
    on_the_cpu(program)
