"""What people read at the end of a run: text for a terminal, markdown and annotations for CI."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from fnmatch import fnmatchcase

from devices.cell import Outcome
from reports.failures import MARKDOWN_FILE, groups_of, text_lines
from reports.groups import Group
from reports.judgement import ExitCode, Judgement, Tally, number
from reports.junit import headline
from reports.levels import levels_of
from reports.model import CellResult, Run
from reports.plan import PLANNED, Exclusion, case_name
from reports.text import md, one_line, repro_command, table_row

# More clauses than this are shown by family.
_MANY = 25
_WIDTH = 100

# GitHub shows at most ten annotations of a step.
_ANNOTATIONS = 10

_COLUMNS = (
    ("expected", "expected"),
    ("regressions", "regressions"),
    ("improvements", "improvements"),
    ("flaky", "flaky"),
    ("ambiguous", "ambiguous"),
    ("unsupported", "unsupported"),
    ("by declaration", "declared"),
    ("crashes", "crashes"),
    ("hangs", "hangs"),
    ("errors", "errors"),
    ("no outcome", "missing"),
)
_ALWAYS = ("expected", "regressions", "improvements", "ambiguous", "unsupported")

_STYLES = {"good": "32", "bad": "31", "note": "33", "bold": "1"}


def text_summary(run: Run, judgement: Judgement, *, limit: int = 20, styled: bool = False) -> str:
    """The summary for a terminal, without a final newline; ``styled`` adds ANSI colours."""

    def style(text: str, name: str) -> str:
        return f"\x1b[{_STYLES[name]}m{text}\x1b[0m" if styled else text

    header, rows = table(run, judgement)
    cells = [header, *rows]
    widths = [max(len(row[column]) for row in cells) for column in range(len(header))]
    lines = [style(title(run), "bold"), work_done(run)]
    for index, row in enumerate(cells):
        aligned = [row[0].ljust(widths[0])]
        aligned += [text.rjust(width) for text, width in zip(row[1:], widths[1:], strict=True)]
        line = "  ".join(aligned).rstrip()
        lines.append(style(line, "bold") if index in (0, len(cells) - 1) else line)
    if not run.provenance.partial:
        lines += [str(level) for level in levels_of(run)]
    lines += [_wrap(note) for note in (*unchecked(run), *noted(run))]
    lines += _failures(run, judgement.new, "new", limit, style)
    lines += _failures(run, judgement.provisional, "provisional, not gating", limit, style)
    lines += [f"note: {one_line(note)}" for note in judgement.notes]
    lines += [style(f"problem: {one_line(problem)}", "bad") for problem in judgement.problems]
    good = "good" if judgement.green else "bad"
    lines.append(style(verdict_line(judgement), good))
    lines.append(f"report: {run.folder}")
    return "\n".join(lines)


def title(run: Run) -> str:
    origin = run.provenance
    name = f" ({one_line(origin.device_name)})" if origin.device_name else ""
    return f"device {origin.device}{name}, plan {origin.plan}, torch {origin.torch}"


def work_done(run: Run) -> str:
    """How much evidence there is: executed comparisons, on how many inputs, in how many layouts."""
    results = run.results.values()
    checks = sum(result.checks for result in results)
    inputs: dict[tuple[str, str], int] = {}
    layouts: set[str] = set()
    for result in results:
        item = (result.key.op, result.key.dtype)
        inputs[item] = max(inputs.get(item, 0), result.samples)
        layouts.update(result.ran_layouts)
    return (
        f"{number(checks, 'check')} on {number(sum(inputs.values()), 'sample')} of "
        f"{number(len(inputs), 'op-dtype pair')}, in {number(len(layouts), 'layout')}"
    )


def verdict_line(judgement: Judgement) -> str:
    """Numerator and denominator, the expected failures, and the exit code with its name."""
    counts, code = judgement.counts, judgement.exit_code
    parts = [f"{counts.passed:,} of {number(counts.judged, 'cell')} pass"]
    if counts.ambiguous:
        parts.append(f"{counts.ambiguous:,} more have no agreed reference")
    if counts.declared:
        parts.append(f"{counts.declared:,} more are unsupported by declaration")
    parts.append(f"{counts.expected:,} fail as expected")
    parts.append(f"{counts.regressions:,} regressions, {counts.improvements:,} improvements")
    return f"{code.label} (exit {code.value}): " + "; ".join(parts)


def table(run: Run, judgement: Judgement) -> tuple[list[str], list[list[str]]]:
    """Header and rows, by clause, or by family where clauses are many; the last row is the sum.

    Columns of rarer things are left out where all their counts are nought.
    """
    clauses = run.parsed.clauses
    grouped: dict[str, list[Tally]] = {}
    by_family = len(judgement.tallies) > _MANY
    for clause, counts in judgement.tallies.items():
        known = clauses[clause]
        name = known.family if by_family else clause + (" *" if known.provisional else "")
        grouped.setdefault(name, []).append(counts)
    rows = {name: Tally.sum(counts) for name, counts in grouped.items()}
    total = judgement.counts
    columns = [
        (label, name) for label, name in _COLUMNS if name in _ALWAYS or getattr(total, name) > 0
    ]
    header = ["clause family" if by_family else "clause", "pass", "of"]
    header += [label for label, _ in columns]
    body = []
    for name, counts in {**rows, "all": total}.items():
        row = [name, f"{counts.passed:,}", f"{counts.judged:,}"]
        body.append(row + [f"{getattr(counts, column):,}" for _, column in columns])
    return header, body


def unchecked(run: Run) -> list[str]:
    """What the contract says and this run does not speak of."""
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
        left_out.setdefault(item.reason, []).append(f"{item.clause} {_ops(item.ops)}")
    notes += [f"left out: {', '.join(where)}. {reason}" for reason, where in left_out.items()]
    if any(clause.provisional and clause.id in having for clause in clauses):
        notes.append("* provisional: reported, not gating")
    return notes


def _exclusions(run: Run) -> Iterable[Exclusion]:
    """The plan's, and of a partial run those of its own clauses and ops."""
    every = run.parsed.document.exclusions
    if not run.provenance.partial:
        return every
    ops = {cell.op for cell in run.parsed.selected}
    clauses = {cell.clause for cell in run.parsed.selected}
    found = []
    for item in every:
        its = [op for op in item.ops if op in ops]
        if any(fnmatchcase(clause, item.clause) for clause in clauses) and (its or not item.ops):
            found.append(Exclusion(item.clause, its, item.reason))
    return found


def noted(run: Run) -> list[str]:
    """What cells that passed report, by clause: the first of each is shown."""
    found: dict[str, list[CellResult]] = {}
    for result in run.results.values():
        if result.outcome is Outcome.PASS and result.message:
            found.setdefault(result.key.clause, []).append(result)
    return [
        f"{clause}: {number(len(results), 'cell')} passed with something to report, such as "
        f"{case_name(results[0].key)}: {one_line(results[0].message)}"
        for clause, results in found.items()
    ]


def _ops(ops: Sequence[str]) -> str:
    """How many ops (``plan.json`` names them); an exclusion without ops takes the whole clause."""
    if not ops:
        return "every op"
    return number(len(ops), "op")


def _names(clauses: Iterable[str]) -> str:
    """Clause ids with their family said once: ``streams: wait, query; graphs: pool``."""
    families: dict[str, list[str]] = {}
    for clause in clauses:
        family, _, name = clause.partition(".")
        families.setdefault(family, []).append(name)
    return "; ".join(f"{family}: {', '.join(names)}" for family, names in families.items())


def _wrap(text: str) -> str:
    lines, line = [], ""
    for word in text.split(" "):
        if line and len(line) + len(word) >= _WIDTH:
            lines.append(line)
            line = "    " + word
        else:
            line = f"{line} {word}" if line else word
    return "\n".join([*lines, line])


def _failures(
    run: Run, results: Sequence[CellResult], kind: str, limit: int, style: Callable[[str, str], str]
) -> list[str]:
    groups = groups_of(run, results)
    lines = text_lines(run.folder, groups, kind, limit, style)
    if len(groups) > limit:
        lines.append(_rest(run, groups[limit:]))
    return lines


def _rest(run: Run, groups: Sequence[Group]) -> str:
    """What is not shown, and where it is."""
    report = run.folder / MARKDOWN_FILE
    where = report if report.exists() else run.folder
    cells = sum(len(group.results) for group in groups)
    return f"and {number(len(groups), 'more group')} ({number(cells, 'cell')}) in {where}"


def markdown(run: Run, judgement: Judgement, *, limit: int = 20) -> str:
    """The summary for a CI's page (GitHub-flavoured)."""
    code = judgement.exit_code
    lines = [f"## torch-conformance: {code.label} (exit {code.value})", "", md(title(run)), ""]
    lines += [md(verdict_line(judgement)), ""]
    if judgement.problems or judgement.notes:
        said = (*judgement.problems, *judgement.notes)
        lines += [f"- {md(one)}" for one in said] + [""]
    header, rows = table(run, judgement)
    lines.append(table_row(header))
    lines.append(table_row(["---"] + ["---:"] * (len(header) - 1), escaped=False))
    lines += [table_row(row) for row in rows] + [""]
    for heading, results in (
        ("New", judgement.new),
        ("Provisional, not gating", judgement.provisional),
    ):
        if results:
            lines += _md_failures(run, heading, results, limit)
    lines += [f"{md(note)}\n" for note in (*unchecked(run), *noted(run))]
    return "\n".join(lines).rstrip("\n") + "\n"


def _md_failures(run: Run, heading: str, results: Sequence[CellResult], limit: int) -> list[str]:
    groups = groups_of(run, results)
    head = ["verdict", "cell", "outcome", "message", "repro", "alike"]
    lines = [
        f"### {heading}",
        "",
        table_row(head),
        table_row(["---"] * 5 + ["---:"], escaped=False),
    ]
    for group in groups[:limit]:
        result = group.example
        lines.append(
            table_row(
                [
                    result.verdict.value,
                    str(result.key),
                    result.outcome.value,
                    headline(result),
                    repro_command(run.folder, result) or "",
                    f"{len(group.results):,}",
                ]
            )
        )
    lines.append("")
    if len(groups) > limit:
        lines += [md(_rest(run, groups[limit:])), ""]
    return lines


def workflow_commands(judgement: Judgement) -> tuple[str, ...]:
    """GitHub workflow commands: the problems, then new failures, ten at most in all."""
    if judgement.green:
        return ()
    wanted = [(f"conformance: {judgement.exit_code.label}", text) for text in judgement.problems]
    if judgement.exit_code is not ExitCode.INFRASTRUCTURE:
        wanted += [
            (f"{result.verdict}: {result.key}", f"{result.outcome}: {headline(result)}")
            for result in judgement.new
        ]
    shown = wanted if len(wanted) <= _ANNOTATIONS else wanted[: _ANNOTATIONS - 1]
    lines = [_command(name, text) for name, text in shown]
    if len(wanted) > len(shown):
        lines.append(_command("conformance", f"and {len(wanted) - len(shown):,} more"))
    return tuple(lines)


# https://github.com/actions/toolkit, packages/core/src/command.ts: escapeData, escapeProperty.
_DATA: Mapping[str, str] = {"%": "%25", "\r": "%0D", "\n": "%0A"}
_PROPERTY: Mapping[str, str] = {**_DATA, ":": "%3A", ",": "%2C"}


def _command(name: str, text: str) -> str:
    title = "".join(_PROPERTY.get(char, char) for char in one_line(name))
    data = "".join(_DATA.get(char, char) for char in one_line(text))
    return f"::error title={title}::{data}"
