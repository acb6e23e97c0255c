"""Coverage of allocator programs: the pairs of consecutive steps that a program covers, and the states in which it
runs its steps. Steered programs are drawn so that they cover what random programs missed."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from random import Random

from conformance.checks.cases.program_coverage import Key, Reach, reached, steered, without
from conformance.suites.allocator.programs import MOST, NUMBERS, SIZES, STEPS, Lowering, Step
from devices.descriptor import Descriptor

#: The largest value that is drawn for each parameter of a step.
HIGHEST = {"size": len(SIZES) - 1, "stream": 2, "index": 1, "which": MOST - 1}
#: The number of steps of each kind that are drawn as proposals for a steered program.
_CHOICES = 2


class Walk:
    """The state of a program that is built step by step, and the coverage that the next step would add."""

    def __init__(self, descriptor: Descriptor) -> None:
        self.model = Lowering(descriptor, "")
        self.last = ""

    def reaches(self, step: Step) -> set[Key]:
        """Returns the coverage that a step would add. The set is empty if the step would do nothing in the
        current state."""
        model = self.model
        if not model.does(step):
            return set()
        name, *values = step
        numbers = dict(zip(NUMBERS[name], values))
        found: set[Key] = {("pair", self.last, name)} if self.last else set()
        if "size" in numbers:
            found.add((name, f"size {numbers['size'] % (4 if name == 'threads' else len(SIZES))}"))
        if "index" in numbers:
            found.add((name, f"index {numbers['index'] % len(model.indices)}"))
        if "stream" in numbers and "which" not in numbers and model.streams:
            found.add((name, f"stream {numbers['stream'] % model.streams}"))
        if "which" in numbers:
            place = numbers["which"] % len(model.live)
            block = model.live[place]
            where = "the last" if place == len(model.live) - 1 else "an earlier one"
            found.add((name, where, "with views" if block.views else "without views"))
            if name == "use_elsewhere":
                found.add((name, _own(block.stream == 1 + numbers["stream"] % 2)))
            elif name == "free_on":
                found.add((name, _own(block.stream == numbers["stream"] % model.streams)))
        elif name == "pool_take":
            found.add((name, "another" if model.pool is not None else "the first"))
        return found

    def take(self, step: Step) -> None:
        if self.model.does(step):
            self.last = step[0]
            list(self.model.step(step))

    def proposals(self, random: Random) -> list[Step]:
        drawn = [
            (name, *(random.randint(0, HIGHEST[each]) for each in numbers))
            for name, numbers in NUMBERS.items()
            for _ in range(_CHOICES)
        ]
        return [step for step in drawn if self.model.does(step)]


def _own(own: bool) -> str:
    return "its own stream" if own else "another stream"


def table(descriptor: Descriptor) -> frozenset[Key]:
    """Returns all pairs of consecutive steps, and all states of single steps, that allocator programs can cover on
    the device that the descriptor describes."""
    model = Lowering(descriptor, "")
    names = set(NUMBERS)
    if not model.streams:
        names -= {"free_on", "use_elsewhere"}
    if not model.has_pools:
        names -= {"pool_take", "pool_end"}
    found: set[Key] = {("pair", one, other) for one in names for other in names}
    for name in names:
        numbers = NUMBERS[name]
        if "size" in numbers:
            found |= {
                (name, f"size {size}") for size in range(4 if name == "threads" else len(SIZES))
            }
        if "index" in numbers:
            found |= {(name, f"index {index}") for index in model.indices}
        if "stream" in numbers and "which" not in numbers:
            found |= {(name, f"stream {stream}") for stream in range(model.streams)}
        if "which" in numbers:
            views = ("with views", "without views")
            found |= {
                (name, which, has) for which in ("the last", "an earlier one") for has in views
            }
        if name in ("free_on", "use_elsewhere"):
            found |= {(name, _own(own)) for own in (True, False)}
    if not model.has_pools:
        return frozenset(found)
    found |= {("pool_take", which) for which in ("the first", "another")}
    return without(
        found, {("pair", "pool_end", "pool_end"): "a program has at most one pool at a time"}
    )


def all_reached(descriptor: Descriptor, program: Sequence[Step]) -> set[Key]:
    return reached(Walk(descriptor), program)


@cache
def steered_programs(
    descriptor: Descriptor, missing: frozenset[Key], seed: int
) -> tuple[list[Step], ...]:
    """Returns programs that are drawn to cover the entries of ``missing``: the pairs of consecutive steps and the
    states of single steps that no random program covered. The programs are the same for every clause."""
    found = steered(Reach(missing), seed, STEPS, lambda _: (Walk(descriptor), None))
    return tuple(steps for _, steps in found)
