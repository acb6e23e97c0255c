"""A run's record read by other means than ours: plain lists and dicts, a loop for each cell, no checks."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from devices.cell import CellKey
from reports.model import CellResult
from tests.reports.builders import body

#: Outcomes and verdicts that may stand together where nothing is wrong with a cell.
FINE = {
    ("pass", "ok"), ("pass", "flaky"), ("fail", "expected"), ("fail", "flaky"), ("unsupported", "ok"),
    ("unsupported", "expected"), ("ambiguous-reference", "ok"), ("crash", "expected"), ("hang", "expected"),
}  # fmt: skip
#: Of a provisional clause these are reported, and stop nothing.
REPORTED = {
    (outcome, verdict)
    for outcome in ("pass", "fail", "unsupported", "crash", "hang", "error", "ambiguous-reference")
    for verdict in ("regression", "improvement")
}

Told = dict[str, Any]
"""What the record says of one cell, by field."""


@dataclass
class Parts:
    """The parts of a record's body, to be read or changed."""

    plan: dict[str, Any]
    facts: dict[str, Any]
    selected: list[Any] | None
    provenance: dict[str, Any]
    count: int
    cells: bytes
    fields: dict[str, list[Any]]  # distinct values, positions

    @classmethod
    def of(cls, folder: Path) -> Parts:
        plan, *rest = msgspec.msgpack.decode(body(folder))
        return cls(msgspec.msgpack.decode(plan), *rest)

    def encoded(self) -> bytes:
        plan = msgspec.msgpack.encode(self.plan)
        rest = (self.facts, self.selected, self.provenance, self.count, self.cells, self.fields)
        return msgspec.msgpack.encode([plan, *rest])


def read(folder: Path) -> dict[CellKey, Told]:
    """Every result of a record; raises whatever the file provokes."""
    parts = Parts.of(folder)
    planned = cells_of(parts.plan["cells"])
    places: Any = range(len(planned))
    if parts.cells:
        places = memoryview(parts.cells).cast("I")
    told: dict[CellKey, Told] = {}
    for number, place in enumerate(places if parts.count else ()):
        told[planned[place]] = {
            name: values[at(positions, len(values), number)]
            for name, (values, positions) in parts.fields.items()
        }
    return told


def at(positions: bytes, values: int, number: int) -> int:
    """The position of a cell's value."""
    if not positions:
        return number
    size = 1 if values <= 256 else 2 if values <= 65536 else 4
    return int.from_bytes(positions[number * size : (number + 1) * size], "little")


def cells_of(folded: list[Any]) -> list[CellKey]:
    return [
        CellKey(clause, op, *dtype.partition("@")[::2])
        for clause, ops in folded
        for op, dtypes in ops.items()
        for dtype in dtypes
    ]


def green(folder: Path) -> bool:
    """Whether the record shows a complete run without a regression, by the rules as they are documented."""
    parts = Parts.of(folder)
    told = read(folder)
    clauses = {each["id"]: each for each in parts.plan["clauses"]}
    planned = cells_of(parts.plan["cells"])
    return (
        not parts.provenance["partial"]
        and bool(planned)
        and all(
            key in told and _fine(told[key], provisional=clauses[key.clause]["provisional"])
            for key in planned
        )
    )


def _fine(told: Told, *, provisional: bool) -> bool:
    pair = (told["outcome"], told["verdict"])
    if told["outcome"] == "pass" and (told.get("checks", 0) < 1 or told.get("layouts")):
        return False
    return pair in FINE or (provisional and pair in REPORTED)


def same(result: CellResult, told: Told) -> bool:
    """Whether a result says what the record says."""
    return (
        result.outcome.value == told["outcome"]
        and result.verdict.value == told["verdict"]
        and result.checks == told.get("checks", 0)
        and result.samples == told.get("samples", 0)
        and list(result.layouts) == list(told.get("layouts", []))
        and list(result.ran_layouts) == list(told.get("ran_layouts", []))
        and result.raises == told.get("raises")
        and result.note == told.get("note", "")
        and msgspec.to_builtins(result.failure) == told.get("failure")
        and result.why == told.get("why", "")
        and result.repro == told.get("repro")
    )
