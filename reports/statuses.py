"""The letter that represents the result of a cell, and how it is shown.

A run's cells are one text, a letter each, so that a quarter of a million of them are a file of a
quarter of a megabyte that compresses to a few kilobytes and that any program can read.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from devices.cell import Outcome, Verdict
from reports.gate import Tally
from reports.model import CellResult, problem_with

ABSENT: Final = " "
MISSING: Final = "n"
ERROR: Final = "E"


@dataclass(frozen=True, slots=True)
class Status:
    """How a status is shown: its name, what it means, and its rank where several meet."""

    name: str
    label: str
    meaning: str


KINDS: Final[tuple[Status, ...]] = (
    Status("crash", "crash", "the process died in this cell, and the manifest does not expect it"),
    Status("hang", "hang", "the cell did not return within its time limit, and the manifest does not expect it"),
    Status("fail", "fail", "at least one check failed, and no block of the manifest expects it"),
    Status("error", "error", "the check could not be made, or no check was executed"),
    Status("unsupported", "unsupported", "the device raised NotImplementedError"),
    Status("improvement", "improvement", "the result is better than the manifest expects; update the manifest"),
    Status("flaky", "flaky", "declared flaky: sometimes passes and sometimes fails"),
    Status("expected", "expected failure", "failed, crashed or hung as a block of the manifest says; "
         "it still counts against the device"),
    Status("ambiguous", "ambiguous reference", "the references differ and the device equals neither: "
         "in no numerator and no denominator"),
    Status("not-run", "not run", "planned, but has no outcome"),
    Status("pass", "pass", "every executed check held, and at least one was executed"),
    Status("undeclared", "unsupported by declaration", "nothing was tried: the descriptor does not "
         "declare what the clause requires, or the machine has too few devices for the case"),
    Status("absent", "not planned", "the run does not have this cell"),
)  # fmt: skip
"""Every kind, the most urgent first: a square that represents several cells shows the first."""

_O, _V = Outcome, Verdict
_CODES: Final[Mapping[tuple[Outcome, Verdict], tuple[str, str]]] = {
    (_O.PASS, _V.OK): (".", "pass"),
    (_O.PASS, _V.IMPROVEMENT): ("P", "improvement"),
    (_O.PASS, _V.FLAKY): ("p", "flaky"),
    (_O.FAIL, _V.REGRESSION): ("F", "fail"),
    (_O.FAIL, _V.EXPECTED): ("f", "expected"),
    (_O.FAIL, _V.IMPROVEMENT): ("G", "improvement"),
    (_O.FAIL, _V.FLAKY): ("g", "flaky"),
    (_O.ERROR, _V.REGRESSION): (ERROR, "error"),
    (_O.UNSUPPORTED, _V.OK): ("u", "undeclared"),
    (_O.UNSUPPORTED, _V.EXPECTED): ("v", "expected"),
    (_O.UNSUPPORTED, _V.REGRESSION): ("U", "unsupported"),
    (_O.UNSUPPORTED, _V.IMPROVEMENT): ("V", "improvement"),
    (_O.AMBIGUOUS, _V.OK): ("a", "ambiguous"),
    (_O.AMBIGUOUS, _V.REGRESSION): ("A", "ambiguous"),
    (_O.CRASH, _V.REGRESSION): ("C", "crash"),
    (_O.CRASH, _V.EXPECTED): ("c", "expected"),
    (_O.CRASH, _V.IMPROVEMENT): ("D", "improvement"),
    (_O.HANG, _V.REGRESSION): ("H", "hang"),
    (_O.HANG, _V.EXPECTED): ("h", "expected"),
    (_O.HANG, _V.IMPROVEMENT): ("I", "improvement"),
    (_O.NOT_RUN, _V.MISSING): (MISSING, "not-run"),
}

PASS: Final = "."
KIND_OF: Final[Mapping[str, str]] = MappingProxyType(dict([*_CODES.values(), (ABSENT, "absent")]))
OUTCOME_OF: Final[Mapping[str, Outcome]] = MappingProxyType(
    {code: pair[0] for pair, (code, _) in _CODES.items()}
)
VERDICT_OF: Final[Mapping[str, Verdict]] = MappingProxyType(
    {code: pair[1] for pair, (code, _) in _CODES.items()}
)


def code_of(result: CellResult | None) -> str:
    """The letter of a result. One that contradicts itself is an error, as in the JUnit file."""
    if result is None:
        return MISSING
    if problem_with(result) is not None:
        return ERROR
    return _CODES[result.outcome, result.verdict][0]


def tally(counts: Mapping[str, int]) -> Tally:
    """The counts of letters as the gate counts cells."""
    total = Tally()
    for code, count in counts.items():
        if code != ABSENT:
            total.count(OUTCOME_OF[code], VERDICT_OF[code], count)
    return total


def table() -> list[dict[str, str]]:
    """Every letter with its outcome, verdict and kind, for the pages and the published schema."""
    rows = [
        {"code": code, "outcome": pair[0].value, "verdict": pair[1].value, "kind": kind}
        for pair, (code, kind) in _CODES.items()
    ]
    return [*rows, {"code": ABSENT, "outcome": "absent", "verdict": "absent", "kind": "absent"}]
