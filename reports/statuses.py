"""The letters that stand for the results of cells, and how they are shown: ``statuses.toml``.

The site stores the results of a run as one text with a letter per cell. Any program can read it, and a quarter of a
million cells compress to a few kilobytes.
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
    """How a status is shown: its name, label and meaning, its shape (an SVG path) and its colours."""

    name: str
    label: str
    meaning: str
    path: str = ""
    light: str = ""
    dark: str = ""


class Letter(NamedTuple):
    """The result that a letter stands for, and the status by which it is shown."""

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
    """The letter of a result. A result that contradicts itself is an error, as in the JUnit files."""
    if result is None:
        return MISSING
    return _CODES[result.outcome, result.verdict] if problem_with(result) is None else ERROR


def tally(counts: Mapping[str, int]) -> Tally:
    """Counts of letters, converted to counts of cells as the gate makes them."""
    total = Tally()
    for code, count in counts.items():
        if code != ABSENT:
            total.count(LETTERS[code].outcome, LETTERS[code].verdict, count)
    return total


def table() -> list[dict[str, str]]:
    """Every letter with its outcome, verdict and kind, for the pages and the published schema."""
    rows = {**LETTERS, ABSENT: ("absent", "absent", "absent")}
    names = ("code", "outcome", "verdict", "kind")
    return [dict(zip(names, (code, *map(str, row)))) for code, row in rows.items()]
