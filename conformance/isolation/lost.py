"""Cells that ended a process: what is known of them, and what the rest of their item must leave out."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from devices.cell import CellKey, Outcome


@dataclass(frozen=True, slots=True)
class Lost:
    """A cell that ended the process that ran it.

    ``outcome`` is ``crash`` or ``hang``; a device that was left unusable is a crash. ``call`` names the call
    of the cell's group that did it, where that is known: ``group|call``.
    """

    cell: CellKey
    outcome: Outcome
    message: str
    call: str = ""

    def plain(self) -> dict[str, Any]:
        """As JSON and execnet can hold it."""
        return {
            "cell": list(self.cell),
            "outcome": self.outcome.value,
            "message": self.message,
            "call": self.call,
        }

    @classmethod
    def of(cls, plain: dict[str, Any]) -> Lost:
        """Read it back. Raises KeyError, TypeError or ValueError where it is not one."""
        return cls(
            CellKey(*map(str, plain["cell"])),
            Outcome(plain["outcome"]),
            str(plain["message"]),
            str(plain.get("call", "")),
        )


@dataclass(slots=True)
class Guilty:
    """What an item must leave out: clauses whose cells ended a process, and the calls that did it."""

    clauses: set[str] = field(default_factory=set)
    calls: dict[str, CellKey] = field(default_factory=dict)  # the cell that each is counted in


class LostCells:
    """All cells of a run that ended a process, by item."""

    def __init__(self, known: Iterable[Lost] = ()) -> None:
        self._items: dict[tuple[str, str], Guilty] = {}
        self.all: list[Lost] = []
        for lost in known:
            self.add(lost)

    def add(self, lost: Lost) -> None:
        self.all.append(lost)
        guilty = self._items.setdefault((lost.cell.op, lost.cell.dtype), Guilty())
        guilty.clauses.add(lost.cell.clause)
        if lost.call:
            guilty.calls.setdefault(lost.call, lost.cell)

    def of(self, op: str, dtype: str) -> Guilty:
        """What the item of this op (or case) and dtype must leave out."""
        return self._items.get((op, dtype)) or Guilty()
