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
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, nullcontext
from dataclasses import dataclass, field
from functools import partial, reduce
from itertools import product
from operator import or_
from random import Random
from typing import Any

import torch

from conformance.checks.behaviour.queued_work import SIZE, priorities
from conformance.checks.cases.context import CaseContext
from conformance.checks.cases.held_streams import Hold
from conformance.checks.clock import comes_to_be
from conformance.checks.programs.language import (
    Aspect,
    Key,
    Language,
    Operand,
    Operands,
    State,
    States,
    Step,
)
from conformance.checks.programs.operations import Operation, operation, perform, settle, straight
from devices.descriptor import Descriptor

#: The number of buffers on each index. Each index also has one event, with the number of the index, that a
#: program may record more than once.
BUFFERS = 3
#: Seconds for which to watch that streams do not finish too early; LONG is used for programs that have failed
#: before.
SHORT, LONG = 0.001, 0.02
MOST_STREAMS = 4
NUMBERS = 12
#: How many steps of each instruction are proposed for the next step of a steered program.
_CHOICES = 4
#: The kinds of streams. A stream's number divided by the number of indices is its kind; the remainder is its
#: index.
_KINDS_OF_STREAM = ("", " (the default)", " (of high priority)")


@dataclass
class Tables:
    """Streams, buffers and events by number, which the instructions of a program use."""

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


# -- the model: what orders the work of a program


class Model(State):
    """The streams of a program, and the order that streams and waits impose on the work of the program. Each stream and
    each event has a vector clock over all streams. Clocks are replaced, never changed in place.

    The first tick of a stream stands for the hold that blocks the stream. ``streams`` contains the number of each
    stream, as in Program.
    """

    def __init__(self, indices: int, streams: Sequence[int] = ()) -> None:
        super().__init__()
        self.indices = indices
        self.streams = tuple(streams)
        self.clocks = [Counter({place: 1}) for place in range(len(streams))]
        self.events: dict[int, Counter[int]] = {}
        self.writes: dict[int, tuple[int, int]] = {}  # buffer -> (stream, tick) of its last write
        self.reads: defaultdict[int, list[tuple[int, int]]] = defaultdict(list)
        self.recorded: dict[int, list[int]] = {}  # event -> the streams that recorded it, in order
        self.waited: set[int] = set()  # events whose last record a stream has waited for

    def index(self, place: int) -> int:
        """Returns the device index of the stream at ``place``."""
        return self.streams[place] % self.indices

    def kind(self, place: int | None) -> int | None:
        """Returns the index in ``_KINDS`` of the kind of the stream at ``place``. Returns None if ``place`` is None."""
        return None if place is None else self.streams[place] // self.indices

    def relation(self, one: int, other: int | None) -> int | None:
        """Returns the index in ``_RELATIONS`` of the relation between two streams. Returns None if ``other`` is
        None."""
        if other is None or one == other:
            return None if other is None else 0
        return 1 + (self.index(one) != self.index(other))

    def buffer(self, number: int, place: int) -> int:
        """Returns the number of a buffer on the device index of the stream at ``place``. ``number`` selects the
        buffer."""
        return number % BUFFERS * self.indices + self.index(place)

    def other(self, peer: int = -1, event: int = -1, **_: int) -> int | None:
        """Returns the stream that an instruction waits for or copies to: its peer, or the stream that recorded its event
        last; None if there is none."""
        return self.recorded.get(event, [None])[-1] if peer < 0 else peer

    def misuse(self, operands: Operands) -> str:
        """Returns a text that says what is wrong with the streams and buffers of an instruction; empty if nothing is
        wrong."""
        streams, buffers = places(operands), _numbers(operands, "buffer", "source", "target")
        if max(streams) >= len(self.streams) or max(buffers, default=0) >= BUFFERS * self.indices:
            return "uses a stream or buffer that does not exist"
        if len(set(streams)) < len(streams) or len(set(buffers)) < len(buffers):
            return "uses a stream or buffer twice"
        if buffers and len({self.index(each) for each in streams}) < len(streams):
            return "copies between streams of one device index"
        return ""

    def impossible(self, step: Step) -> list[Operation]:
        wrong = self.misuse(self.operands(step)) or (
            "conflicts with an earlier access to the same buffer, and no wait orders the two"
        )
        raise ValueError(f"the instruction {step!r} {wrong}")

    def drawn(self, name: str, **values: int) -> Step:
        """Converts drawn values to a step of the instruction ``name``. The values are the streams ``on`` and ``peer``,
        the numbers of buffers (``first``, ``second``, ``third``), the number of an ``event`` on its device index, the
        device index ``there`` of an event to wait for, and a ``number``."""
        drawn = STREAMS.instructions[name].drawn
        assert drawn is not None
        return name, *drawn(self, **values)

    def proposals(self, random: Random) -> list[Step]:
        found: list[Step] = []
        for _ in range(_CHOICES):
            on, peer = (random.randrange(len(self.streams)) for _ in range(2))
            first, second, third = (random.randrange(BUFFERS) for _ in range(3))
            values = {"on": on, "peer": peer, "there": self.index(peer)}
            values |= {"first": first, "second": second, "third": third}
            values |= {"event": random.randrange(2), "number": random.randrange(9)}
            found += [self.drawn(name, **values) for name in STREAMS.instructions]
        return [step for step in found if self.possible(step)]

    def _before(self, operands: Operands) -> Counter[int]:
        """Returns the vector clock of all work that must finish before an instruction can start on its streams."""
        return reduce(or_, (self.clocks[place] for place in places(operands)))

    def unseen(self, operands: Operands) -> list[int]:
        """Returns the streams for which an instruction must wait before it may use its buffers, because it would
        otherwise conflict with their earlier work."""
        clock = self._before(operands)
        used = {*reads(operands), *writes(operands)}
        before = [self.writes[buffer] for buffer in used if buffer in self.writes]
        before += [access for buffer in writes(operands) for access in self.reads[buffer]]
        return sorted({stream for stream, tick in before if clock[stream] < tick})

    def work(self, **operands: int) -> None:
        """Adds to the model a kernel on one stream, or a copy that uses two streams; ``operands`` are the streams
        and buffers."""
        on = places(operands)
        clock = self._before(operands) + Counter(on)
        for place in on:
            self.clocks[place] = clock
        at = on[0], clock[on[0]]
        for buffer in reads(operands):
            self.reads[buffer].append(at)
        for buffer in writes(operands):
            self.writes[buffer] = at
            self.reads[buffer] = []

    def record(self, event: int, on: int) -> None:
        self.events[event] = self.clocks[on]
        self.recorded.setdefault(event, []).append(on)
        self.waited.discard(event)

    def wait(self, on: int, event: int) -> None:
        self.clocks[on] = self.clocks[on] | self.events.get(event, Counter())
        if event in self.recorded:
            self.waited.add(event)

    def wait_stream(self, on: int, peer: int) -> None:
        self.clocks[on] = self.clocks[on] | self.clocks[peer]


def _numbers(operands: Operands, *names: str) -> list[int]:
    return [operands[name] for name in names if name in operands]


def places(operands: Operands) -> list[int]:
    return _numbers(operands, "on", "peer")


def reads(operands: Operands) -> list[int]:
    return _numbers(operands, "buffer", "source")


def writes(operands: Operands) -> list[int]:
    return _numbers(operands, "buffer", "target")


# -- what programs must cover

_KINDS = ("side", "default", "priority")
_RELATIONS = ("same stream", "other stream", "other index")
_KIND = Aspect(_KINDS, lambda model, on, **_: model.kind(on))


def _if(text: str, holds: Callable[..., object]) -> Aspect:
    return Aspect((text,), lambda model, **operands: 0 if holds(model, **operands) else None)


def _relations(model: Model) -> tuple[str, ...]:
    return _RELATIONS[: 1 + model.indices]


def _others_wrote(used: Callable[[Operands], list[int]]) -> Aspect:
    def holds(model: Model, **operands: int) -> bool:
        writers = [model.writes[each][0] for each in used(operands) if each in model.writes]
        return not set(writers) <= set(places(operands))

    return _if("others wrote", holds)


def _others_read(model: Model, **operands: int) -> bool:
    readers = {stream for buffer in writes(operands) for stream, _ in model.reads[buffer]}
    return not readers <= set(places(operands))


_EVERY = States(_KIND, group="instruction")
_BOTH = States(
    _KIND,
    Aspect(_KINDS, lambda model, **operands: model.kind(model.other(**operands))),
    Aspect(_relations, lambda model, on, **o: model.relation(on, model.other(**o))),
)
_WORK = (
    _EVERY,
    States(_others_wrote(reads), group="read"),
    States(_others_wrote(writes), group="write"),
    States(_if("others read", _others_read), group="write"),
)
_RECORD = Aspect(
    ("first", "again", "again after a wait"),
    lambda model, event, **_: (event in model.recorded) + (event in model.waited),
)
_WAIT = (
    _EVERY,
    _BOTH,
    States(_if("never recorded", lambda model, event, **_: event not in model.recorded)),
    States(_if("not the first", lambda model, event, **_: event in model.waited)),
    States(_if("recorded again", lambda model, event, **_: len(model.recorded.get(event, ())) > 1)),
)


def _impossible(model: Model) -> dict[Key, str]:
    found: dict[Key, str] = {}
    for one, other, how in product(_KINDS, _KINDS, _relations(model)):
        if how == "same stream":
            found["wait_stream", one, other, how] = "a stream does not wait for itself"
        if how == "same stream" and one != other:
            found["wait", one, other, how] = "a stream has only one kind"
        if (one, other, how) == ("default", "default", "other stream"):
            for name in ("wait", "wait_stream"):
                found[name, one, other, how] = "a device index has only one default stream"
        if how != "other index" and model.indices > 1:
            found["across", one, other, how] = (
                "a copy between device indices uses two different indices"
            )
    return found


# -- instructions. Their operands are numbers of streams (``on``, ``peer``), events and buffers: a ``source`` is
# read, a ``target`` is written, a ``buffer`` is both.

STREAMS = Language(
    name="a stream program",
    operands=(
        Operand("on", range(MOST_STREAMS)),
        Operand("peer", range(MOST_STREAMS)),
        Operand("buffer", range(2 * BUFFERS)),
        Operand("source", range(2 * BUFFERS)),
        Operand("target", range(2 * BUFFERS)),
        Operand("event", range(1000)),
        Operand("number", range(NUMBERS)),
    ),
    needs=lambda model, **given: not model.misuse(given) and not model.unseen(given),
    between=Aspect(_relations, lambda model, before, on, **_: model.relation(before["on"], on)),
    impossible=_impossible,
)
Model.language = STREAMS
_work = partial(STREAMS.instruction, effect=Model.work)


def _two_buffers(model: Model, on: int, first: int, second: int, **_: int) -> tuple[int, ...]:
    return on, model.buffer(first, on), model.buffer(second, on)


@_work(
    text="s{on}: x{buffer} = 3 x{buffer} + {number}",
    drawn=lambda model, on, first, number, **_: (on, model.buffer(first, on), number),
    covers=_WORK,
)
def step(run: Tables, on: int, buffer: int, number: int) -> None:
    """Runs two kernels on a buffer. Their result depends on ``number`` and on the order in which this operation and
    others run."""
    with run.streams[on]:
        run.buffers[buffer].mul_(3).add_(number)


@STREAMS.instruction(
    text="record e{event} on s{on}",
    effect=Model.record,
    drawn=lambda model, on, event, **_: (event * model.indices + model.index(on), on),
    covers=(_EVERY, States(_RECORD)),
)
def record(run: Tables, event: int, on: int) -> None:
    run.events[event].record(run.streams[on])


@STREAMS.instruction(
    text="s{on} waits for e{event}",
    effect=Model.wait,
    drawn=lambda model, on, event, there, **_: (on, event * model.indices + there),
    covers=_WAIT,
)
def wait(run: Tables, on: int, event: int) -> None:
    run.streams[on].wait_event(run.events[event])


@_work(text="s{on}: x{buffer} += x{source}", drawn=_two_buffers, covers=_WORK)
def add(run: Tables, on: int, buffer: int, source: int) -> None:
    with run.streams[on]:
        run.buffers[buffer].add_(run.buffers[source])


@_work(text="s{on}: x{target} = x{source}", drawn=_two_buffers, covers=_WORK)
def copy(run: Tables, on: int, source: int, target: int) -> None:
    with run.streams[on]:
        run.buffers[target].copy_(run.buffers[source], non_blocking=True)


@STREAMS.instruction(
    text="s{on} waits for s{peer}",
    effect=Model.wait_stream,
    drawn=lambda model, on, peer, **_: (on, peer),
    covers=(_EVERY, _BOTH),
)
def wait_stream(run: Tables, on: int, peer: int) -> None:
    run.streams[on].wait_stream(run.streams[peer])


def _two_indices(
    model: Model, on: int, peer: int, first: int, third: int, **_: int
) -> tuple[int, ...]:
    return on, peer, model.buffer(first, on), model.buffer(third, peer)


@_work(
    text="s{on} to s{peer}: x{target} = x{source}",
    here=lambda model: model.indices > 1,
    drawn=_two_indices,
    covers=(*_WORK, _BOTH),
)
def across(run: Tables, on: int, peer: int, source: int, target: int) -> None:
    """Copies a buffer on the device index of the stream ``on`` to a buffer on the device index of the stream
    ``peer``."""
    with run.streams[on], run.streams[peer]:
        run.buffers[target].copy_(run.buffers[source], non_blocking=True)


# -- programs


@dataclass(frozen=True, slots=True)
class Program:
    """A stream program on ``indices`` device indices. ``streams`` contains a number for each stream: the device index
    of the stream plus ``indices`` times the index of its kind in ``_KINDS_OF_STREAM``. ``released`` is the order in
    which the streams are unblocked."""

    indices: int
    streams: tuple[int, ...]
    instructions: tuple[Step, ...]
    released: tuple[int, ...]

    @property
    def literal(self) -> tuple[Any, ...]:
        return self.indices, self.streams, self.instructions, self.released

    def __str__(self) -> str:
        where = ", ".join(
            f"s{place} on {number % self.indices}{_KINDS_OF_STREAM[number // self.indices]}"
            for place, number in enumerate(self.streams)
        )
        order = ", ".join(f"s{place}" for place in self.released)
        return f"[{where}] {STREAMS.describe(self.instructions)} [unblocked: {order}]"

    def begin(self) -> Model:
        return Model(self.indices, self.streams)


def fresh_buffers(indices: int) -> list[torch.Tensor]:
    """Returns the buffers with their initial values, on the CPU. On the device, buffer ``x`` is on the device
    index ``x % indices``."""
    return [arange(number + 1, 0) for number in range(BUFFERS * indices)]


def on_the_cpu(program: Program) -> list[torch.Tensor]:
    """Returns the buffers after the instructions of a program were run one by one on the CPU."""
    buffers = fresh_buffers(program.indices)
    run = Tables(defaultdict(nullcontext), dict(enumerate(buffers)))
    operations = program.begin().take_all(program.instructions)
    perform(run, (each for each in operations if writes(each.given)))
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
    """Waits for the given number of seconds, and checks that the streams at ``places`` do not finish while a stream
    that they wait for is blocked. ``held`` names the blocked stream in the message of the failure."""
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
    """Waits for the given number of seconds, and checks that none of the streams finishes in this time. ``held``
    names the stream that is blocked, for the message of the failure."""
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
    model = program.begin()
    queued = model.take_all(program.instructions)
    events: dict[int, int] = {}
    for each in queued:
        if "event" in each.given:
            index = model.index(each.given["on"])
            if each.name == "record":  # an event belongs to the index that it is recorded on
                events[each.given["event"]] = index
            events.setdefault(each.given["event"], index)
    make += [make_event(event, index) for event, index in events.items()]
    held = program.released if gate else program.released[-1:]
    then = _let_go(program, model, seconds) if gate else ()
    return [*make, settle()], [*map(hold, held), *queued, *then]


def _let_go(program: Program, model: Model, seconds: float) -> Iterator[Operation]:
    """Yields operations that unblock one stream after the other. Each time, streams that wait for a blocked stream must
    not have finished, and all other unblocked streams must finish. ``model`` is the model after the whole program."""
    waiting = set(program.released)
    for place in program.released:
        yield release(place)
        waiting.discard(place)
        going = [each for each in program.released if each not in waiting]
        behind = [each for each in going if waiting & set(model.clocks[each])]
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
        run_once(context, Program(*literal), LONG)


def source(descriptor: Descriptor, *literal: Any) -> str:
    """Returns the program as the Python source of a function with one operation on each line."""
    program = Program(*literal)
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
    program = Program(*literal)
    if not set(program.streams) <= set(range(program.indices * len(_KINDS))):
        raise ValueError(
            f"invalid stream number in {program.streams!r} for {program.indices} device indices"
        )
    default = [number for number in program.streams if number // program.indices == 1]
    if len(set(default)) < len(default):
        raise ValueError(
            f"expected at most one default stream per device index, got the streams {program.streams!r}"
        )
    if sorted(program.released) != [*range(len(program.streams))]:
        raise ValueError(
            f"expected each of the {len(program.streams)} streams once in the order of unblocking, got {program.released!r}"
        )
    STREAMS.validate(program.instructions)
    program.begin().take_all(program.instructions)
