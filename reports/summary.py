"""Texts about a run for people: the end of the terminal output, the summary of a CI job, and annotations on GitHub."""

from __future__ import annotations

import shlex
import textwrap
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from pathlib import Path

from devices.cell import Outcome, Verdict, list_bugs
from devices.files import explained
from reports.advice import sentence, todo, use_of
from reports.causes import Cause
from reports.failures import MARKDOWN_FILE, causes_in, headline_of, label
from reports.gate import (
    ExitCode,
    GateResult,
    Tally,
    levels_of,
    manifest_name,
    number,
    partial_run,
)
from reports.junit import headline, one_line
from reports.markdown import cell_code, md
from reports.markdown import table as md_table
from reports.model import PLANNED, CellResult, Exclusion, Run, RunError

# Cells of a cause that are named below its example, and the longest line about a cause.
_NAMED = 6
_WIDEST = 300

# The number of causes that are shown with -v, and the number of lines of the end of a run without it.
_CAUSES = 20
_LINES = 20

# More clauses than this are shown by family.
_MANY = 25
_WRAPPER = textwrap.TextWrapper(
    100, subsequent_indent="    ", break_long_words=False, break_on_hyphens=False
)

# GitHub shows at most ten annotations of a step.
_ANNOTATIONS = 10

# Counts of a ``Tally`` as columns. Columns that are not in _ALWAYS are left out if all their counts are zero.
_COLUMNS = (
    "expected", "regressions", "improvements", "not_gating", "flaky", "ambiguous", "unsupported", "declared",
    "blocked", "crashes", "hangs", "errors", "missing",
)  # fmt: skip
_LABELS = {
    "declared": "by declaration",
    "missing": "no outcome",
    "not_gating": "not gating",
    "judged": "cells",
}
_ALWAYS = ("expected", "regressions", "improvements")

# The smallest level of conformance is a part of plan core: on plan quick no level can be reached.
_WITHOUT_LEVELS = ("quick",)

_STYLES = {"good": "32", "bad": "31", "note": "33", "bold": "1"}

Style = Callable[[str, str], str]


# -- the end of a run


def summarise(
    judged: GateResult, *, limit: int | None = None, styled: bool = False, verbosity: int = 0
) -> str:
    """Returns the text at the end of a run: the verdict, then the causes of unexpected results, gating causes first.

    ``verbosity`` is pytest's. Below 0, the text is the verdict on one line. With 0, the text has about 20 lines. Above
    0, the text has at most ``limit`` causes, the table by clause, the levels, the clauses that were not checked, and
    notes. ``styled`` adds ANSI colours.
    """

    def style(text: str, name: str) -> str:
        return f"\x1b[{_STYLES[name]}m{text}\x1b[0m" if styled else text

    run = judged.run
    verdict = style(verdict_line(judged), "good" if judged.green else "bad")
    if verbosity < 0:
        return verdict if judged.green else f"{verdict}; {_report(run)}"
    causes = causes_in(judged)
    head = [verdict, style(title(run), "bold"), *_selected(judged)]
    head += [style(f"problem: {one_line(each)}", "bad") for each in judged.obstacles[1:]]
    tail = [*_next(judged), *(f"note: {one_line(note)}" for note in judged.notes)]
    if verbosity > 0:
        shown = _in_full(run, causes, _CAUSES if limit is None else limit, style)
        tail += _details(judged, style)
        return "\n".join([*head, *shown, *tail, _report(run)])
    room = _LINES - len(head) - len(tail) - 1
    shown = _in_short(run, causes, room, style)
    return "\n".join([*head, *shown, *tail, f"{_report(run)} (-v shows more)"])


def _report(run: Run) -> str:
    """Returns a line with the path of the file that lists all causes; if there is no such file, with the path of the
    run's folder."""
    report = run.folder / MARKDOWN_FILE
    return f"report: {_from_here(report if report.is_file() else run.folder)}"


def verdict_line(judged: GateResult) -> str:
    """Returns one line with the exit code and its name, the reason for the code, and the number of cells that pass."""
    code = judged.exit_code
    parts = [_cut(one_line(each)) for each in judged.obstacles[:1]]
    if code not in (ExitCode.INFRASTRUCTURE, ExitCode.NOTHING_SELECTED):
        counts = _counted(judged)
        parts += [*counts, *judged.found] if judged.green else [*judged.found, *counts]
    return f"{code.label} (exit {code.value}): {'; '.join(parts)}"


def _counted(judged: GateResult) -> list[str]:
    """Returns phrases with the numbers of passes, of expected failures and of cells that are not judged. Phrases for a
    number of zero are left out."""
    counts = judged.counts
    parts = [f"{counts.passed:,} of {number(counts.judged, 'cell passes', 'cells pass')}"]
    if counts.expected:
        parts.append(f"{number(counts.expected, 'fails', 'fail')} as expected")
    if counts.ambiguous:
        parts.append(
            number(
                counts.ambiguous, "more has no agreed reference", "more have no agreed reference"
            )
        )
    if counts.declared:
        parts.append(
            number(
                counts.declared,
                "more is unsupported by declaration",
                "more are unsupported by declaration",
            )
        )
    return parts


def title(run: Run) -> str:
    origin = run.provenance
    name = f" ({one_line(origin.device_name)})" if origin.device_name else ""
    return f"device {origin.device}{name}, plan {origin.plan}, torch {origin.torch}"


def work_done(run: Run) -> str:
    """Returns a text with the numbers of executed checks, and of the samples, op-dtype pairs and layouts on which they
    were executed."""
    checks = sum(result.checks for result in run.results.values())
    inputs: dict[tuple[str, ...], int] = {}
    layouts: set[str] = set()
    for key, result in run.results.items():
        inputs[key[1:]] = max(inputs.get(key[1:], 0), result.samples)
        layouts.update(result.ran_layouts)
    return (
        f"{number(checks, 'check')} on {number(sum(inputs.values()), 'sample')} of "
        f"{number(len(inputs), 'op-dtype pair')}, in {number(len(layouts), 'layout')}"
    )


def _selected(judged: GateResult) -> list[str]:
    """Returns a list with one line about the selection if a run can be judged but did not cover the whole plan;
    otherwise an empty list."""
    origin = judged.run.provenance
    if judged.obstacles:
        return []
    if origin.partial:
        return [f"{partial_run(judged.run)}; `conform gate` accepts only whole runs"]
    if origin.is_shard:
        return [f"shard {origin.shard}: join all shards with `conform merge`"]
    return []


def _next(judged: GateResult) -> list[str]:
    """Returns the lines of a summary that say how to accept the unexpected results of a run for now."""
    if judged.exit_code is not ExitCode.REGRESSION or judged.must_pass is not None:
        return []  # a promise is kept by fixing the device, not by the manifest
    folder = shlex.quote(str(_from_here(judged.run.folder)))
    regressed = any(result.verdict is Verdict.REGRESSION for result in judged.new)
    improved = any(result.verdict is Verdict.IMPROVEMENT for result in judged.new)
    lines = []
    if improved:
        name = manifest_name(judged.run) or "the manifest"
        lines.append(
            f"To remove passing cells from {name}: conform manifest update {folder} (or accept them with "
            "conform gate --allow-improvements)"
        )
    if regressed:
        lines.append(
            "To accept the regressions for now: repeat the run with --results=RUN2, a new folder; then "
            f"conform manifest update --triage {folder} RUN2"
        )
    return lines


# -- causes on a terminal


def _in_full(run: Run, causes: Sequence[Cause], limit: int, style: Style) -> list[str]:
    """Returns the lines of the first ``limit`` causes, with their minimised examples and the names of more cells."""
    lines = [line for cause in causes[:limit] for line in _cause_lines(run, cause, style, 1)]
    return [*lines, *_rest(run, causes[limit:])]


def _in_short(run: Run, causes: Sequence[Cause], room: int, style: Style) -> list[str]:
    """Returns the causes in at most ``room`` lines. ``causes`` is sorted, with gating causes first. If all causes fit,
    they are shown with the failures of their examples. Otherwise the failures are left out, and as many causes as fit
    are shown, at least one."""
    whole = [_cause_lines(run, cause, style) for cause in causes]
    if sum(map(len, whole)) <= room:
        return [line for lines in whole for line in lines]
    shown: list[str] = []
    for place, cause in enumerate(causes):
        lines = _cause_lines(run, cause, style, -1)
        if shown and len(shown) + len(lines) + 2 > room:  # a line for each kind of the rest
            return [*shown, *_rest(run, causes[place:])]
        shown += lines
    return shown


def _cause_lines(run: Run, cause: Cause, style: Style, detail: int = 0) -> list[str]:
    """Returns the lines of a cause: its sentence, the command of its repro script, and advice if there is any. A
    ``detail`` of 0 or more adds the failure of the example. A ``detail`` above 0 also adds the number of models
    that call the op, the minimised call and the names of more cells."""
    bad = "bad" if cause.gates and cause.verdict is Verdict.REGRESSION else "note"
    shown, count = cause.example, number(len(cause.results), "cell")
    lines = [_cut(f"{style(label(cause), bad)}: {count}: {one_line(sentence(cause))}")]
    if detail >= 0:
        lines.append(_cut(f"    {shown.key}: {shown.outcome}: {one_line(headline(shown))}"))
        if shown.seen:
            lines.append(_cut(f"    seen before: {one_line(list_bugs(shown.seen))}"))
    if detail > 0 and (use := use_of(cause)):
        lines.append(_cut(f"    {one_line(use)}"))
    if detail > 0 and shown.example is not None:
        lines += [
            " " * (4 + len(line) - len(line.lstrip(" "))) + one_line(line)  # keeps its indentation
            for line in shown.example.lines()
        ]
    if (command := repro_command(run.folder, shown)) is not None:
        lines.append(f"    {command}")
    if detail > 0 and len(cause.results) > 1:
        lines.append(f"    {_alike(cause)}")
    if advice := todo(cause, run.parsed.clauses):
        lines.append(_cut(f"    to do: {one_line(advice)}"))
    return lines


def repro_command(folder: Path, result: CellResult) -> str | None:
    """Returns the command that reproduces a failure when it is run in the current folder; None if the result has no
    repro script."""
    if result.repro is None:
        return None
    return f"python {shlex.quote(str(_from_here(folder / result.repro)))}"


def _from_here(path: Path) -> Path:
    """Returns a path relative to the current folder if the path lies below that folder; otherwise the unchanged
    path."""
    here = Path.cwd()
    return path.relative_to(here) if path.is_relative_to(here) else path


def _cut(line: str) -> str:
    return line if len(line) <= _WIDEST else f"{line[: _WIDEST - 1]}…"


def _alike(cause: Cause) -> str:
    """Returns a text with the number of a cause's cells other than its example, and some of their names."""
    others = [str(r.key) for r in cause.results if r is not cause.example]
    names = [*others[:_NAMED], *(["…"] if len(others) > _NAMED else [])]
    more = number(len(others), "more cell", "more cells")
    return one_line(f"and {more}: {', '.join(names)}")


def _rest(run: Run, causes: Sequence[Cause]) -> list[str]:
    """Returns lines about the causes that are not shown: their number (first the number of gating causes, then the
    number of all other causes) and the file that lists them."""
    report = run.folder / MARKDOWN_FILE
    where = _from_here(report if report.is_file() else run.folder)
    lines = []
    for gates, which in ((True, ""), (False, " that do not affect the gate")):
        if rest := [cause for cause in causes if cause.gates is gates]:
            cells = number(sum(len(cause.results) for cause in rest), "cell")
            lines.append(f"and {number(len(rest), 'more cause')} ({cells}){which} in {where}")
    return lines


# -- more about a run


def _details(judged: GateResult, style: Style) -> Iterator[str]:
    """Yields the lines that ``-v`` adds: the table by clause, the clauses that were not checked, notes, and the
    levels."""
    run = judged.run
    header, rows = table(judged)
    first, *widths = [max(map(len, column)) for column in zip(header, *rows)]
    yield work_done(run)
    for row in (header, *rows):
        line = "  ".join([row[0].ljust(first), *map(str.rjust, row[1:], widths)]).rstrip()
        yield style(line, "bold") if row is header or row is rows[-1] else line
    for note in (*unchecked(run), *noted(run)):
        yield _WRAPPER.fill(note)
    if not run.provenance.partial and run.provenance.plan not in _WITHOUT_LEVELS:
        yield from map(str, levels_of(run))


def table(judged: GateResult) -> tuple[list[str], list[list[str]]]:
    """Returns the header and the rows of the table by clause, or by clause family if the run has many clauses. The last
    row is the sum."""
    clauses = judged.run.parsed.clauses
    named: dict[str, list[Tally]] = {}
    by_family = len(judged.tallies) > _MANY
    for clause, counts in judged.tallies.items():
        known = clauses[clause]
        name = known.family if by_family else clause + (" *" if known.provisional else "")
        named.setdefault(name, []).append(counts)
    rows = {name: Tally.sum(counts) for name, counts in named.items()} | {"all": judged.counts}
    columns = [name for name in _COLUMNS if name in _ALWAYS or getattr(judged.counts, name)]
    header = ["clause family" if by_family else "clause", "pass", "cells"]
    header += [_LABELS.get(name, name) for name in columns]
    shown = ("passed", "judged", *columns)
    body = [
        [name, *(f"{getattr(counts, column):,}" for column in shown)]
        for name, counts in rows.items()
    ]
    return header, body


def unchecked(run: Run) -> list[str]:
    """Returns remarks on the clauses and ops that the run did not check."""
    clauses = run.parsed.clauses.values()
    having = {clause for clause, ops in run.parsed.document.cells if any(ops.values())}
    planned = [clause.id for clause in clauses if clause.status == PLANNED]
    idle = [clause.id for clause in clauses if clause.status != PLANNED and clause.id not in having]
    notes = []
    if planned:
        notes.append(
            f"not checked by the suite yet ({number(len(planned), 'clause')}): {_names(planned)}"
        )
    if idle:
        notes.append(f"clauses that have no cells on this device or in this plan: {_names(idle)}")
    left_out: dict[str, list[str]] = {}
    for item in _exclusions(run):
        ops = number(len(item.ops), "op") if item.ops else "every op"
        left_out.setdefault(item.reason, []).append(f"{item.clause} {ops}")
    notes += [f"skipped: {', '.join(where)}. {reason}" for reason, where in left_out.items()]
    if any(clause.provisional and clause.id in having for clause in clauses):
        notes.append("* provisional clause: its failures are reported, but do not gate yet")
    return notes


def _exclusions(run: Run) -> Iterable[Exclusion]:
    """Returns the exclusions of the plan; for a partial run only the exclusions that concern its clauses and ops."""
    every = run.parsed.document.exclusions
    if not run.provenance.partial:
        return every
    ops = {cell.unit for cell in run.parsed.selected}
    clauses = {cell.clause for cell in run.parsed.selected}
    return [
        Exclusion(item.clause, its, item.reason)
        for item in every
        if (its := [op for op in item.ops if op in ops]) or not item.ops
        if any(fnmatchcase(clause, item.clause) for clause in clauses)
    ]


def noted(run: Run) -> list[str]:
    """Returns one remark for each clause in which cells passed with a note: the number of these cells and the first
    note."""
    found: dict[str, list[CellResult]] = {}
    for result in run.results.values():
        if result.outcome is Outcome.PASS and result.message:
            found.setdefault(result.key.clause, []).append(result)
    return [
        f"{clause}: {number(len(results), 'cell')} passed with a note, such as "
        f"{results[0].key.name}: {one_line(results[0].message)}"
        for clause, results in found.items()
    ]


def _names(clauses: Iterable[str]) -> str:
    """Returns clause ids as one text, grouped by family: ``streams: wait, query; graphs: pool``."""
    families: dict[str, list[str]] = {}
    for clause in clauses:
        family, _, name = clause.partition(".")
        families.setdefault(family, []).append(name)
    return "; ".join(f"{family}: {', '.join(names)}" for family, names in families.items())


# -- a CI job


def markdown(judged: GateResult, *, limit: int = 20) -> str:
    """Returns the summary for a CI job, as GitHub-flavoured markdown. At most ``limit`` causes are shown."""
    run, code = judged.run, judged.exit_code
    lines = [f"## torch-conformance: {code.label} (exit {code.value})", "", md(title(run)), ""]
    lines += [md(verdict_line(judged)), ""]
    if said := (*judged.obstacles[1:], *_selected(judged), *_next(judged), *judged.notes):
        lines += [*(f"- {md(one)}" for one in said), ""]
    if causes := causes_in(judged):
        lines += [
            f"### {md(headline_of(judged, causes))}",
            "",
            *_md_causes(run, causes[:limit]),
            "",
        ]
        lines += [f"{md(line)}\n" for line in _rest(run, causes[limit:])]
    header, rows = table(judged)
    lines += [*md_table(header, (list(map(md, row)) for row in rows), 1), ""]
    lines += [f"{md(note)}\n" for note in (*unchecked(run), *noted(run))]
    return "\n".join(lines).rstrip("\n") + "\n"


def _md_causes(run: Run, causes: Iterable[Cause]) -> list[str]:
    header = ["verdict", "cause", "to do", "example", "repro", "cells"]
    rows = []
    for cause in causes:
        shown = cause.example
        said = sentence(cause, cell_code), todo(cause, run.parsed.clauses, cell_code)
        example = f"{cell_code(str(shown.key))}: {md(headline(shown))}"
        command = cell_code(repro_command(run.folder, shown) or "")
        rows.append([md(label(cause)), *said, example, command, f"{len(cause.results):,}"])
    return md_table(header, rows, 5)


def workflow_commands(judged: GateResult) -> tuple[str, ...]:
    """Returns at most ten GitHub workflow commands: first the reasons why the run cannot be judged, then the causes
    that gate."""
    if judged.green:
        return ()
    wanted = [(f"conformance: {judged.exit_code.label}", text) for text in judged.problems]
    if judged.exit_code is not ExitCode.INFRASTRUCTURE:
        wanted += [_annotation(cause) for cause in causes_in(judged) if cause.gates]
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
    """Reports a judged run to GitHub: appends the summary to ``$GITHUB_STEP_SUMMARY`` if that variable is set, and
    returns the lines to print.

    The lines are annotations; outside GitHub Actions the result is empty. Raises RunError if the summary cannot be
    written.
    """
    if path := environ.get("GITHUB_STEP_SUMMARY"):
        with (
            explained(RunError, f"$GITHUB_STEP_SUMMARY: {path}", "cannot be written"),
            Path(path).open("a", encoding="utf-8") as stream,
        ):
            stream.write(markdown(judged) + "\n")
    return workflow_commands(judged) if environ.get("GITHUB_ACTIONS") == "true" else ()
