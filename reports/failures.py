"""Writes the unexpected results of a run by cause: ``failures.json`` for programs and ``failures.md`` for people.

Both files are made from the record of the run. No command reads them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

import msgspec

from devices.cell import Outcome, Verdict
from reports.advice import sentence, todo, use_of
from reports.causes import Cause, causes_of
from reports.gate import GateResult, number
from reports.junit import clean, one_line
from reports.markdown import block, code, md
from reports.model import CellResult, Example, Run, write_file
from reports.plain import without_boilerplate

JSON_FILE: Final = "failures.json"
MARKDOWN_FILE: Final = "failures.md"
_FORMAT: Final = 2


def causes_in(judged: GateResult) -> tuple[Cause, ...]:
    """Returns the causes of all unexpected results that the gate found. Every report of a run shows these causes."""
    if judged.must_pass is None:
        return causes_of(judged.run, (*judged.new, *judged.provisional))
    # Listed and other cells may fail for one reason; the gate counts only the listed ones.
    gating = (replace(each, gates=True) for each in causes_of(judged.run, judged.new))
    aside = causes_of(judged.run, judged.provisional)
    return (*gating, *(replace(each, gates=False, unlisted=True) for each in aside))


class _CauseExample(msgspec.Struct):
    cell: str
    outcome: Outcome
    message: str
    repro: str | None
    minimised: Example | None
    seen: list[str]


class _CauseDocument(msgspec.Struct):
    verdict: Verdict
    gates: bool
    sentence: str
    todo: str
    rule: str
    count: int
    checks: int
    wholly: int
    clauses: list[str]
    used: str
    example: _CauseExample
    cells: list[str]


class FailuresDocument(msgspec.Struct):
    """The document ``failures.json``: the causes, with gating causes first. Each cause has an example and the names of
    all its cells.

    ``regressions`` and ``improvements`` are the numbers of unexpected results that the gate counts, ``not_gating`` is
    the number of unexpected results of provisional clauses, and ``cells`` is the number of all unexpected results.
    ``count`` is the number of cells of a cause; ``wholly`` is the number of those that fail for no other reason.
    ``used`` says how many public models call the cause's most used op. ``todo`` and ``used`` may be empty.
    """

    format: int
    regressions: int
    improvements: int
    not_gating: int
    cells: int
    causes: list[_CauseDocument]


def write_failures(judged: GateResult) -> None:
    """Writes ``failures.json`` and ``failures.md`` into the run's folder. Raises RunError if a file cannot be
    written."""
    causes = causes_in(judged)
    data = msgspec.json.format(msgspec.json.encode(document(judged, causes)), indent=1)
    write_file(judged.run.folder / JSON_FILE, data + b"\n")
    write_file(judged.run.folder / MARKDOWN_FILE, markdown_of(judged, causes).encode())


def document(judged: GateResult, causes: Sequence[Cause]) -> FailuresDocument:
    """Returns the causes in the form of ``failures.json``."""
    regressions = sum(result.verdict is Verdict.REGRESSION for result in judged.new)
    aside = len(judged.provisional)
    return FailuresDocument(
        _FORMAT,
        regressions,
        len(judged.new) - regressions,
        aside,
        len(judged.new) + aside,
        [_cause_document(judged.run, cause) for cause in causes],
    )


def _cause_document(run: Run, cause: Cause) -> _CauseDocument:
    shown = cause.example
    return _CauseDocument(
        verdict=cause.verdict,
        gates=cause.gates,
        sentence=one_line(sentence(cause)),
        todo=one_line(todo(cause, run.parsed.clauses)),
        rule=cause.key.rule,
        count=len(cause.results),
        checks=cause.checks,
        wholly=len(cause.results) - len(cause.partly),
        clauses=_clauses(cause),
        used=one_line(use_of(cause)),
        example=_CauseExample(
            str(shown.key),
            shown.outcome,
            clean(shown.message),
            shown.repro,
            shown.example,
            [clean(str(bug)) for bug in shown.seen],
        ),
        cells=[str(result.key) for result in cause.results],
    )


def _clauses(cause: Cause) -> list[str]:
    return list(dict.fromkeys(result.key.clause for result in cause.results))


# -- for people


def headline_of(judged: GateResult, causes: Sequence[Cause]) -> str:
    """Returns one line with the numbers of unexpected results of a run and the number of their causes."""
    if not causes:
        return "no unexpected results"
    return "; ".join((*judged.found, number(len(causes), "cause")))


def markdown_of(judged: GateResult, causes: Sequence[Cause]) -> str:
    """Returns the text of ``failures.md``."""
    line = headline_of(judged, causes)
    lines = [f"# {md(line[0].upper() + line[1:])}", ""]
    for place, cause in enumerate(causes, 1):
        lines += _section(place, cause, judged.run)
    return "\n".join(lines).rstrip("\n") + "\n"


def _section(place: int, cause: Cause, run: Run) -> list[str]:
    shown, count = cause.example, number(len(cause.results), "cell")
    lines = [f"## {place}. {label(cause)}: {count}: {sentence(cause, code)}", ""]
    clauses = ", ".join(map(code, _clauses(cause)))
    lines.append(f"- {number(cause.checks, 'failing check')}, in {clauses}")
    if partly := len(cause.partly):
        as_well = number(
            partly, "cell fails for another reason as well", "cells fail for another reason as well"
        )
        lines.append(f"- {as_well}")
    if advice := todo(cause, run.parsed.clauses, code):
        lines.append(f"- to do: {advice}")
    if shown.seen:
        lines.append(f"- seen before: {', '.join(code(str(bug)) for bug in shown.seen)}")
    if use := use_of(cause, code):
        lines.append(f"- {use}")
    lines.append(f"- example: {code(str(shown.key))}")
    if shown.repro is not None:
        lines.append(f"- to reproduce the failure, in this folder: {code(f'python {shown.repro}')}")
    lines += ["", *block(_example(shown)), "", "Cells:", ""]
    return [*lines, *block(str(result.key) for result in cause.results), ""]


def _example(shown: CellResult) -> list[str]:
    """Returns the lines that describe an example: its message without torch's boilerplate, then the minimised call."""
    lines = without_boilerplate(shown.message or shown.why or shown.outcome.value).splitlines()
    return lines + (shown.example.lines() if shown.example is not None else [])


def label(cause: Cause) -> str:
    """Returns the verdict of a cause, or ``not gating (provisional clause)`` for a cause that the gate does not
    count."""
    if cause.gates:
        return str(cause.verdict)
    return f"not gating ({'not on the must-pass list' if cause.unlisted else 'provisional clause'})"
