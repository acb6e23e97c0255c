"""Programs for drawn cases: what is queued on which stream, forks and joins, as data.

A program is a list of steps, each a list of whole numbers or words, that means something whatever the numbers are:
places are taken modulo what is there. So every part of a program is one, and a failing one shrinks.

- ``("make", stream, kind, a, b)``: a new value from two that the stream sees;
- ``("write", kind, a, b)``: the main stream changes a value in place, where no fork is open;
- ``("fork", side)``, ``("join", side)``: a side stream begins behind the main one, and comes back to it;
- ``("free", a)``: the main stream lets go of a value that it made.

Values are small and whole, so that every order of a sum gives the same bits.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import Any

import torch

from conformance.behaviour.context import Context
from conformance.graphs.capturing import captured, give, new_graph, replay, there

Step = Sequence[Any]

SHAPE = (8, 8)
INPUTS = 3
SIDES = 2
REPLAYS = 3

MAKES: tuple[Callable[[torch.Tensor, torch.Tensor], torch.Tensor], ...] = (
    lambda a, b: a + b,
    lambda a, b: a - b,
    lambda a, b: torch.maximum(a, b),
    lambda a, b: a.t() + b,
    lambda a, b: (a + b.sum(0, keepdim=True)).remainder(64),
    lambda a, b: torch.cat([a[:4], b[4:]]),
    lambda a, b: a.clone(),
    lambda a, b: torch.where(a > b, a, b * 2).clamp(-64, 64),
)
WRITES: tuple[Callable[[torch.Tensor, torch.Tensor], torch.Tensor], ...] = (
    lambda a, b: a.add_(b),
    lambda a, b: a.copy_(b),
    lambda a, b: a.clamp_(-32, 32),
    lambda a, b: torch.add(a, b, alpha=2, out=a),
)


class Run:
    """One run of a program. With no ``streams`` it runs on the current one, in the order of the steps."""

    def __init__(self, inputs: Sequence[torch.Tensor], streams: Sequence[Any] | None) -> None:
        self.streams = streams
        self.inputs = len(inputs)
        self.main = list(inputs)
        self.sides: dict[
            int, tuple[list[torch.Tensor], int]
        ] = {}  # what one sees, and how much it was given

    def on(self, stream: int) -> Any:
        return nullcontext() if self.streams is None or stream == 0 else self.streams[stream]

    def join(self, side: int) -> None:
        sees, given = self.sides.pop(side)
        if self.streams is not None:
            self.streams[0].wait_stream(self.streams[side])
        self.main += sees[given:]

    def do(self, step: Step) -> None:
        name, *numbers = step
        if name == "make":
            stream, kind, a, b = numbers
            stream = stream if stream in self.sides else 0
            sees = self.sides[stream][0] if stream else self.main
            with self.on(stream):
                made = MAKES[kind % len(MAKES)](sees[a % len(sees)], sees[b % len(sees)])
            sees.append(made)
        elif name == "write" and not self.sides:
            kind, a, b = numbers
            target, source = self.main[a % len(self.main)], self.main[b % len(self.main)]
            WRITES[kind % len(WRITES)](target, source)
        elif name == "fork" and numbers[0] not in self.sides:
            (side,) = numbers
            if self.streams is not None:
                self.streams[side].wait_stream(self.streams[0])
            self.sides[side] = (list(self.main), len(self.main))
        elif name == "join" and numbers[0] in self.sides:
            self.join(numbers[0])
        elif name == "free" and not self.sides and len(self.main) > self.inputs:
            del self.main[self.inputs + numbers[0] % (len(self.main) - self.inputs)]

    def whole(self, program: Sequence[Step]) -> list[torch.Tensor]:
        """All steps; open forks are joined. What the program leaves: the inputs, and the values it made."""
        for step in program:
            self.do(step)
        for side in sorted(self.sides):
            self.join(side)
        return self.main


def _inputs(context: Context, number: int) -> list[torch.Tensor]:
    made = torch.Generator().manual_seed(number)
    return [torch.randint(-9, 10, SHAPE, generator=made).float() for _ in range(INPUTS)]


def _noise(context: Context, number: int) -> None:
    """Blocks that are taken, written to and freed between replays."""
    for size in (number + 1, 64, 300):
        torch.full((size,), -7.0, device=context.device)


def check(context: Context, program: Sequence[Step]) -> None:
    """Capture a program, replay it on new inputs, and compare all that it leaves with an eager run in one order."""
    static = [there(context, each) for each in _inputs(context, 0)]
    streams = [context.stream() for _ in range(1 + SIDES)]
    context.must(len({each.stream_id for each in streams}) == len(streams), "streams of their own")
    before = [each.clone() for each in static]
    context.settle()
    graph = new_graph(context)
    with captured(context, streams[0], graph):
        static[0].add_(0)  # so that no program is empty
        left = Run(static, streams).whole(program)
    context.settle()
    for place, (now, then) in enumerate(zip(static, before)):
        context.equal(now, then, f"input {place} after the capture, which runs nothing")
    for number in range(1, REPLAYS + 1):
        values = _inputs(context, number)
        for target, value in zip(static, values):
            give(context, target, value)
        eager = Run([there(context, each) for each in values], None).whole(program)
        _noise(context, number)
        for value in left[INPUTS:]:
            value.fill_(-99)  # what an earlier run left there must not pass for a result
        context.settle()
        replay(context, graph, stream=streams[0])
        context.same(len(left), len(eager), "values that the program leaves")
        for place, (got, want) in enumerate(zip(left, eager)):
            context.equal(got, want, f"value {place} of {len(eager)} after replay {number}")


def works_aside(program: Sequence[Step]) -> bool:
    """Whether a side stream makes a value."""
    forked: set[int] = set()
    for name, *numbers in program:
        if name == "fork":
            forked.add(numbers[0])
        elif name == "join":
            forked.discard(numbers[0])
        elif name == "make" and numbers[0] in forked:
            return True
    return False


#: How many numbers each step takes.
_NUMBERS = {"make": 4, "write": 3, "fork": 1, "join": 1, "free": 1}


def validate(program: Sequence[Step]) -> None:
    """Raises an exception where this is no program."""
    for name, *numbers in program:
        if _NUMBERS.get(name) != len(numbers) or not all(type(each) is int for each in numbers):
            raise ValueError(f"no step: {(name, *numbers)!r}")
        if name in ("fork", "join") and not 1 <= numbers[0] <= SIDES:
            raise ValueError(f"no side stream {numbers[0]}")


def told(program: Sequence[Step]) -> str:
    """A program in one line."""
    return "; ".join(" ".join(map(str, step)) for step in program)
