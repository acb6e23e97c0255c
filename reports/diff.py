"""Compares two runs: the cells that newly fail, are fixed or are missing, and the differences in environment.

The environment comes first in the report, because it causes most differences between two runs.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from itertools import product
from typing import Final

import msgspec

from devices.cell import CellKey, Outcome, Verdict
from devices.failure import Word
from reports.gate import number
from reports.junit import one_line
from reports.model import Run
from reports.status_letters import ABSENT, KIND_OF, LETTERS, MISSING, code_of


class Change(Word):
    """The kinds of change of a cell from one run to another, the most urgent kind first."""

    NEWLY_CRASHING = "newly-crashing"
    NEWLY_FAILING = "newly-failing"
    MISSING = "missing"
    CHANGED_OUTCOME = "changed-outcome"
    CHANGED_EXPECTATION = "changed-expectation"
    FIXED = "fixed"
    ADDED = "added"
    LEFT_OUT = "left-out"


MEANING: Final[Mapping[Change, str]] = {
    Change.NEWLY_CRASHING: "crashes or hangs now, and did not before",
    Change.NEWLY_FAILING: "passed (or had references that disagreed) before, and does not pass now",
    Change.MISSING: "had an outcome before; was to run now, and has no outcome",
    Change.CHANGED_OUTCOME: "has a different outcome; neither the old nor the new outcome is a pass",
    Change.CHANGED_EXPECTATION: "has the same outcome, but the manifest gives it a different verdict",
    Change.FIXED: "did not pass before, and passes now",
    Change.ADDED: "had no outcome before, and has an outcome now",
    Change.LEFT_OUT: "had an outcome before, and was not to run now (not planned, or not selected)",
}

WORSE: Final = (Change.NEWLY_CRASHING, Change.NEWLY_FAILING, Change.MISSING)

_DEADLY: Final = (Outcome.CRASH, Outcome.HANG)
_NONE: Final = (ABSENT, MISSING)

# Fields of the provenance that differ in any two runs.
_NOT_COMPARED: Final = frozenset({"start", "host", "device_uuid", "plan_hash"})
_FIRST: Final = ("torch", "driver", "device_name")


def change(before: str, after: str) -> Change | None:
    """Returns the kind of change between two status letters of a cell (``reports.status_letters``); None if nothing
    changed."""
    if before == after or (before in _NONE and after in _NONE):
        return None
    if after in _NONE:
        return Change.MISSING if after == MISSING else Change.LEFT_OUT
    if before in _NONE:
        return Change.ADDED
    was, now = LETTERS[before].outcome, LETTERS[after].outcome
    if was is now:
        return Change.CHANGED_EXPECTATION
    if now in _DEADLY and was not in _DEADLY:
        return Change.NEWLY_CRASHING
    if now is Outcome.PASS:
        return Change.FIXED
    if was in (Outcome.PASS, Outcome.AMBIGUOUS) and now is not Outcome.AMBIGUOUS:
        return Change.NEWLY_FAILING
    return Change.CHANGED_OUTCOME


def table() -> dict[str, str]:
    """Returns the kind of change for every pair of different status letters. The pages of the dashboard compare runs
    with this table."""
    pairs = product(KIND_OF, repeat=2)
    return {was + now: what.value for was, now in pairs if (what := change(was, now)) is not None}


#: By kind of change: (cell, letter before, letter after), in the order of the later run.
Changes = dict[Change, list[tuple[CellKey, str, str]]]


def changes(before: Mapping[CellKey, str], after: Mapping[CellKey, str]) -> Changes:
    """Returns the cells that changed, by kind of change. A cell that only one of the two runs contains counts as absent
    in the other run."""
    found: Changes = {what: [] for what in Change}
    for cell in dict.fromkeys((*after, *before)):
        was, now = before.get(cell, ABSENT), after.get(cell, ABSENT)
        if (what := change(was, now)) is not None:
            found[what].append((cell, was, now))
    return {what: cells for what, cells in found.items() if cells}


@dataclass(frozen=True, slots=True)
class Comparison:
    """The result of comparing two runs. ``environment`` has a (name, before, after) for each difference in environment.
    The differences that most often explain changed cells come first."""

    environment: tuple[tuple[str, str, str], ...]
    cells: Changes

    @property
    def worse(self) -> bool:
        """True if a cell newly fails, newly crashes or is missing."""
        return any(self.cells.get(what) for what in WORSE)


def environment(
    before: Mapping[str, object], after: Mapping[str, object]
) -> tuple[tuple[str, str, str], ...]:
    """Returns the differences between two provenances as (name, before, after); torch and driver come first."""
    names = [*_FIRST, *(name for name in {**before, **after} if name not in _FIRST)]
    return tuple(
        (name, str(before.get(name, "")), str(after.get(name, "")))
        for name in names
        if name not in _NOT_COMPARED and before.get(name, "") != after.get(name, "")
    )


def diff(before: Run, after: Run) -> Comparison:
    """Compares two runs, of the same device or of two devices, cell by cell."""
    origins = environment(asdict(before.provenance), asdict(after.provenance))
    return Comparison(origins, changes(_letters(before), _letters(after)))


def _letters(run: Run) -> dict[CellKey, str]:
    """Returns the status letters of the cells that were to run, in plan order."""
    results = run.results
    chosen = results.keys() | set(run.parsed.selected)
    return {
        cell: code_of(results[cell]) if cell in results else MISSING
        for cell in run.parsed.cells
        if cell in chosen
    }


def in_words(letter: str) -> str:
    """Returns a status letter in words, such as ``pass``, ``fail (expected)`` or ``absent``."""
    if letter in _NONE:
        return "absent" if letter == ABSENT else "not run"
    outcome, verdict, _ = LETTERS[letter]
    return str(outcome) if verdict in (Verdict.OK, Verdict.REGRESSION) else f"{outcome} ({verdict})"


def as_text(found: Comparison, *, limit: int = 20) -> str:
    """Returns the comparison as text for a terminal: the environment, then at most ``limit`` cells of each kind of
    change."""
    lines = ["environment:" if found.environment else "environment: the same"]
    lines += [
        f"  {name}: {one_line(old) or '-'} -> {one_line(new) or '-'}"
        for name, old, new in found.environment
    ]
    for what, cells in found.cells.items():
        lines.append(f"{what}: {number(len(cells), 'cell')} ({MEANING[what]})")
        lines += [
            f"  {one_line(str(cell))}: {in_words(old)} -> {in_words(new)}"
            for cell, old, new in cells[:limit]
        ]
        if len(cells) > limit:
            lines.append(f"  and {len(cells) - limit:,} more")
    if not found.cells:
        lines.append("no cell changed")
    return "\n".join(lines)


class DiffFact(msgspec.Struct):
    """A field of the provenance in which two runs differ."""

    name: str
    before: str
    after: str


class DiffCell(msgspec.Struct, omit_defaults=True):
    """A cell that changed, with its old and its new result in words. ``op`` is the name of the op or case."""

    clause: str
    op: str
    dtype: str
    before: str
    after: str
    variant: str = ""


class DiffDocument(msgspec.Struct):
    """The document that ``conform diff --json`` prints. The document lists every kind of change, including the kinds
    that no cell has."""

    environment: list[DiffFact]
    changes: dict[str, list[DiffCell]]


def as_data(found: Comparison) -> DiffDocument:
    """Returns the comparison in the form of the document that ``conform diff --json`` prints."""
    cells = {
        what.value: [
            DiffCell(
                clause=cell.clause,
                op=cell.unit,
                dtype=cell.dtype,
                before=in_words(old),
                after=in_words(new),
                variant=cell.variant,
            )
            for cell, old, new in found.cells.get(what, ())
        ]
        for what in Change
    }
    return DiffDocument([DiffFact(*fact) for fact in found.environment], cells)
