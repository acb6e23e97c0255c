"""The letters that stand for the results of cells, and how each letter is shown; both are read from ``statuses.toml``.

A site of the dashboard stores the results of a run as one text with a letter per cell. Any program can read such a
text, and the letters of 250,000 cells compress to a few kilobytes.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Final, NamedTuple

import msgspec

from devices.cell import Outcome, Verdict
from devices.files import read_toml
from reports.gate import Tally
from reports.model import CellResult, RunError, problem_with

ABSENT: Final = " "
MISSING: Final = "n"
ERROR: Final = "E"
PASS: Final = "."


class Status(msgspec.Struct, frozen=True, omit_defaults=True):
    """A kind of status and its appearance: name, label, meaning, shape (an SVG path) and colours."""

    name: str
    label: str
    meaning: str
    path: str = ""
    light: str = ""
    dark: str = ""


class Letter(NamedTuple):
    """The outcome and verdict that a letter stands for, and the name of the status (``kind``) with which the letter is
    shown."""

    outcome: Outcome
    verdict: Verdict
    kind: str


class _Statuses(msgspec.Struct, forbid_unknown_fields=True):
    kinds: tuple[Status, ...]
    letters: dict[str, Letter]


_STATUSES = read_toml(Path(__file__).with_name("statuses.toml"), _Statuses, RunError)

KINDS: Final = _STATUSES.kinds
LETTERS: Final[Mapping[str, Letter]] = _STATUSES.letters
LABELS: Final[Mapping[str, str]] = {kind.name: kind.label for kind in KINDS}
KIND_OF: Final[Mapping[str, str]] = {
    **{code: letter.kind for code, letter in LETTERS.items()}, ABSENT: "absent",
}  # fmt: skip
_CODES: Final = {(each.outcome, each.verdict): code for code, each in LETTERS.items()}


def code_of(result: CellResult | None) -> str:
    """Returns the letter of a cell's result. A result that contradicts itself has the letter of an error, as in the
    JUnit files."""
    if result is None:
        return MISSING
    return _CODES[result.outcome, result.verdict] if problem_with(result) is None else ERROR


def tally(counts: Mapping[str, int]) -> Tally:
    """Converts the number of cells with each status letter to the counts of the gate."""
    total = Tally()
    for code, count in counts.items():
        if code != ABSENT:
            total.count(LETTERS[code].outcome, LETTERS[code].verdict, count)
    return total


def table() -> list[dict[str, str]]:
    """Returns one row for each status letter, with its outcome, verdict and kind. The pages and the published schema
    show the rows."""
    rows = {**LETTERS, ABSENT: ("absent", "absent", "absent")}
    names = ("code", "outcome", "verdict", "kind")
    return [dict(zip(names, (code, *map(str, row)))) for code, row in rows.items()]
