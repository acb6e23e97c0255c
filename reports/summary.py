"""What people read of a run: its failures in groups, the text of a terminal, markdown and annotations for CI.

Failures are grouped by what they seem to have in common, so that one line represents hundreds. A group's key is the
clause, how the cells failed, the op's family, and where (the factors of the layout of the minimised example, else
of the simplest layout that fails): what one cause in a kernel's addressing usually shares.
"""

from __future__ import annotations

import re
import shlex
import textwrap
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from html import escape
from pathlib import Path
from typing import Final, NamedTuple

import msgspec

from devices.cell import Outcome, Verdict
from devices.files import explained
from reports.gate import ExitCode, GateResult, Tally, levels_of, number
from reports.junit import clean, headline
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
_FORMAT: Final = 1

# Cells of a group that are named in the line under its example.
_NAMED = 6

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


def one_line(text: str) -> str:
    """The text without line breaks and control characters, which could forge output."""
    spaced = re.sub(r"\s+", " ", clean(text)).strip()
    return "".join(char if char.isprintable() else f"\\x{ord(char):02x}" for char in spaced)


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


# -- failures in groups


def kind_of(result: CellResult) -> str:
    """How a cell failed, for people: ``values``, ``raised RuntimeError``, ``crash: killed by SIGSEGV``."""
    if result.outcome is Outcome.FAIL:
        return result.failure.title if result.failure is not None else "fail"
    if result.outcome is Outcome.BLOCKED:
        return f"blocked by {result.blocked_by}"
    more = result.raises
    if more is None and result.failure is not None:
        more = result.failure.found or result.failure.detail
    return f"{result.outcome}: {more}" if more else str(result.outcome)


MEMORY: Final = ("contiguous", "transposed", "reversed", "channels_last")


def place_of(layouts: tuple[str, ...]) -> str:
    """What the failing layouts have in common, from the simplest of them: its factors.

    ``contiguous`` where the plain layout fails, else ``offset``, ``step``, ``order`` (of the
    dimensions in memory), ``expand`` and their sums; ``out=…`` for targets; a directed check's own name.
    """
    places = (
        (each.removeprefix("out=") != "contiguous", each.count("+"), each)
        for each in map(_factors, layouts)
    )
    return min(places, default=(True, 0, ""))[-1]


def _factors(layout: str) -> str:
    """The factors of one layout id."""
    target = layout.startswith("out=")
    found: list[str] = []
    for single in layout.removeprefix("out=").split("/"):
        memory, *rest = single.split("+")
        if memory not in MEMORY:
            return layout  # a directed check, or a pinned example
        if memory != "contiguous":
            found.append("order")
        found += [factor.partition("_")[0] for factor in rest]
    text = "+".join(f for f in ("order", "step", "expand", "offset") if f in found) or "contiguous"
    return f"out={text}" if target else text


class GroupKey(NamedTuple):
    """What the cells of one group share."""

    verdict: Verdict
    clause: str
    kind: str
    family: str
    place: str

    @property
    def common(self) -> str:
        return ", ".join(filter(None, (self.kind, self.family, self.place)))

    def __str__(self) -> str:
        return f"{self.verdict} {self.clause}: {self.common}"


@dataclass(frozen=True, slots=True)
class Group:
    """Cells that fail alike. ``example`` is the one to read first; ``results`` keep the plan's order."""

    key: GroupKey
    results: tuple[CellResult, ...]

    @property
    def example(self) -> CellResult:
        """The cell with the smallest minimised example, else the first that has a repro script."""
        return min(self.results, key=_telling)


def _telling(result: CellResult) -> tuple[int, int, int, int]:
    example = result.example
    if example is None:
        return (1 + (result.repro is None), 0, 0, 0)
    return (0, *example.complexity)


def key_of(result: CellResult, families: Mapping[str, str]) -> GroupKey:
    """A result's group. ``families`` names the family of each op; an op without one is its own."""
    return GroupKey(
        result.verdict,
        result.key.clause,
        kind_of(result),
        families.get(result.key.op, result.key.op),
        place_of((result.example.layout,) if result.example is not None else result.layouts),
    )


def grouped(results: Iterable[CellResult], families: Mapping[str, str]) -> tuple[Group, ...]:
    """The groups: regressions before improvements, then the largest first, then in the plan's order."""
    found: dict[GroupKey, list[CellResult]] = {}
    for result in results:
        found.setdefault(key_of(result, families), []).append(result)
    groups = [Group(key, tuple(members)) for key, members in found.items()]
    groups.sort(key=lambda g: (g.key.verdict is not Verdict.REGRESSION, -len(g.results)))
    return tuple(groups)


def groups_of(run: Run, results: Iterable[CellResult]) -> tuple[Group, ...]:
    """These results of the run, grouped."""
    return grouped(results, run.plan.families)


# -- failures.json for programs, failures.md for people: made from the record, and no evidence


class _GroupExample(msgspec.Struct):
    cell: str
    outcome: Outcome
    message: str
    repro: str | None
    minimised: Example | None


class _GroupDocument(msgspec.Struct):
    verdict: Verdict
    clause: str
    kind: str
    family: str
    place: str
    count: int
    example: _GroupExample
    cells: list[str]


class FailuresDocument(msgspec.Struct):
    """``failures.json``: the groups, largest first, each with its example and the names of all its cells."""

    format: int
    cells: int
    groups: list[_GroupDocument]


def write_failures(result: GateResult) -> None:
    """Write both files into the run's folder. Raises RunError if they cannot be written."""
    run = result.run
    groups = groups_of(run, (*result.new, *result.provisional))
    data = msgspec.json.format(msgspec.json.encode(document(groups)), indent=1)
    write_file(run.folder / JSON_FILE, data + b"\n")
    write_file(run.folder / MARKDOWN_FILE, markdown_of(groups).encode())


def document(groups: Sequence[Group]) -> FailuresDocument:
    """The groups as ``failures.json`` holds them."""
    made = []
    for group in groups:
        shown, cells = group.example, [str(result.key) for result in group.results]
        message = clean(shown.message)
        example = _GroupExample(str(shown.key), shown.outcome, message, shown.repro, shown.example)
        made.append(_GroupDocument(*group.key, len(cells), example, cells))
    return FailuresDocument(_FORMAT, sum(group.count for group in made), made)


def markdown_of(groups: Sequence[Group]) -> str:
    """The same for people (GitHub-flavoured)."""
    cells = sum(len(group.results) for group in groups)
    lines = [f"# {cells:,} new in {len(groups):,} groups", ""]
    for place, group in enumerate(groups, 1):
        example = group.example
        lines += [f"## {place}. {md(str(group.key))} ({len(group.results):,})", ""]
        lines += [f"- example: {md(str(example.key))}: {md(headline(example))}"]
        if example.example is not None:
            lines += [f"- {md(line)}" for line in example.example.lines()]
        if example.repro is not None:
            lines.append(f"- `python {example.repro}` in this folder")
        lines += ["", ", ".join(md(str(result.key)) for result in group.results), ""]
    return "\n".join(lines).rstrip("\n") + "\n"


def text_lines(
    run: Run, results: Iterable[CellResult], kind: str, limit: int, style: Callable[[str, str], str]
) -> list[str]:
    """Failures for a terminal: the first groups, each with an example and the command that shows it again."""
    groups = groups_of(run, results)
    lines: list[str] = []
    for group in groups[:limit]:
        bad = "bad" if group.key.verdict == "regression" else "note"
        label = style(f"{kind} {group.key.verdict}", bad)
        result = group.example
        lines.append(f"{label}: {result.key}: {result.outcome}: {one_line(headline(result))}")
        if result.example is not None:
            lines += [
                " " * (4 + len(line) - len(line.lstrip(" ")))
                + one_line(line)  # its own indentation is kept
                for line in result.example.lines()
            ]
        if (command := repro_command(run.folder, result)) is not None:
            lines.append(f"    {command}")
        if len(group.results) > 1:
            lines.append(f"    {alike(group)}")
        if result.outcome is Outcome.ERROR:
            lines.append(
                "    an error is a mistake of torch-conformance, not of the device: please report it"
            )
    if len(groups) > limit:
        lines.append(_rest(run, groups[limit:]))
    return lines


def alike(group: Group) -> str:
    """How many more cells there are in a group, what they share, and some of their names."""
    others = [case_name(r.key) for r in group.results if r is not group.example]
    names = [*others[:_NAMED], *(["…"] if len(others) > _NAMED else [])]
    more = number(len(others), "more cell alike", "more cells alike")
    return one_line(f"and {more} ({group.key.common}): {', '.join(names)}")


# -- the summary of a run


def summarise(judged: GateResult, *, limit: int = 20, styled: bool = False) -> str:
    """The end of a run as text: the verdict by clause, new failures with their repro commands.

    At most ``limit`` groups of failures are shown. ``styled`` adds ANSI colours.
    """
    run = judged.run

    def style(text: str, name: str) -> str:
        return f"\x1b[{_STYLES[name]}m{text}\x1b[0m" if styled else text

    header, rows = table(judged)
    first, *widths = [max(map(len, column)) for column in zip(header, *rows)]
    lines = [style(title(run), "bold"), work_done(run)]
    for row in (header, *rows):
        line = "  ".join([row[0].ljust(first), *map(str.rjust, row[1:], widths)]).rstrip()
        lines.append(style(line, "bold") if row is header or row is rows[-1] else line)
    if not run.provenance.partial:
        lines += [str(level) for level in levels_of(run)]
    lines += [_WRAPPER.fill(note) for note in (*unchecked(run), *noted(run))]
    lines += text_lines(run, judged.new, "new", limit, style)
    lines += text_lines(run, judged.provisional, "provisional, not gating", limit, style)
    lines += [f"note: {one_line(note)}" for note in judged.notes]
    lines += [style(f"problem: {one_line(problem)}", "bad") for problem in judged.problems]
    lines.append(style(verdict_line(judged), "good" if judged.green else "bad"))
    return "\n".join([*lines, f"report: {run.folder}"])


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
    parts.append(f"{counts.regressions:,} regressions, {counts.improvements:,} improvements")
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


def _rest(run: Run, groups: Sequence[Group]) -> str:
    """How many groups are not shown, and where they are."""
    report = run.folder / MARKDOWN_FILE
    where = report if report.exists() else run.folder
    cells = sum(len(group.results) for group in groups)
    return f"and {number(len(groups), 'more group')} ({number(cells, 'cell')}) in {where}"


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
    groups = groups_of(run, results)
    header = ["verdict", "cell", "outcome", "message", "repro", "alike"]
    rows = []
    for group in groups[:limit]:
        shown = group.example
        texts = map(str, (shown.verdict, shown.key, shown.outcome, headline(shown)))
        command = repro_command(run.folder, shown) or ""
        rows.append([*texts, command, f"{len(group.results):,}"])
    lines = [f"### {heading}", "", *md_table(header, rows, 5), ""]
    if len(groups) > limit:
        lines += [md(_rest(run, groups[limit:])), ""]
    return lines


def workflow_commands(judged: GateResult) -> tuple[str, ...]:
    """GitHub workflow commands: the problems, then new failures, ten at most in all."""
    if judged.green:
        return ()
    wanted = [(f"conformance: {judged.exit_code.label}", text) for text in judged.problems]
    if judged.exit_code is not ExitCode.INFRASTRUCTURE:
        wanted += [
            (f"{result.verdict}: {result.key}", f"{result.outcome}: {headline(result)}")
            for result in judged.new
        ]
    shown = wanted if len(wanted) <= _ANNOTATIONS else wanted[: _ANNOTATIONS - 1]
    lines = [_command(name, text) for name, text in shown]
    if len(wanted) > len(shown):
        lines.append(_command("conformance", f"and {len(wanted) - len(shown):,} more"))
    return tuple(lines)


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
