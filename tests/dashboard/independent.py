"""Counts of a run taken from its record, read with none of our code."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from tests.reports.independent import read


@dataclass
class Counted:
    """Cells of a run, or of a family of it."""

    planned: int = 0
    outcomes: Counter[str] = field(default_factory=Counter)
    verdicts: Counter[str] = field(default_factory=Counter)
    undeclared: int = 0

    @property
    def passed(self) -> int:
        return self.outcomes["pass"]

    @property
    def judged(self) -> int:
        return self.planned - self.outcomes["ambiguous-reference"] - self.undeclared


def cells(folder: Path) -> Iterator[tuple[str, str, str, str]]:
    """Every cell: clause, name, outcome and verdict."""
    for (clause, op, dtype, variant), told in read(folder).items():
        name = f"{op}[{dtype}]" if dtype else op
        yield clause, f"{name}@{variant}" if variant else name, told["outcome"], told["verdict"]


def count(folder: Path) -> dict[str, Counted]:
    """By family, and all under "all"."""
    found: dict[str, Counted] = {}
    for clause, _, outcome, verdict in cells(folder):
        for name in ("all", clause.partition(".")[0]):
            counted = found.setdefault(name, Counted())
            counted.planned += 1
            counted.outcomes[outcome] += 1
            counted.verdicts[verdict] += 1
            counted.undeclared += (outcome, verdict) == ("unsupported", "ok")
    return found
