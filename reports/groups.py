"""Failures grouped by what they seem to have in common: one line for people instead of hundreds.

The key is the clause, the kind of deviation or exception, the op's family, and where (the factors of the
layout of the minimised example, else of the simplest layout that fails): what one cause in a kernel's addressing usually shares. Pure functions of results.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from devices.cell import Verdict
from reports.deviation import kind_of, place_of
from reports.model import CellResult


class GroupKey(NamedTuple):
    """What the cells of one group share."""

    verdict: Verdict
    clause: str
    kind: str
    family: str
    place: str

    def __str__(self) -> str:
        where = f", {self.place}" if self.place else ""
        return f"{self.verdict} {self.clause}: {self.kind}, {self.family}{where}"


@dataclass(frozen=True, slots=True)
class Group:
    """Cells that fail alike. ``example`` is the one to read first; ``results`` keep the plan's order."""

    key: GroupKey
    results: tuple[CellResult, ...]

    @property
    def example(self) -> CellResult:
        """The cell with the smallest minimised example, else the first that has a repro script."""
        return min(self.results, key=_telling)

    @property
    def ops(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(result.key.op for result in self.results))

    @property
    def dtypes(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(result.key.dtype for result in self.results))


def _telling(result: CellResult) -> tuple[int, int, int, int]:
    example = result.example
    if example is None:
        return (1 + (result.repro is None), 0, 0, 0)
    return (0, *example.complexity)


def key_of(result: CellResult, families: Mapping[str, str]) -> GroupKey:
    """A result's group. ``families`` names the family of each op; an op without one is its own."""
    return GroupKey(
        result.verdict,
        result.key.clause,
        kind_of(result),
        families.get(result.key.op, result.key.op),
        place_of((result.example.layout,) if result.example is not None else result.layouts),
    )


def grouped(results: Iterable[CellResult], families: Mapping[str, str]) -> tuple[Group, ...]:
    """The groups: regressions before improvements, then the largest first, then in the plan's order."""
    found: dict[GroupKey, list[CellResult]] = {}
    for result in results:
        found.setdefault(key_of(result, families), []).append(result)
    groups = [Group(key, tuple(members)) for key, members in found.items()]
    groups.sort(key=lambda g: (g.key.verdict is not Verdict.REGRESSION, -len(g.results)))
    return tuple(groups)


def families_of(document: Mapping[str, object]) -> dict[str, str]:
    """The families of ops that a plan's document names; empty where an older one names none."""
    families = document.get("families")
    if not isinstance(families, Mapping):
        return {}
    return {str(op): str(name) for op, name in families.items()}
