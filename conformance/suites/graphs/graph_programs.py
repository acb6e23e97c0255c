"""Randomly drawn graph programs. A program is captured and replayed on new inputs, and must produce the same
values as an eager run.

An operand of an instruction is an index, taken modulo the number of existing values, so that any part of a program is
a valid program and failing programs can be shrunk. An instruction changes a model of the existing values and runs
operations on numbered values; a repro script contains the same operations, one on each line. Values are small
integers, so that a sum has the same bits in every order.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cache, partial
from random import Random
from typing import Any

import torch

from conformance.checks.behaviour.graph_capture import captured, give, replay, there
from conformance.checks.cases.cases import Cases, Drawn
from conformance.checks.cases.context import CaseContext
from conformance.checks.programs.language import (
    Aspect,
    Key,
    Language,
    Operand,
    Reach,
    State,
    States,
    Step,
    Steps,
    numbered,
    steered,
)
from conformance.checks.programs.operations import Operation, operation, perform, straight
from conformance.checks.programs.trials import Trial, search
from devices.descriptor import Descriptor
from devices.failure import Kind

cases = Cases(Kind.VALUES)

Make = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
Queued = Callable[..., list[torch.Tensor]]

SHAPE = (8, 8)
INPUTS = 3
SIDES = 2
REPLAYS = 3
STEPS = (12, 24)  # least and most steps of a program; shrinking may go below
_CHOICES = 3  # steps of each instruction proposed for the next step of a steered program
_FEW, _MORE = (0, 8), (1, 90)  # (seed, number of programs): in every plan; beyond quick

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


# -- the model, and what programs must cover


class Model(State):
    """The values that exist between the steps of a program. If ``streams`` is False, the operations are those of an
    eager run without side streams. If ``forks`` is False, programs have no side streams."""

    def __init__(self, *, streams: bool = True, forks: bool = True) -> None:
        super().__init__()
        self.streams, self.forks = streams, forks
        self.main = list(range(INPUTS))  # values it may use
        #: For each open side stream: the values that it may use, and how many there were at the fork.
        self.sides: dict[int, tuple[list[int], int]] = {}
        self.count = INPUTS

    def sees(self, stream: int) -> list[int]:
        """Returns the numbers of the values that the next op on a stream may read: those of a side stream that is forked
        and not joined yet, otherwise those of the main stream."""
        return self.sides[stream][0] if stream in self.sides else self.main

    def value(self, number: int, stream: int = 0) -> int:
        sees = self.sees(stream)
        return sees[number % len(sees)]

    def proposals(self, random: Random) -> list[Step]:
        """Returns steps that may come next in the program. The order of the calls of ``random`` must not change,
        because it decides which programs a seed gives."""
        found: list[Step] = []
        for _ in range(_CHOICES):
            stream = random.randrange(SIDES + 1) if self.forks else 0
            kind = random.randrange(len(MAKES))
            found.append(("make", stream, kind, random.randrange(12), random.randrange(12)))
            kind = random.randrange(len(WRITES))
            found.append(("write", kind, random.randrange(12), random.randrange(12)))
            found.append(("free", random.randrange(12)))
            if self.forks:
                side = random.randrange(SIDES) + 1
                found += [("fork", side), ("join", side)]
        return [step for step in found if self.possible(step)]

    @property
    def main_values(self) -> int:
        """The number of existing values of the main stream that are not inputs."""
        return len(self.main) - INPUTS


def _second(model: Model, a: int, b: int, stream: int = 0, **_: int) -> int:
    one, other = model.value(a, stream), model.value(b, stream)
    return 2 if one == other else other >= INPUTS


_VALUES = States(
    Aspect(
        ("an input", "a value"),
        lambda model, a, stream=0, **_: model.value(a, stream) >= INPUTS,
    ),
    Aspect(("an input", "a value", "itself"), _second),
)
_FREED = Aspect(("the last", "an earlier one"), lambda model, a: a != model.main_values - 1)
_SIDE_OF = Aspect([str(side + 1) for side in range(SIDES)], lambda model, side: side - 1)
_OPEN = Aspect([f"{count} open" for count in range(SIDES)], lambda model, side: len(model.sides))
_JOINED = Aspect(
    ("with a value", "empty"),
    lambda model, side: len(model.sees(side)) == model.sides[side][1],
)
_STREAM_OF = Aspect(
    lambda model: ("make", "make aside")[: 1 + model.forks],
    lambda model, stream, **_: stream in model.sides,
)


def _impossible(model: Model) -> dict[Key, str]:
    pairs = [(one, other) for one in ("fork", "make aside") for other in ("write", "free")]
    pairs += [(one, other) for one in ("write", "free") for other in ("make aside", "join")]
    reason = "nothing is written or freed while a fork is open"
    return {("pair", *pair): reason for pair in pairs if model.forks}


_SIDES = range(1, SIDES + 1)
GRAPHS = Language(
    name="a graph program",
    operands=(
        Operand("stream", range(SIDES + 1)),
        Operand("side", _SIDES),
        numbered("kind", range(8), lambda model: len(MAKES)),
        Operand("a", range(12)),
        Operand("b", range(12)),
    ),
    text=lambda *step: " ".join(map(str, step)),
    impossible=_impossible,
)
Model.language = GRAPHS


# -- instructions, and their operations


@operation
def make_value(run: Running, value: int, make: Make, a: int, b: int) -> None:
    run.values[value] = make(run.values[a], run.values[b])


@operation
def make_aside(run: Running, stream: int, value: int, make: Make, a: int, b: int) -> None:
    with run.streams[stream]:
        run.values[value] = make(run.values[a], run.values[b])


@GRAPHS.instruction(title=_STREAM_OF, covers=(_VALUES,))
def make(model: Model, stream: int, kind: int, a: int, b: int) -> Iterator[Operation]:
    """Computes a new value on a stream from two values that this stream may use."""
    given = model.count, MAKES[kind], model.value(a, stream), model.value(b, stream)
    aside = model.streams and stream in model.sides
    model.sees(stream).append(model.count)
    model.count += 1
    yield make_aside(stream, *given) if aside else make_value(*given)


@operation
def change(run: Running, change: Make, a: int, b: int) -> None:
    change(run.values[a], run.values[b])


@GRAPHS.instruction(
    operands=(numbered("kind", range(8), lambda model: len(WRITES)),),
    needs=lambda model, **_: not model.sides,
    covers=(_VALUES,),
)
def write(model: Model, kind: int, a: int, b: int) -> Iterator[Operation]:
    """Changes a value in place on the main stream. This is possible only while no fork is open."""
    yield change(WRITES[kind], model.value(a), model.value(b))


@operation
def delete(run: Running, value: int) -> None:
    del run.values[value]


@GRAPHS.instruction(
    operands=(Operand("a", range(12), lambda model: model.main_values),),
    needs=lambda model, **_: not model.sides and model.main_values,
    covers=(States(_FREED),),
)
def free(model: Model, a: int) -> Iterator[Operation]:
    """Deletes a value of the main stream that is not an input. This is possible only while no fork is open."""
    yield delete(model.main.pop(INPUTS + a))


@operation
def wait(run: Running, stream: int, other: int) -> None:
    """Makes one stream wait for another stream, for a fork or a join."""
    run.streams[stream].wait_stream(run.streams[other])


@GRAPHS.instruction(
    here=lambda model: model.forks,
    needs=lambda model, side: side not in model.sides,
    covers=(States(_SIDE_OF, _OPEN),),
)
def fork(model: Model, side: int) -> Iterator[Operation]:
    """Forks a side stream: its work waits for the work that is already queued on the main stream."""
    model.sides[side] = (list(model.main), len(model.main))
    if model.streams:
        yield wait(side, 0)


@GRAPHS.instruction(
    here=lambda model: model.forks,
    needs=lambda model, side: side in model.sides,
    covers=(States(_SIDE_OF, _JOINED),),
)
def join(model: Model, side: int) -> Iterator[Operation]:
    """Joins a side stream: later work of the main stream waits for the work of the side stream."""
    sees, given = model.sides.pop(side)
    model.main += sees[given:]
    if model.streams:
        yield wait(0, side)


# -- programs


def lowered(program: Steps, *, streams: bool) -> tuple[list[Operation], list[int]]:
    """Returns the operations of a program, and the numbers of the values that exist after it (the inputs and the values
    that the program made). Forks that are still open at the end are joined."""
    model = Model(streams=streams)
    operations = model.take_all(program)
    for side in sorted(model.sides):
        operations += join(model, side)
    return operations, model.main


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


def run(program: Steps, *given: Any) -> list[torch.Tensor]:
    """Runs a program on the inputs that ``given`` contains, eagerly or in a capture. If streams follow the inputs in
    ``given``, the program runs on these streams. Returns the values that exist after the program."""
    streams = dict(enumerate(given[INPUTS:]))
    operations, left = lowered(program, streams=bool(streams))
    running = Running(dict(enumerate(given[:INPUTS])), streams)
    perform(running, operations)
    return [running.values[value] for value in left]


def run_program(context: CaseContext, program: Steps) -> None:
    queue = partial(run, program)
    check(context, queue, queue)


def source(descriptor: Descriptor, program: Steps) -> str:
    """Returns the Python source of three functions: one that queues the program on streams, one that runs it eagerly,
    and one that compares their results."""
    given = ", ".join(f"v{place}" for place in range(INPUTS))
    streams = ", ".join(f"s{place}" for place in range(1 + SIDES))

    def function(name: str, parameters: str, *, streams: bool) -> str:
        operations, left = lowered(program, streams=streams)
        values = ", ".join(f"v{value}" for value in left)
        lines = straight(operations, _NAMES, 1)
        return f"def {name}({parameters}):\n{lines}    return [{values}]\n"

    queue = function("queue", f"{given}, {streams}", streams=True)
    eager = function("eager", given, streams=False)
    head = f'def program(context: CaseContext) -> None:\n    """{GRAPHS.describe(program)}"""\n'
    return f"{queue}\n\n{eager}\n\n{head}    check(context, queue, eager)\n"


# -- cases


@cache
def _programs(forks: bool) -> Any:
    """Returns the hypothesis strategy that draws programs. All searches use the same strategy, because
    hypothesis keeps data about every strategy."""
    from hypothesis.strategies import lists, one_of

    step = GRAPHS.strategy
    kinds = [step("make"), step("make", stream=range(1))]
    for name, instruction in GRAPHS.instructions.items():
        if name != "make" and instruction.here(Model(forks=forks)):
            kinds.append(step(name))
    if forks:
        kinds.append(step("make", stream=_SIDES))
    return lists(one_of(*kinds), min_size=STEPS[0], max_size=STEPS[1])


_DRAWN = Drawn(run_program, GRAPHS.describe, GRAPHS.validate, source)


def _drawn(context: CaseContext, forks: bool, seed: int, programs: int) -> None:
    """Programs of ops, in-place writes, frees, forks and joins are drawn at random, captured, and replayed on
    new inputs. Each replay produces the same values as an eager run of the program."""
    trial, reach = Trial(context, _DRAWN), Reach(GRAPHS.table(Model(forks=forks)))

    def holds(program: Steps) -> None:
        if trial.begin():
            reach.missing -= Model(forks=forks).reached(program)
            trial.run((program,), partial(run_program, context, program))

    further = steered(lambda _: Model(forks=forks), reach, seed, STEPS[1])
    trial.judge(
        reach,
        programs,
        search=partial(search, _programs(forks), holds, seed, programs),
        steered=(steps for _, steps in further),
        holds=holds,
        shorter=partial(trial.shorten, 0, partial(run_program, context)),
    )


_SLOW: dict[str, Any] = {"slow": True, "drawn": _DRAWN}
for _clause, _forks in (("graphs.replay_equals_eager", False), ("graphs.fork_join", True)):
    cases(_clause, over={"drawn": (_forks, *_FEW)}, **_SLOW)(_drawn)
    cases(_clause, over={"drawn_more": (_forks, *_MORE)}, more=True, **_SLOW)(_drawn)
