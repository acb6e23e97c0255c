"""What people read of a run: its failures by cause, the text of a terminal, markdown and annotations for CI."""

from __future__ import annotations

import re
import shlex
import textwrap
from collections.abc import Callable, Iterable, Mapping, Sequence
from fnmatch import fnmatchcase
from html import escape
from pathlib import Path
from typing import Final

import msgspec

from devices.cell import Outcome, Verdict, told
from devices.files import explained
from reports.advice import sentence, todo
from reports.causes import Cause, causes_of
from reports.gate import ExitCode, GateResult, Tally, levels_of, number
from reports.junit import clean, headline, one_line
from reports.model import (
    PLANNED,
    CellResult,
    Example,
    Exclusion,
    Run,
    RunError,
    case_name,
    write_file,
)

JSON_FILE, MARKDOWN_FILE = "failures.json", "failures.md"
_FORMAT: Final = 2

# Cells of a cause that are named under its example, causes that are shown, and the longest line about one.
_NAMED = 6
_SHOWN = 4
_WIDEST = 300

# More clauses than this are shown by family.
_MANY = 25
_WRAPPER = textwrap.TextWrapper(
    100, subsequent_indent="    ", break_long_words=False, break_on_hyphens=False
)

# GitHub shows at most ten annotations of a step.
_ANNOTATIONS = 10

# Counts of a ``Tally`` as columns; those that are not always shown are left out if all of them are zero.
_COLUMNS = (
    "expected", "regressions", "improvements", "flaky", "ambiguous", "unsupported", "declared",
    "blocked", "crashes", "hangs", "errors", "missing",
)  # fmt: skip
_LABELS = {"declared": "by declaration", "missing": "no outcome"}
_ALWAYS = ("expected", "regressions", "improvements", "ambiguous", "unsupported")

_STYLES = {"good": "32", "bad": "31", "note": "33", "bold": "1"}


# -- text without what could forge output, quoted for the shell, escaped for markdown


def repro_command(folder: Path, result: CellResult) -> str | None:
    """The command that shows the fault again, to be run from here."""
    if result.repro is None:
        return None
    return f"python {shlex.quote(str(folder / result.repro))}"


_MD = re.compile(r"([\\`*_\[\](){}|~#$!+@-])")


def md(text: str) -> str:
    """Text that markdown shows as it is, in a table too."""
    entities = escape(one_line(text), quote=False)
    # A colon between slashes would be made a link.
    return _MD.sub(r"\\\1", entities).replace("://", "&#58;//")


def md_table(header: Sequence[str], rows: Iterable[Sequence[str]], texts: int) -> list[str]:
    """A table in markdown: ``texts`` columns of text, the others of numbers."""
    rule = ["---"] * texts + ["---:"] * (len(header) - texts)
    escaped = [list(map(md, row)) for row in (header, *rows)]
    return [f"| {' | '.join(row)} |" for row in (escaped[0], rule, *escaped[1:])]


# -- failures.json for programs, failures.md for people: made from the record, and no evidence


class _CauseExample(msgspec.Struct):
    cell: str
    outcome: Outcome
    message: str
    repro: str | None
    minimised: Example | None
    seen: list[str]


class _CauseDocument(msgspec.Struct):
    verdict: Verdict
    sentence: str
    todo: str
    rule: str
    count: int
    checks: int
    wholly: int
    clauses: list[str]
    example: _CauseExample
    cells: list[str]


class FailuresDocument(msgspec.Struct):
    """``failures.json``: the causes, largest first, each with its example and the names of all its cells.
    ``wholly`` of the ``count`` cells fail for no other reason."""

    format: int
    cells: int
    causes: list[_CauseDocument]


def write_failures(result: GateResult) -> None:
    """Write both files into the run's folder. Raises RunError if they cannot be written."""
    run, red = result.run, (*result.new, *result.provisional)
    found = document(run, causes_of(run, red) if red else ())
    data = msgspec.json.format(msgspec.json.encode(found), indent=1)
    write_file(run.folder / JSON_FILE, data + b"\n")
    write_file(run.folder / MARKDOWN_FILE, markdown_of(found).encode())


def document(run: Run, causes: Sequence[Cause]) -> FailuresDocument:
    """The causes as ``failures.json`` holds them."""
    made = []
    for cause in causes:
        shown, cells = cause.example, [str(result.key) for result in cause.results]
        message = clean(shown.message)
        seen = [clean(str(bug)) for bug in shown.seen]
        example = _CauseExample(
            str(shown.key), shown.outcome, message, shown.repro, shown.example, seen
        )
        clauses = list(dict.fromkeys(result.key.clause for result in cause.results))
        told = one_line(sentence(cause)), one_line(todo(cause, run.parsed.clauses))
        wholly = len(cells) - len(cause.partly)
        made.append(
            _CauseDocument(
                *(cause.verdict, *told, cause.key.rule, len(cells), cause.checks, wholly),
                *(clauses, example, cells),
            )
        )
    return FailuresDocument(_FORMAT, sum(cause.count for cause in made), made)


def markdown_of(found: FailuresDocument) -> str:
    """The same for people (GitHub-flavoured)."""
    count = number(len(found.causes), "cause")
    lines = [f"# {number(found.cells, 'new failing cell')}, {count}", ""]
    for place, cause in enumerate(found.causes, 1):
        example = cause.example
        lines += [f"## {place}. {md(cause.sentence)} ({number(cause.count, 'cell')})", ""]
        lines += [
            f"- {cause.verdict}, {number(cause.checks, 'failing check')}, in {', '.join(map(md, cause.clauses))}"
        ]
        if cause.wholly < cause.count:
            lines += [
                f"- {number(cause.count - cause.wholly, 'cell')} of these fail for another reason too"
            ]
        lines += [f"- to do: {md(cause.todo)}"]
        lines += [f"- example: {md(example.cell)}: {md(example.message)}"]
        if example.seen:
            lines += [f"- seen before: {md(', '.join(example.seen))}"]
        if example.minimised is not None:
            lines += [f"- {md(line)}" for line in example.minimised.lines()]
        if example.repro is not None:
            lines.append(f"- `python {example.repro}` in this folder")
        lines += ["", ", ".join(map(md, cause.cells)), ""]
    return "\n".join(lines).rstrip("\n") + "\n"


def text_lines(
    run: Run,
    results: Sequence[CellResult],
    kind: str,
    limit: int,
    style: Callable[[str, str], str],
    verbose: bool = False,
) -> list[str]:
    """Failures for a terminal: the first causes, each with its repro command and what to do. ``verbose`` adds the
    minimised example and the names of more cells."""
    causes = causes_of(run, results) if results else ()
    lines: list[str] = []
    for cause in causes[:limit]:
        bad = "bad" if cause.verdict is Verdict.REGRESSION else "note"
        label = style(f"{kind} {cause.verdict}", bad)
        count = number(len(cause.results), "cell")
        lines.append(_cut(f"{label}: {count}: {one_line(sentence(cause))}"))
        result = cause.example
        lines.append(_cut(f"    {result.key}: {result.outcome}: {one_line(headline(result))}"))
        if result.seen:
            lines.append(_cut(f"    seen before: {one_line(told(result.seen))}"))
        if verbose and result.example is not None:
            lines += [
                " " * (4 + len(line) - len(line.lstrip(" ")))
                + one_line(line)  # its own indentation is kept
                for line in result.example.lines()
            ]
        if (command := repro_command(run.folder, result)) is not None:
            lines.append(f"    {command}")
        if verbose and len(cause.results) > 1:
            lines.append(f"    {alike(cause)}")
        lines.append(f"    to do: {one_line(todo(cause, run.parsed.clauses))}")
    if len(causes) > limit:
        lines.append(_rest(run, causes[limit:]))
    return lines


def _cut(line: str) -> str:
    return line if len(line) <= _WIDEST else f"{line[: _WIDEST - 1]}…"


def alike(cause: Cause) -> str:
    """How many more cells have a cause, and some of their names."""
    others = [str(r.key) for r in cause.results if r is not cause.example]
    names = [*others[:_NAMED], *(["…"] if len(others) > _NAMED else [])]
    more = number(len(others), "more cell", "more cells")
    return one_line(f"and {more}: {', '.join(names)}")


# -- the summary of a run


def summarise(
    judged: GateResult, *, limit: int | None = None, styled: bool = False, verbosity: int = 0
) -> str:
    """The end of a run as text: the verdict, then the causes of new failures with their repro commands and what to do.

    At most ``limit`` causes are shown. ``verbose`` adds the table by clause, levels, what was not checked, and notes.
    ``styled`` adds ANSI colours.
    """
    run, verbose = judged.run, verbosity > 0

    def style(text: str, name: str) -> str:
        return f"\x1b[{_STYLES[name]}m{text}\x1b[0m" if styled else text

    if verbosity < 0:
        return style(verdict_line(judged), "good" if judged.green else "bad")
    if limit is None:
        limit = 20 if verbose else _SHOWN
    lines = [
        style(verdict_line(judged), "good" if judged.green else "bad"),
        style(title(run), "bold"),
    ]
    lines += [style(f"problem: {one_line(problem)}", "bad") for problem in judged.problems]
    lines += text_lines(run, judged.new, "new", limit, style, verbose)
    limit = limit if verbose or not judged.new else 1
    lines += text_lines(run, judged.provisional, "provisional, not gating", limit, style, verbose)
    if any(result.verdict is Verdict.REGRESSION for result in judged.new):
        lines.append(
            f"to expect them until they are mended: conform manifest update --triage {shlex.quote(str(run.folder))} SECOND-RUN"
        )
    lines += [f"note: {one_line(note)}" for note in judged.notes]
    if verbose:
        header, rows = table(judged)
        first, *widths = [max(map(len, column)) for column in zip(header, *rows)]
        lines.append(work_done(run))
        for row in (header, *rows):
            line = "  ".join([row[0].ljust(first), *map(str.rjust, row[1:], widths)]).rstrip()
            lines.append(style(line, "bold") if row is header or row is rows[-1] else line)
        lines += [_WRAPPER.fill(note) for note in (*unchecked(run), *noted(run))]
    if (verbose or judged.green) and not run.provenance.partial:
        lines += [str(level) for level in levels_of(run)]
    return "\n".join(
        [*lines, f"report: {run.folder}" + ("" if verbose else " (-v shows the table by clause)")]
    )


def title(run: Run) -> str:
    origin = run.provenance
    name = f" ({one_line(origin.device_name)})" if origin.device_name else ""
    return f"device {origin.device}{name}, plan {origin.plan}, torch {origin.torch}"


def work_done(run: Run) -> str:
    """How much evidence there is: executed comparisons, on how many inputs, in how many layouts."""
    checks = sum(result.checks for result in run.results.values())
    inputs: dict[tuple[str, str], int] = {}
    layouts: set[str] = set()
    for key, result in run.results.items():
        inputs[key[1:]] = max(inputs.get(key[1:], 0), result.samples)
        layouts.update(result.ran_layouts)
    return (
        f"{number(checks, 'check')} on {number(sum(inputs.values()), 'sample')} of "
        f"{number(len(inputs), 'op-dtype pair')}, in {number(len(layouts), 'layout')}"
    )


def verdict_line(judged: GateResult) -> str:
    """Numerator and denominator, the expected failures, and the exit code with its name."""
    counts, code = judged.counts, judged.exit_code
    parts = [f"{counts.passed:,} of {number(counts.judged, 'cell')} pass"]
    if counts.ambiguous:
        parts.append(f"{counts.ambiguous:,} more have no agreed reference")
    if counts.declared:
        parts.append(f"{counts.declared:,} more are unsupported by declaration")
    parts.append(f"{counts.expected:,} fail as expected")
    found = number(counts.regressions, "regression"), number(counts.improvements, "improvement")
    parts.append(", ".join(found))
    if judged.provisional:
        parts[-1] += f" ({len(judged.provisional):,} of provisional clauses, which do not gate)"
    return f"{code.label} (exit {code.value}): " + "; ".join(parts)


def table(judged: GateResult) -> tuple[list[str], list[list[str]]]:
    """Header and rows, by clause, or by family where clauses are many; the last row is the sum."""
    clauses = judged.run.parsed.clauses
    named: dict[str, list[Tally]] = {}
    by_family = len(judged.tallies) > _MANY
    for clause, counts in judged.tallies.items():
        known = clauses[clause]
        name = known.family if by_family else clause + (" *" if known.provisional else "")
        named.setdefault(name, []).append(counts)
    rows = {name: Tally.sum(counts) for name, counts in named.items()} | {"all": judged.counts}
    columns = [name for name in _COLUMNS if name in _ALWAYS or getattr(judged.counts, name)]
    header = ["clause family" if by_family else "clause", "pass", "of"]
    header += [_LABELS.get(name, name) for name in columns]
    shown = ("passed", "judged", *columns)
    body = [
        [name, *(f"{getattr(counts, column):,}" for column in shown)]
        for name, counts in rows.items()
    ]
    return header, body


def unchecked(run: Run) -> list[str]:
    """Clauses of the contract that this run did not check."""
    clauses = run.parsed.clauses.values()
    having = {clause for clause, ops in run.parsed.document.cells if any(ops.values())}
    planned = [clause.id for clause in clauses if clause.status == PLANNED]
    idle = [clause.id for clause in clauses if clause.status != PLANNED and clause.id not in having]
    notes = []
    if planned:
        notes.append(f"not checked ({number(len(planned), 'planned clause')}): {_names(planned)}")
    if idle:
        notes.append(f"no cells on this device or plan: {_names(idle)}")
    left_out: dict[str, list[str]] = {}
    for item in _exclusions(run):
        ops = number(len(item.ops), "op") if item.ops else "every op"
        left_out.setdefault(item.reason, []).append(f"{item.clause} {ops}")
    notes += [f"skipped: {', '.join(where)}. {reason}" for reason, where in left_out.items()]
    if any(clause.provisional and clause.id in having for clause in clauses):
        notes.append("* provisional: reported, not gating")
    return notes


def _exclusions(run: Run) -> Iterable[Exclusion]:
    """The plan's exclusions; for a partial run only those of its clauses and ops."""
    every = run.parsed.document.exclusions
    if not run.provenance.partial:
        return every
    ops = {cell.op for cell in run.parsed.selected}
    clauses = {cell.clause for cell in run.parsed.selected}
    return [
        Exclusion(item.clause, its, item.reason)
        for item in every
        if (its := [op for op in item.ops if op in ops]) or not item.ops
        if any(fnmatchcase(clause, item.clause) for clause in clauses)
    ]


def noted(run: Run) -> list[str]:
    """What cells that passed report, by clause: the first of each is shown."""
    found: dict[str, list[CellResult]] = {}
    for result in run.results.values():
        if result.outcome is Outcome.PASS and result.message:
            found.setdefault(result.key.clause, []).append(result)
    return [
        f"{clause}: {number(len(results), 'cell')} passed with a note, such as "
        f"{case_name(results[0].key)}: {one_line(results[0].message)}"
        for clause, results in found.items()
    ]


def _names(clauses: Iterable[str]) -> str:
    """Clause ids with their family said once: ``streams: wait, query; graphs: pool``."""
    families: dict[str, list[str]] = {}
    for clause in clauses:
        family, _, name = clause.partition(".")
        families.setdefault(family, []).append(name)
    return "; ".join(f"{family}: {', '.join(names)}" for family, names in families.items())


def _rest(run: Run, causes: Sequence[Cause]) -> str:
    """How many causes are not shown, and where they are."""
    report = run.folder / MARKDOWN_FILE
    where = report if report.exists() else run.folder
    cells = sum(len(cause.results) for cause in causes)
    return f"and {number(len(causes), 'more cause')} ({number(cells, 'cell')}) in {where}"


def markdown(judged: GateResult, *, limit: int = 20) -> str:
    """The summary for a CI's page (GitHub-flavoured)."""
    run, code = judged.run, judged.exit_code
    lines = [f"## torch-conformance: {code.label} (exit {code.value})", "", md(title(run)), ""]
    lines += [md(verdict_line(judged)), ""]
    if judged.problems or judged.notes:
        said = (*judged.problems, *judged.notes)
        lines += [f"- {md(one)}" for one in said] + [""]
    lines += [*md_table(*table(judged), 1), ""]
    for heading, results in (("New", judged.new), ("Provisional, not gating", judged.provisional)):
        if results:
            lines += _md_failures(run, heading, results, limit)
    lines += [f"{md(note)}\n" for note in (*unchecked(run), *noted(run))]
    return "\n".join(lines).rstrip("\n") + "\n"


def _md_failures(run: Run, heading: str, results: Sequence[CellResult], limit: int) -> list[str]:
    causes = causes_of(run, results)
    header = ["verdict", "cause", "to do", "example", "repro", "cells"]
    rows = []
    for cause in causes[:limit]:
        shown = cause.example
        said = f"{shown.key}: {headline(shown)}"
        texts = (str(cause.verdict), sentence(cause), todo(cause, run.parsed.clauses), said)
        command = repro_command(run.folder, shown) or ""
        rows.append([*texts, command, f"{len(cause.results):,}"])
    lines = [f"### {heading}", "", *md_table(header, rows, 5), ""]
    if len(causes) > limit:
        lines += [md(_rest(run, causes[limit:])), ""]
    return lines


def workflow_commands(judged: GateResult) -> tuple[str, ...]:
    """GitHub workflow commands: the problems, then the causes of new failures, ten at most in all."""
    if judged.green:
        return ()
    wanted = [(f"conformance: {judged.exit_code.label}", text) for text in judged.problems]
    if judged.exit_code is not ExitCode.INFRASTRUCTURE:
        wanted += [_annotation(cause) for cause in causes_of(judged.run, judged.new)]
    shown = wanted if len(wanted) <= _ANNOTATIONS else wanted[: _ANNOTATIONS - 1]
    lines = [_command(name, text) for name, text in shown]
    if len(wanted) > len(shown):
        lines.append(_command("conformance", f"and {len(wanted) - len(shown):,} more"))
    return tuple(lines)


def _annotation(cause: Cause) -> tuple[str, str]:
    shown, count = cause.example, number(len(cause.results), "cell")
    title = f"{cause.verdict}: {count}: {sentence(cause)}"
    return title, f"{shown.key}: {shown.outcome}: {headline(shown)}"


# https://github.com/actions/toolkit, packages/core/src/command.ts: escapeData, escapeProperty.
_DATA = str.maketrans({"%": "%25", "\r": "%0D", "\n": "%0A"})
_PROPERTY = {**_DATA, **str.maketrans({":": "%3A", ",": "%2C"})}


def _command(name: str, text: str) -> str:
    return f"::error title={one_line(name).translate(_PROPERTY)}::{one_line(text).translate(_DATA)}"


def publish(judged: GateResult, environ: Mapping[str, str]) -> tuple[str, ...]:
    """Report to GitHub: append to ``$GITHUB_STEP_SUMMARY`` where it is set, return the lines to print.

    The lines are annotations; there are none outside GitHub Actions. Raises RunError if the summary
    cannot be written.
    """
    if path := environ.get("GITHUB_STEP_SUMMARY"):
        with (
            explained(RunError, f"$GITHUB_STEP_SUMMARY: {path}", "cannot be written"),
            Path(path).open("a", encoding="utf-8") as stream,
        ):
            stream.write(markdown(judged) + "\n")
    return workflow_commands(judged) if environ.get("GITHUB_ACTIONS") == "true" else ()
