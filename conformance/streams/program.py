"""Programs of streams: what they do, in which order they must do it, and how they are run.

A program is data: the index of each stream, instructions, and the order in which its streams are let go.

    ("step", s, x, n)       x = 3 x + n, on stream s
    ("add", s, x, y)        x = x + y
    ("copy", s, x, y)       y = x
    ("across", s, t, x, y)  y = x, where x is on the index of s and y on that of t
    ("record", e, s)        record event e on stream s
    ("wait", s, e)          stream s waits for event e
    ("wait_stream", s, t)   stream s waits for stream t

Of two accesses to one buffer of which one writes, a program orders the second behind the first: by its
stream, or by waits. So whatever runs beside what, its result is that of its instructions one by one.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

import torch

from conformance.behaviour.busy import Hold
from conformance.behaviour.context import Context
from conformance.behaviour.watching import ends
from conformance.streams.judging import SIZE, step

Instruction = tuple[Any, ...]
Clock = dict[int, int]  # by stream, how much of it has gone before

#: Buffers, and events that a program may record more than once, on every index.
BUFFERS, EVENTS = 3, 1
#: Seconds for which streams are watched that must not be done yet; and longer, for what has failed before.
GLANCE, LONG_GLANCE = 0.001, 0.02


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
        """The program as a literal, which ``replay`` takes."""
        return self.indices, self.streams, self.instructions, self.released


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

    def unseen(self, on: Sequence[int], reads: Iterable[int], writes: Iterable[int]) -> list[int]:
        """Streams that must be waited for before work on these streams may use these buffers."""
        clock: Clock = {}
        for place in on:
            clock = _later(clock, self.clocks[place])
        before = [self.writes[buffer] for buffer in (*reads, *writes) if buffer in self.writes]
        before += [access for buffer in writes for access in self.reads.get(buffer, ())]
        return sorted({stream for stream, tick in before if clock.get(stream, 0) < tick})

    def work(self, on: Sequence[int], reads: Iterable[int], writes: Iterable[int]) -> None:
        """Work on one stream, or a copy that stands on two."""
        clock: Clock = {}
        for place in on:
            clock = _later(clock, self.clocks[place])
        for place in on:
            clock[place] = clock.get(place, 0) + 1
        for place in on:
            self.clocks[place] = dict(clock)
        at = on[0], clock[on[0]]
        for buffer in reads:
            self.reads.setdefault(buffer, []).append(at)
        for buffer in writes:
            self.writes[buffer] = at
            self.reads[buffer] = []

    def take(self, instruction: Instruction) -> None:
        """Go on by one instruction. Raises ValueError where it is none."""
        match instruction:
            case ("record", event, on):
                self.events[event] = dict(self.clocks[on])
            case ("wait", on, event):
                self.clocks[on] = _later(self.clocks[on], self.events.get(event, {}))
            case ("wait_stream", on, other):
                self.clocks[on] = _later(self.clocks[on], self.clocks[other])
            case _:
                self.work(*_uses(instruction))


def on_the_cpu(program: Program) -> list[torch.Tensor]:
    """The buffers behind the instructions, one by one."""
    buffers = fresh_buffers(program.indices)
    for instruction in program.instructions:
        _compute(instruction, buffers)
    return buffers


def fresh_buffers(indices: int) -> list[torch.Tensor]:
    """The buffers at the beginning. Buffer ``x`` is on index ``x % indices``."""
    return [
        torch.arange(SIZE, dtype=torch.int32) * (number + 1) for number in range(BUFFERS * indices)
    ]


def _compute(instruction: Instruction, buffers: Sequence[torch.Tensor]) -> None:
    match instruction:
        case ("step", _, buffer, number):
            step(buffers[buffer], number)
        case ("add", _, buffer, other):
            buffers[buffer].add_(buffers[other])
        case ("copy", _, source, target) | ("across", _, _, source, target):
            buffers[target].copy_(buffers[source], non_blocking=True)


class Running:
    """A program on the device, which is watched for ``glance`` seconds wherever it must wait."""

    def __init__(self, context: Context, program: Program, glance: float = GLANCE) -> None:
        self.context = context
        self.glance = glance
        self.program = program
        self.streams = [context.stream(index) for index in program.streams]
        context.must(len(set(self.streams)) == len(self.streams), "the streams differ")
        self.buffers = [
            buffer.to(context.at(number % program.indices))
            for number, buffer in enumerate(fresh_buffers(program.indices))
        ]
        self.events: dict[int, Any] = {}
        context.settle()

    def run(self) -> None:
        """Queue all while it is held, let it go, and compare. Raises CheckFailed."""
        with ExitStack() as stack:
            holds = self._held(stack)
            for instruction in self.program.instructions:
                self._queue(instruction)
            for hold in holds.values():
                hold.must_be_in_flight()
            if all(hold.exact for hold in holds.values()):
                self._let_go(holds)
        for place, stream in enumerate(self.streams):
            self.context.check(ends(stream, 20.0), f"all work of s{place} is done")
        self.context.settle()
        want = on_the_cpu(self.program)
        for number, (got, buffer) in enumerate(zip(self.buffers, want, strict=True)):
            self.context.equal(got, buffer, f"x{number} is as in one order")

    def _held(self, stack: ExitStack) -> dict[int, Hold]:
        """Every stream, where a gate holds it; else the one that is let go last, for a time."""
        places = self.program.released
        if self.context.descriptor.gate is None:
            places = places[-1:]
        return {
            place: stack.enter_context(self.context.hold(self.streams[place])) for place in places
        }

    def _queue(self, instruction: Instruction) -> None:
        match instruction:
            case ("across", on, other, *_):
                with self.streams[on], self.streams[other]:
                    _compute(instruction, self.buffers)
            case ("step" | "add" | "copy", on, *_):
                with self.streams[on]:
                    _compute(instruction, self.buffers)
            case ("record", event, on):
                stream = self.streams[on]
                if event not in self.events:
                    self.events[event] = self.context.event(stream.device_index)
                self.events[event].record(stream)
            case ("wait", on, event):
                if event not in self.events:
                    self.events[event] = self.context.event(self.program.streams[on])
                self.streams[on].wait_event(self.events[event])
            case ("wait_stream", on, other):
                self.streams[on].wait_stream(self.streams[other])

    def _let_go(self, holds: dict[int, Hold]) -> None:
        """Release one stream after the other. What stands behind one that is held must not be done;
        what does not must be."""
        order = Order(self.program.streams)
        for instruction in self.program.instructions:
            order.take(instruction)
        waiting = set(holds)
        for place in self.program.released:
            holds[place].release()
            waiting.discard(place)
            let_go = [each for each in holds if each not in waiting]
            behind = [each for each in let_go if waiting & set(order.clocks[each])]
            for each in let_go:
                if each not in behind:
                    text = f"s{each} goes on, as nothing that it waits for is held"
                    self.context.check(ends(self.streams[each], 5.0), text)
            self._must_wait(behind, waiting)

    def _must_wait(self, behind: Sequence[int], waiting: set[int]) -> None:
        end, early = time.monotonic() + self.glance, set[int]()
        while behind and not early and time.monotonic() < end:
            early = {each for each in behind if self.streams[each].query()}
            time.sleep(0.0001)
        held = ", ".join(f"s{one}" for one in sorted(waiting))
        for each in behind:
            text = f"s{each} waits while what it waits for is held ({held})"
            self.context.check(each not in early, text)


def replay(context: Context, indices: int, streams: Any, instructions: Any, released: Any) -> None:
    """Run a program that is written down. A race may need more than one run to show."""
    program = Program(indices, streams, instructions, released)
    for _ in range(5):
        Running(context, program, LONG_GLANCE).run()


def validate(
    indices: int,
    streams: Sequence[int],
    instructions: Sequence[Instruction],
    released: Sequence[int],
) -> None:
    """Raises an exception where these are no program: an unknown instruction, a stream or a buffer that is not
    there, accesses that nothing orders."""
    order = Order(tuple(streams))
    if not set(streams) <= set(range(indices)):
        raise ValueError(f"indices {streams!r}, of {indices}")
    if sorted(released) != list(range(len(streams))):
        raise ValueError(f"streams {released!r} are let go, of {len(streams)}")
    for instruction in instructions:
        on, reads, writes = _uses(instruction)
        buffers = [*reads, *writes]
        known = all(place in range(len(streams)) for place in on)
        if not known or not all(each in range(BUFFERS * indices) for each in buffers):
            raise ValueError(f"no instruction: {instruction!r}")
        if order.unseen(on, reads, writes):
            raise ValueError(f"nothing orders {instruction!r} behind what went before")
        order.take(instruction)
    on_the_cpu(Program(indices, tuple(streams), tuple(instructions), tuple(released)))


def _uses(instruction: Instruction) -> tuple[Sequence[int], Sequence[int], Sequence[int]]:
    """The streams that an instruction stands on, and the buffers that it reads and writes."""
    match instruction:
        case ("step", int(on), int(buffer), int()):
            return (on,), (buffer,), (buffer,)
        case ("add", int(on), int(buffer), int(other)):
            return (on,), (buffer, other), (buffer,)
        case ("copy", int(on), int(source), int(target)):
            return (on,), (source,), (target,)
        case ("across", int(on), int(other), int(source), int(target)):
            return (on, other), (source,), (target,)
        case ("record", int(), int(on)) | ("wait", int(on), int()):
            return (on,), (), ()
        case ("wait_stream", int(on), int(other)):
            return (on, other), (), ()
    raise ValueError(f"no instruction: {instruction!r}")


def told(program: Program) -> str:
    """The program, for people."""
    where = ", ".join(f"s{place} on {index}" for place, index in enumerate(program.streams))
    lines = "; ".join(_line(each) for each in program.instructions)
    order = ", ".join(f"s{place}" for place in program.released)
    return f"[{where}] {lines or 'nothing'} [let go: {order}]"


def _line(instruction: Instruction) -> str:
    match instruction:
        case ("step", on, buffer, number):
            return f"s{on}: x{buffer} = 3 x{buffer} + {number}"
        case ("add", on, buffer, other):
            return f"s{on}: x{buffer} += x{other}"
        case ("copy", on, source, target):
            return f"s{on}: x{target} = x{source}"
        case ("across", on, other, source, target):
            return f"s{on} to s{other}: x{target} = x{source}"
        case ("record", event, on):
            return f"record e{event} on s{on}"
        case ("wait", on, event):
            return f"s{on} waits for e{event}"
        case ("wait_stream", on, other):
            return f"s{on} waits for s{other}"
    raise ValueError(f"no instruction: {instruction!r}")
