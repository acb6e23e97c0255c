"""What drawn programs reach: pairs of instructions that follow each other, and states. And the programs that reach the rest.

A few programs drawn at random leave rare pairs out. So a case counts what its programs reach, and ends with programs that
are steered: of some instructions drawn at random the one that reaches most of what is missing comes next.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from random import Random
from typing import Any, Protocol, TypeVar

#: What is reached: ``("pair", "copy", "wait", …)``, or the sort of a state and what tells it apart.
Key = tuple[str, ...]
Instruction = TypeVar("Instruction")

#: Programs that are steered at most.
_MOST = 200


@dataclass
class Reach:
    """What the programs of a case reach, of a ``table`` of all that they can."""

    table: frozenset[Key]
    missing: set[Key] = field(init=False)

    def __post_init__(self) -> None:
        self.missing = set(self.table)

    def __str__(self) -> str:
        """As a report says it: ``98 pairs of instructions, 9 states of wait; missing: …``."""
        sorts = Counter(sort for sort, *_ in self.table - self.missing)
        told = [f"{sorts.pop('pair', 0)} pairs of instructions"]
        told += [f"{count} states of {sort}" for sort, count in sorted(sorts.items())]
        missing = "; ".join(" ".join(key) for key in sorted(self.missing))
        return ", ".join(told) + (f"; missing: {missing}" if missing else "")


class Walk(Protocol[Instruction]):
    """A program as it grows."""

    def proposals(self, random: Random) -> list[Instruction]:
        """Instructions that may come next, drawn at random: one at least."""

    def reaches(self, instruction: Instruction) -> set[Key]:
        """What an instruction reaches if it comes next."""

    def take(self, instruction: Instruction) -> None:
        """It comes next."""


def reached(walk: Walk[Instruction], program: Iterable[Instruction]) -> set[Key]:
    """What a program reaches."""
    found: set[Key] = set()
    for instruction in program:
        found |= walk.reaches(instruction)
        walk.take(instruction)
    return found


def steered(
    reach: Reach,
    seed: int,
    length: int,
    begin: Callable[[Random], tuple[Walk[Instruction], Any]],
) -> Iterator[tuple[Any, list[Instruction]]]:
    """Programs that reach what is missing, of so many instructions at most; each with what ``begin`` gave beside its walk."""
    random, missing = Random(seed), set(reach.missing)
    for _ in range(_MOST):
        if not missing:
            return
        walk, beside = begin(random)
        program: list[Instruction] = []
        last = 0  # the last instruction that reached something: what follows it is not needed
        while missing and len(program) < length:
            choices = walk.proposals(random)
            random.shuffle(choices)  # where none reaches anything, any is as good
            best = max(choices, key=lambda each: len(missing & walk.reaches(each)))
            found = missing & walk.reaches(best)
            missing -= found
            walk.take(best)
            program.append(best)
            last = len(program) if found else last
        if last:
            yield beside, program[:last]


def without(table: Iterable[Key], impossible: Mapping[Key, str]) -> frozenset[Key]:
    """A table without what no program can reach, by why. Raises ValueError if that is not in the table."""
    whole = frozenset(table)
    if not whole.issuperset(impossible):
        raise ValueError(f"not in the table: {sorted(set(impossible) - whole)}")
    return whole - set(impossible)
