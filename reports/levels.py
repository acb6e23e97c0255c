"""Levels of conformance: what a run's cells come to against each level's frozen list."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from devices.cell import Outcome
from reports.model import Run, problem_with
from reports.plan import PLANNED, Plan


@dataclass(frozen=True, slots=True)
class LevelCount:
    """``passed`` of ``listed``. ``unplanned`` cells of the list are not in the run's plan, and count
    against the device as those do that it does not declare. ``open`` are clauses up to this level, of
    ``clauses``, that the suite does not check yet: their cells are in no list."""

    level: int
    title: str
    version: str
    passed: int
    listed: int
    unplanned: int
    clauses: int
    open: int

    @property
    def reached(self) -> bool:
        """Every listed cell passes, and no clause of the level is left to be checked."""
        return not self.open and 0 < self.listed == self.passed

    def __str__(self) -> str:
        short = f"; {self.unplanned:,} are not in this plan" if self.unplanned else ""
        still = (
            f"; {self.open} of its {self.clauses} clauses are not checked yet" if self.open else ""
        )
        return (
            f"level {self.level} {self.title} ({self.version}): {self.passed:,} of "
            f"{self.listed:,} cells pass{short}{still}"
        )


def count_levels(plan: Plan, passes: Callable[[int], bool]) -> list[LevelCount]:
    """Each stated level; ``passes`` says of a place in the plan whether its cell passed."""
    levels = {clause.id: clause.level for clause in plan.clauses.values()}
    open_clauses = {clause.id for clause in plan.clauses.values() if clause.status == PLANNED}
    found = []
    for stated in plan.document.levels:
        planned = [range(first, first + length) for first, length in stated.planned]
        within = {clause for clause, level in levels.items() if level <= stated.level}
        found.append(
            LevelCount(
                stated.level,
                stated.title,
                stated.version,
                sum(passes(place) for places in planned for place in places),
                stated.listed,
                stated.listed - sum(map(len, planned)),
                len(within),
                len(within & open_clauses),
            )
        )
    return found


def levels_of(run: Run) -> list[LevelCount]:
    """The levels of a run that has been read or written."""
    cells, results = run.parsed.cells, run.results

    def passes(place: int) -> bool:
        result = results.get(cells[place])
        return (
            result is not None and result.outcome is Outcome.PASS and problem_with(result) is None
        )

    return count_levels(run.parsed, passes)
