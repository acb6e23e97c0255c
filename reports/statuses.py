"""The letter that represents the result of a cell, and how it is shown: ``statuses.toml``.

A run's cells are one text, a letter each, so that a quarter of a million of them are a file of a
quarter of a megabyte that compresses to a few kilobytes and that any program can read.
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
    """How a status is shown: its name, what it means, its shape (an SVG path) and colours."""

    name: str
    label: str
    meaning: str
    path: str = ""
    light: str = ""
    dark: str = ""


class Letter(NamedTuple):
    """What a letter represents."""

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
    """The letter of a result. One that contradicts itself is an error, as in the JUnit file."""
    if result is None:
        return MISSING
    return _CODES[result.outcome, result.verdict] if problem_with(result) is None else ERROR


def tally(counts: Mapping[str, int]) -> Tally:
    """The counts of letters as the gate counts cells."""
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
