"""Coverage of random programs: the pairs of consecutive instructions and the states that occur in them. Also generates
programs that cover the missing entries.

A few programs drawn at random miss rare pairs. So a case counts what its programs cover, and then adds steered
programs. To choose the next instruction of a steered program, several instructions are drawn at random, and the one
that covers the most missing entries is taken.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from random import Random
from typing import Any, Protocol, TypeVar

#: One entry of coverage: ``("pair", "copy", "wait", …)``, or the kind of a state followed by its properties.
Key = tuple[str, ...]
Instruction = TypeVar("Instruction")

#: The largest number of steered programs.
_MOST = 200


@dataclass
class Reach:
    """The coverage of the random programs of a case. ``table`` contains all pairs of instructions and all states that
    the programs can cover."""

    table: frozenset[Key]
    missing: set[Key] = field(init=False)

    def __post_init__(self) -> None:
        self.missing = set(self.table)

    def __str__(self) -> str:
        """Returns the coverage as a report shows it: ``98 pairs of instructions, 9 states of wait; missing: …``. Here
        ``wait`` is the name of a group of states."""
        sorts = Counter(sort for sort, *_ in self.table - self.missing)
        told = [f"{sorts.pop('pair', 0)} pairs of instructions"]
        told += [f"{count} states of {sort}" for sort, count in sorted(sorts.items())]
        missing = "; ".join(" ".join(key) for key in sorted(self.missing))
        return ", ".join(told) + (f"; missing: {missing}" if missing else "")


class Walk(Protocol[Instruction]):
    """The state of a program that is built instruction by instruction."""

    def proposals(self, random: Random) -> list[Instruction]:
        """Returns at least one randomly drawn instruction that may come next."""

    def reaches(self, instruction: Instruction) -> set[Key]:
        """Returns the pairs of instructions and the states that an instruction adds to the coverage if it comes next."""

    def take(self, instruction: Instruction) -> None:
        """Appends an instruction to the program."""


def reached(walk: Walk[Instruction], program: Iterable[Instruction]) -> set[Key]:
    """Returns the pairs of instructions and the states that a whole program covers."""
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
    """Yields further programs of at most ``length`` instructions that together cover the missing pairs and states. Each
    item is a pair: the second value that ``begin`` returned for the program, and the program."""
    random, missing = Random(seed), set(reach.missing)
    for _ in range(_MOST):
        if not missing:
            return
        walk, beside = begin(random)
        program: list[Instruction] = []
        last = 0  # index after the last instruction that covered something new; the rest is dropped
        while missing and len(program) < length:
            choices = walk.proposals(random)
            random.shuffle(choices)  # break ties at random
            best = max(choices, key=lambda each: len(missing & walk.reaches(each)))
            found = missing & walk.reaches(best)
            missing -= found
            walk.take(best)
            program.append(best)
            last = len(program) if found else last
        if last:
            yield beside, program[:last]


def without(table: Iterable[Key], impossible: Mapping[Key, str]) -> frozenset[Key]:
    """Returns a coverage table without the entries that no program can cover; ``impossible`` maps each such entry to
    the reason. Raises ValueError if an entry in ``impossible`` is not in the table."""
    whole = frozenset(table)
    if not whole.issuperset(impossible):
        raise ValueError(
            f"these impossible entries are not in the table: {sorted(set(impossible) - whole)}"
        )
    return whole - set(impossible)
