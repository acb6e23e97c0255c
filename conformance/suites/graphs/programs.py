"""Randomly drawn graph programs. A program is captured and replayed on new inputs, and must produce the same
values as an eager run.

A program is a list of steps, each a tuple of a word and integers. An integer is an index, taken modulo the
number of existing values, so that any part of a program is a valid program and failing programs can be shrunk.
The steps are:

- ``("make", stream, kind, a, b)``: computes a new value from two values that the stream may use;
- ``("write", kind, a, b)``: changes a value in place on the main stream, if no fork is open;
- ``("fork", side)``, ``("join", side)``: let a side stream start after the main stream, and join it to the main
  stream;
- ``("free", a)``: deletes a value that was made on the main stream.

A run turns the steps into operations on numbered values, and a repro script contains the same operations, one
on each line. Values are small integers, so that a sum has the same bits in every order.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache, partial
from random import Random
from typing import Any

import torch

from conformance.checks.behaviour.graph_capture import captured, give, replay, there
from conformance.checks.cases.cases import Cases, Drawn
from conformance.checks.cases.context import CaseContext
from conformance.checks.cases.program_coverage import Key, Reach, reached, steered, without
from conformance.checks.cases.random_programs import (
    Operation,
    Trial,
    operation,
    perform,
    search,
    straight,
)
from devices.descriptor import Descriptor
from devices.failure import Kind

cases = Cases(Kind.VALUES)

Step = Sequence[Any]
Make = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
Queued = Callable[..., list[torch.Tensor]]

SHAPE = (8, 8)
INPUTS = 3
SIDES = 2
REPLAYS = 3
STEPS = (12, 24)  # least and most steps of a program; shrinking may go below
_FEW, _MORE = (0, 8), (1, 90)  # (seed, number of programs): in every plan; beyond quick
_CHOICES = 3  # steps of each kind proposed for a steered program

MAKES: tuple[Make, ...] = (
    lambda a, b: a + b,
    lambda a, b: a - b,
    lambda a, b: torch.maximum(a, b),
    lambda a, b: a.t() + b,
    lambda a, b: (a + b.sum(0, keepdim=True)).remainder(64),
    lambda a, b: torch.cat([a[:4], b[4:]]),
    lambda a, b: a.clone(),
    lambda a, b: torch.where(a > b, a, b * 2).clamp(-64, 64),
)
WRITES: tuple[Make, ...] = (
    lambda a, b: a.add_(b),
    lambda a, b: a.copy_(b),
    lambda a, b: a.clamp_(-32, 32),
    lambda a, b: torch.add(a, b, alpha=2, out=a),
)


@dataclass(slots=True)
class Running:
    """The values and the streams that the operations of a run use. Stream 0 is the capturing stream."""

    values: dict[int, torch.Tensor]
    streams: dict[int, Any] = field(default_factory=dict)


#: The prefixes of the variables in a script, by table of the run.
_NAMES = {"values": "v", "streams": "s"}


@operation
def make_value(run: Running, value: int, make: Make, a: int, b: int) -> None:
    run.values[value] = make(run.values[a], run.values[b])


@operation
def make_aside(run: Running, stream: int, value: int, make: Make, a: int, b: int) -> None:
    with run.streams[stream]:
        run.values[value] = make(run.values[a], run.values[b])


@operation
def write(run: Running, change: Make, a: int, b: int) -> None:
    change(run.values[a], run.values[b])


@operation
def wait(run: Running, stream: int, other: int) -> None:
    """Makes one stream wait for another stream, for a fork or a join."""
    run.streams[stream].wait_stream(run.streams[other])


@operation
def free(run: Running, value: int) -> None:
    del run.values[value]


@dataclass(slots=True)
class Lowering:
    """A translator of the steps of a graph program into operations. If ``streams`` is False, the operations are
    those of an eager run without side streams."""

    streams: bool
    main: list[int] = field(default_factory=lambda: list(range(INPUTS)))  # values it may use
    #: For each open side stream: the values that it may use, and how many there were at the fork.
    sides: dict[int, tuple[list[int], int]] = field(default_factory=dict)
    count: int = INPUTS
    operations: list[Operation] = field(default_factory=list)

    def step(self, step: Step) -> None:
        name, *numbers = step
        if name == "make":
            self.make(*numbers)
        elif name == "write" and not self.sides:
            kind, a, b = numbers
            target, source = self.main[a % len(self.main)], self.main[b % len(self.main)]
            self.operations.append(write(WRITES[kind % len(WRITES)], target, source))
        elif name == "fork" and numbers[0] not in self.sides:
            (side,) = numbers
            self.wait(side, 0)
            self.sides[side] = (list(self.main), len(self.main))
        elif name == "join" and numbers[0] in self.sides:
            self.join(numbers[0])
        elif name == "free" and not self.sides and len(self.main) > INPUTS:
            place = INPUTS + numbers[0] % (len(self.main) - INPUTS)
            self.operations.append(free(self.main.pop(place)))

    def make(self, stream: int, kind: int, a: int, b: int) -> None:
        stream = stream if stream in self.sides else 0
        sees = self.sides[stream][0] if stream else self.main
        given = self.count, MAKES[kind % len(MAKES)], sees[a % len(sees)], sees[b % len(sees)]
        aside = stream and self.streams
        self.operations.append(make_aside(stream, *given) if aside else make_value(*given))
        sees.append(self.count)
        self.count += 1

    def wait(self, stream: int, other: int) -> None:
        if self.streams:
            self.operations.append(wait(stream, other))

    def join(self, side: int) -> None:
        sees, given = self.sides.pop(side)
        self.wait(0, side)
        self.main += sees[given:]


def lowered(program: Iterable[Step], *, streams: bool) -> Lowering:
    """Translates all steps of a program into operations, and joins the forks that are still open. ``main`` of
    the result lists the values that exist after the program: the inputs and the values it made."""
    made = Lowering(streams)
    for step in program:
        made.step(step)
    for side in sorted(made.sides):
        made.join(side)
    return made


def inputs(number: int) -> list[torch.Tensor]:
    made = torch.Generator().manual_seed(number)
    return [torch.randint(-9, 10, SHAPE, generator=made).float() for _ in range(INPUTS)]


def noise(context: CaseContext, number: int) -> None:
    """Allocates, writes and frees blocks of device memory, to overwrite memory that a graph should not use."""
    for size in (number + 1, 64, 300):
        torch.full((size,), -7.0, device=context.device)


def check(context: CaseContext, queue: Queued, eager: Queued) -> None:
    """Captures the work that ``queue`` queues, replays the graph on new inputs, and compares the resulting
    values with those of an eager run.

    ``queue`` takes the inputs and the streams, the capturing stream first; ``eager`` takes the inputs.
    """
    static = [there(context, each) for each in inputs(0)]
    streams = context.streams(1 + SIDES)
    before = [each.clone() for each in static]
    context.settle()
    with captured(context, streams[0]) as graph:
        static[0].add_(0)  # so that the graph is never empty
        left = queue(*static, *streams)
    context.settle()
    for place, (now, then) in enumerate(zip(static, before)):
        context.equal(now, then, "the capture changed an input", at=f"input {place}")
    for number in range(1, REPLAYS + 1):
        values = inputs(number)
        for target, value in zip(static, values):
            give(context, target, value)
        wanted = eager(*(there(context, each) for each in values))
        noise(context, number)
        for value in left[INPUTS:]:
            value.fill_(-99)  # so that a value of an earlier replay is not taken for a result
        context.settle()
        replay(context, graph, stream=streams[0])
        context.same(len(left), len(wanted), "the program produced the wrong number of values")
        for place, (found, want) in enumerate(zip(left, wanted)):
            at = f"value {place} of {len(wanted)}, replay {number}"
            context.equal(
                found, want, "the values of a replay differ from those of an eager run", at=at
            )


def run(program: Iterable[Step], *given: Any) -> list[torch.Tensor]:
    """Runs a program on the given inputs, and on streams if streams follow the inputs. Returns the values that
    exist after the program."""
    streams = dict(enumerate(given[INPUTS:]))
    lowering = lowered(program, streams=bool(streams))
    running = Running(dict(enumerate(given[:INPUTS])), streams)
    perform(running, lowering.operations)
    return [running.values[value] for value in lowering.main]


def run_program(context: CaseContext, program: Sequence[Step]) -> None:
    queue = partial(run, program)
    check(context, queue, queue)


def source(descriptor: Descriptor, program: Sequence[Step]) -> str:
    """Returns the Python source of two functions, one that queues the program on streams and one that runs it
    eagerly, and of a function that compares them."""
    given = ", ".join(f"v{place}" for place in range(INPUTS))
    streams = ", ".join(f"s{place}" for place in range(1 + SIDES))

    def function(name: str, parameters: str, lowering: Lowering) -> str:
        left = ", ".join(f"v{value}" for value in lowering.main)
        lines = straight(lowering.operations, _NAMES, 1)
        return f"def {name}({parameters}):\n{lines}    return [{left}]\n"

    queue = function("queue", f"{given}, {streams}", lowered(program, streams=True))
    eager = function("eager", given, lowered(program, streams=False))
    head = f'def program(context: CaseContext) -> None:\n    """{told(program)}"""\n'
    return f"{queue}\n\n{eager}\n\n{head}    check(context, queue, eager)\n"


# -- coverage of programs


class Walk:
    """The state of a program that is built step by step, and the coverage that the next step would add."""

    def __init__(self, forks: bool) -> None:
        self.forks = forks
        self.model = Lowering(streams=True)
        self.last = ""

    def reaches(self, step: Step) -> set[Key]:
        """Returns the coverage that a step would add. The set is empty if the step would do nothing in the
        current state."""
        model, sides = self.model, self.model.sides
        name, *numbers = step
        made = range(INPUTS, len(model.main))
        does = {
            "make": True,
            "write": not sides,
            "fork": numbers[0] not in sides,
            "join": numbers[0] in sides,
            "free": not sides and bool(made),
        }
        if not does[name]:
            return set()
        found: set[Key] = set()
        if name == "make":
            stream, kind, a, b = numbers
            aside = stream in sides
            name = "make aside" if aside else "make"
            sees = model.sides[stream][0] if aside else model.main
            one, other = a % len(sees), b % len(sees)
            what = _value(one, sees[one]), "itself" if one == other else _value(other, sees[other])
            found = {(name, f"kind {kind % len(MAKES)}"), (name, *what)}
        elif name == "write":
            kind, a, b = numbers
            one, other = (model.main[number % len(model.main)] for number in (a, b))
            what = _value(one, one), "itself" if one == other else _value(other, other)
            found = {(name, f"kind {kind % len(WRITES)}"), (name, *what)}
        elif name == "free":
            place = numbers[0] % len(made)
            found = {(name, "the last" if place == len(made) - 1 else "an earlier one")}
        elif name == "fork":
            found = {(name, str(numbers[0]), f"{len(sides)} open")}
        elif name == "join":
            sees, given = sides[numbers[0]]
            found = {(name, str(numbers[0]), "with a value" if len(sees) > given else "empty")}
        return found | ({("pair", self.last, name)} if self.last else set())

    def take(self, step: Step) -> None:
        if self.reaches(step):
            aside = step[0] == "make" and step[1] in self.model.sides
            self.last = "make aside" if aside else step[0]
        self.model.step(step)

    def proposals(self, random: Random) -> list[Step]:
        def place() -> int:
            return random.randrange(12)

        found: list[Step] = []
        for _ in range(_CHOICES):
            stream = random.randrange(SIDES + 1) if self.forks else 0
            found.append(("make", stream, random.randrange(len(MAKES)), place(), place()))
            found.append(("write", random.randrange(len(WRITES)), place(), place()))
            found.append(("free", place()))
            if self.forks:
                side = random.randrange(SIDES) + 1
                found += [("fork", side), ("join", side)]
        return [step for step in found if self.reaches(step)]


def _value(place: int, number: int) -> str:
    return "an input" if number < INPUTS else "a value"


@cache
def table(forks: bool) -> frozenset[Key]:
    """Returns all pairs of steps and all states that graph programs can cover, with or without forks."""
    names = ["make", "write", "free", *(["make aside", "fork", "join"] if forks else [])]
    found: set[Key] = {("pair", one, other) for one in names for other in names}
    given = {
        (one, other)
        for one in ("an input", "a value")
        for other in ("an input", "a value", "itself")
    }
    for name, kinds in (("make", MAKES), ("write", WRITES), ("make aside", MAKES if forks else ())):
        found |= {(name, f"kind {kind}") for kind in range(len(kinds))}
        found |= {(name, *each) for each in given} if kinds else set()
    found |= {("free", "the last"), ("free", "an earlier one")}
    if not forks:
        return frozenset(found)
    sides = [str(side) for side in range(1, SIDES + 1)]
    found |= {("fork", side, f"{others} open") for side in sides for others in range(SIDES)}
    found |= {("join", side, what) for side in sides for what in ("with a value", "empty")}
    main = "nothing is written or freed while a fork is open"
    return without(
        found,
        {
            **{
                ("pair", one, other): main
                for one in ("fork", "make aside")
                for other in ("write", "free")
            },
            **{
                ("pair", one, other): main
                for one in ("write", "free")
                for other in ("make aside", "join")
            },
        },
    )


def all_reached(forks: bool, program: Sequence[Step]) -> set[Key]:
    return reached(Walk(forks), program)


def steered_programs(forks: bool, reach: Reach, seed: int) -> Iterator[list[Step]]:
    """Yields programs that cover the pairs of steps and the states that are missing in ``reach``."""
    for _, steps in steered(reach, seed, STEPS[1], lambda _: (Walk(forks), None)):
        yield steps


#: The number of arguments of each step.
_NUMBERS = {"make": 4, "write": 3, "fork": 1, "join": 1, "free": 1}


def validate(program: Sequence[Step]) -> None:
    """Raises ValueError if a step has an unknown name, wrong numbers, or a side stream that does not exist."""
    for name, *numbers in program:
        if _NUMBERS.get(name) != len(numbers) or not all(type(each) is int for each in numbers):
            raise ValueError(f"{(name, *numbers)!r} is not a step of a graph program")
        if name in ("fork", "join") and not 1 <= numbers[0] <= SIDES:
            raise ValueError(f"expected a side stream from 1 to {SIDES}, got {numbers[0]}")


def told(program: Sequence[Step]) -> str:
    return "; ".join(" ".join(map(str, step)) for step in program)


@cache
def _programs(forks: bool) -> Any:
    """Returns the hypothesis strategy that draws programs. All searches use the same strategy, because
    hypothesis keeps data about every strategy."""
    from hypothesis.strategies import integers, just, lists, one_of, tuples

    place, kind = integers(0, 11), integers(0, 7)
    side, stream = integers(1, SIDES), integers(0, SIDES)
    made = [tuples(just("make"), on, kind, place, place) for on in (stream, just(0), side)]
    kinds = [*made[:2], tuples(just("write"), kind, place, place), tuples(just("free"), place)]
    if forks:
        fork, join = (tuples(just(name), side) for name in ("fork", "join"))
        kinds += [fork, fork, join, made[2]]
    return lists(one_of(*kinds), min_size=STEPS[0], max_size=STEPS[1])


_DRAWN = Drawn(run_program, told, validate, source)


def _drawn(context: CaseContext, forks: bool, seed: int, programs: int) -> None:
    """Programs of ops, in-place writes, frees, forks and joins are drawn at random, captured, and replayed on
    new inputs. Each replay produces the same values as an eager run of the program."""
    trial, reach = Trial(context, _DRAWN), Reach(table(forks))

    def holds(program: list[Step]) -> None:
        if trial.begin():
            reach.missing -= all_reached(forks, program)
            trial.run((program,), lambda: run_program(context, program))

    with trial.shrunk(lambda found: _shorter(trial, *found)):
        search(_programs(forks), holds, seed, programs)
        trial.steered(steered_programs(forks, reach, seed), holds)
    trial.must_have_run(programs)
    trial.must_have_reached(reach)


def _shorter(trial: Trial, program: list[Step]) -> None:
    """Removes the steps without which a failing program still fails."""
    trial.shorten(program, lambda fewer: (list(fewer),), partial(run_program, trial.context))


_SLOW: dict[str, Any] = {"slow": True, "drawn": _DRAWN}
for _clause, _forks in (("graphs.replay_equals_eager", False), ("graphs.fork_join", True)):
    cases(_clause, over={"drawn": (_forks, *_FEW)}, **_SLOW)(_drawn)
    cases(_clause, over={"drawn_more": (_forks, *_MORE)}, more=True, **_SLOW)(_drawn)
