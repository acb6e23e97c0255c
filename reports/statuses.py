"""The one letter that stands for what became of a cell, and how it is shown.

A run's cells are one text, a letter each, so that a quarter of a million of them are a file of a
quarter of a megabyte that compresses to a few kilobytes and that any program can read.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final

from devices.cell import Outcome, Verdict
from reports.judgement import Tally
from reports.model import CellResult, problem_with

ABSENT: Final = " "
MISSING: Final = "n"
ERROR: Final = "E"


@dataclass(frozen=True, slots=True)
class Kind:
    """How a status is shown: its name, what it means, and its rank where several meet."""

    name: str
    label: str
    meaning: str


KINDS: Final[tuple[Kind, ...]] = (
    Kind("crash", "crash", "the process died in this cell, and the manifest does not expect it"),
    Kind("hang", "hang", "the cell did not return in its time, unexpectedly"),
    Kind("fail", "fail", "at least one check did not hold, and no block of the manifest expects it"),
    Kind("error", "error", "the check itself could not be made, or none was executed"),
    Kind("unsupported", "unsupported", "the device raised NotImplementedError"),
    Kind("improvement", "improvement", "did better than the manifest expects: to be recorded"),
    Kind("flaky", "flaky", "declared flaky: passes and fails from run to run"),
    Kind("expected", "expected failure", "failed, crashed or hung as a block of the manifest says; "
         "it still counts against the device"),
    Kind("ambiguous", "ambiguous reference", "the references differ and the device equals neither: "
         "in no numerator and no denominator"),
    Kind("not-run", "not run", "planned, and without an outcome"),
    Kind("pass", "pass", "every executed check held, and at least one was executed"),
    Kind("undeclared", "unsupported by declaration", "nothing was tried: the descriptor does not "
         "declare what the clause requires, or the machine has too few devices for the case"),
    Kind("absent", "not planned", "this run has no such cell"),
)  # fmt: skip
"""Every kind, the most urgent first: a square that stands for several cells shows the first."""

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
        if code == ABSENT:
            continue
        total.planned += count
        for name in _fields(code):
            setattr(total, name, getattr(total, name) + count)
    return total


def _fields(code: str) -> list[str]:
    """The fields of a Tally that a cell of this letter adds to."""
    by_outcome = {
        _O.PASS: "passed", _O.AMBIGUOUS: "ambiguous", _O.UNSUPPORTED: "unsupported",
        _O.CRASH: "crashes", _O.HANG: "hangs", _O.ERROR: "errors", _O.NOT_RUN: "missing",
    }  # fmt: skip
    by_verdict = {
        _V.EXPECTED: "expected", _V.REGRESSION: "regressions",
        _V.IMPROVEMENT: "improvements", _V.FLAKY: "flaky",
    }  # fmt: skip
    if KIND_OF[code] == "undeclared":
        return ["declared"]
    names = (by_outcome.get(OUTCOME_OF[code]), by_verdict.get(VERDICT_OF[code]))
    return [name for name in names if name is not None]


def table() -> list[dict[str, Any]]:
    """Every letter with its outcome, verdict and kind, for the pages and the published schema."""
    rows: list[dict[str, Any]] = [
        {"code": code, "outcome": pair[0].value, "verdict": pair[1].value, "kind": kind}
        for pair, (code, kind) in _CODES.items()
    ]
    return [*rows, {"code": ABSENT, "outcome": "absent", "verdict": "absent", "kind": "absent"}]
