"""Coverage of stream programs: the pairs of instructions and the states that a program covers, and steered
programs, which are drawn so that they cover what random programs missed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cache
from itertools import product
from random import Random

from conformance.checks.cases.program_coverage import Key, Reach, reached, steered, without
from conformance.checks.cases.random_programs import Operation
from conformance.suites.streams.programs import (
    BUFFERS,
    KINDS,
    MOST_STREAMS,
    Order,
    Program,
    across,
    add,
    copy,
    places,
    reads,
    record,
    step,
    wait,
    wait_stream,
    writes,
)

#: The largest number of instructions of a steered program, and the number of proposals of each kind.
_LENGTH, _CHOICES = 30, 4


class Walk:
    """The state of a program that is built instruction by instruction, and the coverage that the next
    instruction would add."""

    def __init__(self, indices: int, streams: tuple[int, ...]) -> None:
        self.program = Program(indices, streams, (), tuple(range(len(streams))))
        self.order = Order(len(streams))
        self.last: Operation | None = None
        self.recorded: dict[int, list[int]] = {}  # event -> the streams that recorded it, in order
        self.waited: dict[int, int] = {}  # event -> how many waits its last record has had

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
        """Returns random instructions of each kind. Instructions that need an additional wait before them are
        left out."""
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
    """Returns all pairs of instructions and all states that programs on the given number of device indices can
    cover."""
    names = [name for name in KINDS if name != "across" or indices > 1]
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
            yield ("wait", one, other, how), "a stream has only one kind"
        if (one, other, how) == ("default", "default", "other stream"):
            for name in ("wait", "wait_stream"):
                yield (name, one, other, how), "a device index has only one default stream"


def all_reached(program: Program) -> set[Key]:
    return reached(Walk(program.indices, program.streams), program.instructions)


def steered_programs(indices: int, reach: Reach, seed: int) -> Iterator[Program]:
    """Yields programs that cover the pairs of instructions and the states in ``reach.missing``."""

    def begin(random: Random) -> tuple[Walk, tuple[int, ...]]:
        streams = {random.randrange(indices * len(_WORDS)) for _ in range(MOST_STREAMS)}
        made = list(streams)
        while len(made) < MOST_STREAMS:  # each index has one default stream
            number = random.randrange(indices * len(_WORDS))
            made += [number] if number // indices != 1 else []
        random.shuffle(made)
        return Walk(indices, tuple(made)), tuple(made)

    random = Random(seed)
    for streams, instructions in steered(reach, seed, _LENGTH, begin):
        released = tuple(random.sample(range(len(streams)), len(streams)))
        yield Program(indices, streams, tuple(instructions), released)
