"""Writes the draft of a bug report about one cause of failures, as Markdown for a person to read, correct and file.

Nothing is sent anywhere. The host's name and the device's uuid are left out.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from devices.cell import CellKey, Seen, Verdict
from devices.errors import ConformError
from reports.advice import sentence, todo, use_of
from reports.causes import Cause, causes_of
from reports.failures import causes_in
from reports.gate import gate, number
from reports.junit import clean, one_line
from reports.markdown import block, code, md, table
from reports.model import CellResult, Run
from reports.plain import without_boilerplate

#: GitHub refuses the text of an issue beyond 65,536 characters. The script gets the room that is left.
_LONGEST: Final = 60_000
_CELLS: Final = 60
_OUTPUT: Final = 20

#: Facts, in the order of the table of versions. The name in the report comes second.
_FACTS: Final = (
    ("device_name", "device"),
    ("driver", "driver"),
    ("runtime", "runtime"),
    ("backend", "backend"),
    ("os", "operating system"),
    ("arch", "architecture"),
    ("python", "Python"),
)


class NoCause(ConformError):
    """The error for a cause that a run does not have. The text of the error lists what the run has."""


@dataclass(frozen=True, slots=True)
class Proof:
    """The proof that a failure happens again alone: the result whose repro script was run, the text of the script, the
    lines that it printed, the day, and the version of torch with which it ran."""

    result: CellResult
    script: str
    lines: Sequence[str]
    day: str
    torch: str


def find_cause(run: Run, name: str) -> Cause:
    """Returns the cause that ``name`` means: its number in failures.md, or one of its cells. A cell that fails as the
    manifest expects has a cause too. Raises NoCause."""
    unexpected = [each for each in causes_in(gate(run)) if each.verdict is Verdict.REGRESSION]
    if name.isdecimal():
        # Improvements come after the regressions that gate, and are counted in failures.md.
        every = causes_in(gate(run))
        if not every:
            raise NoCause(
                f"{run.folder} has no unexpected results; name a cell that is expected to fail"
            )
        if not 1 <= int(name) <= len(every):
            raise NoCause(
                f"{run.folder} has {number(len(every), 'cause')}, numbered as in failures.md; there is no cause {name}"
            )
        cause = every[int(name) - 1]
        if cause.verdict is not Verdict.REGRESSION:
            raise NoCause(
                f"cause {name} of {run.folder} is no failure: {one_line(sentence(cause))}"
            )
        return cause
    try:
        key = CellKey.parse(name)
    except ValueError as error:
        raise NoCause(f"{error}; or the number of a cause in failures.md") from None
    if key not in run.parsed.known:
        raise NoCause(f"{run.folder} does not plan the cell {key}")
    result = run.results.get(key)
    if result is None or result.verdict not in (Verdict.REGRESSION, Verdict.EXPECTED):
        how = "has no outcome" if result is None else f"has the outcome '{result.outcome}'"
        raise NoCause(f"{key} {how} in {run.folder}; expected a cell that fails")
    causes: Iterable[Cause] = unexpected
    if result.verdict is Verdict.EXPECTED:
        causes = causes_of(run, [r for r in run.results.values() if r.verdict is Verdict.EXPECTED])
    return next(each for each in causes if any(r.key == key for r in each.results))


def candidates(cause: Cause) -> list[CellResult]:
    """Returns the results of a cause that have a repro script, its example first."""
    ordered = (cause.example, *(r for r in cause.results if r is not cause.example))
    return [result for result in ordered if result.repro is not None]


def draft(run: Run, cause: Cause, proof: Proof) -> str:
    """Returns the report. It has the cause, the snippet and the repro script of the failure that happened again, all
    cells, the versions, the sources of the clauses, and the public bugs that these cells are known to show."""
    shown = proof.result
    lines = [f"# {md(_title(run, cause))}", "", *_summary(run, cause), ""]
    if snippet := _snippet(proof.script):
        lines += ["## Example", "", "```python", *snippet, "```", ""]
    lines += ["## What happens", "", *block(_failure(shown)), ""]
    lines += [
        "## Versions",
        "",
        *_versions(run),
        "",
        "## Expected behaviour",
        "",
        *_sources(run, cause),
        "",
    ]
    if seen := _seen(cause):
        lines += ["## Seen before", "", *(f"- {md(str(bug))}: {bug.url}" for bug in seen), ""]
    lines += [f"## Cells ({len(cause.results):,})", "", *block(_cells(cause)), ""]
    lines += [
        "## It happens again alone",
        "",
        f"The script below ran alone in a new process on {proof.day}, with torch {md(proof.torch)}, and printed:",
        "",
        *block(clean(line) for line in proof.lines[-_OUTPUT:]),
        "",
    ]
    return "\n".join([*lines, *_script(proof.script, _LONGEST - sum(map(len, lines)))]) + "\n"


def _title(run: Run, cause: Cause) -> str:
    text = f"{run.provenance.device}: {one_line(without_boilerplate(sentence(cause)))}"
    return text if len(text) <= 200 else f"{text[:199]}…"


def _summary(run: Run, cause: Cause) -> list[str]:
    clauses = list(dict.fromkeys(result.key.clause for result in cause.results))
    lines = [
        f"{number(len(cause.results), 'cell')} of {number(len(clauses), 'clause')} "
        f"({', '.join(map(code, clauses[:6]))}{', …' if len(clauses) > 6 else ''}) "
        f"{'fails' if len(cause.results) == 1 else 'fail'} in this way on {code(run.provenance.device)}: "
        f"{sentence(cause, code)}."
    ]
    if use := use_of(cause, code):
        lines += ["", f"{use}, of which a training step was recorded."]
    if advice := todo(cause, run.parsed.clauses, code):
        lines += ["", f"What may help: {advice}."]
    return lines


def _snippet(script: str) -> list[str]:
    """Returns the tensors and the call from the docstring of a repro script; an empty list if the script has none."""
    try:
        docstring = ast.get_docstring(ast.parse(script)) or ""
    except (SyntaxError, ValueError):
        return []
    indented = [line for line in docstring.splitlines() if line.startswith("    ") or not line]
    found = [line[4:] for line in indented]
    while found and not found[0].strip():
        found.pop(0)
    while found and not found[-1].strip():
        found.pop()
    return [] if any("```" in line for line in found) else found


def _failure(shown: CellResult) -> list[str]:
    lines = without_boilerplate(shown.message or shown.outcome.value).splitlines()
    return [clean(line) for line in lines] + (
        shown.example.lines() if shown.example is not None else []
    )


def _versions(run: Run) -> list[str]:
    origin, facts = run.provenance, run.plan.facts
    rows = [("torch", origin.torch)]
    rows += [(name, str(facts[fact])) for fact, name in _FACTS if facts.get(fact)]
    suite = f"{origin.suite_version} {origin.suite_commit[:12]}".strip()
    rows += [
        ("torch-conformance", f"{suite}, plan {origin.plan}"),
        ("date of the run", origin.start),
    ]
    return table(("", "version"), [(md(name), md(value)) for name, value in rows], 2)


def _sources(run: Run, cause: Cause) -> list[str]:
    lines = []
    for name in dict.fromkeys(result.key.clause for result in cause.results):
        clause = run.parsed.clauses[name]
        source = f" (source: {md(clause.source)})" if clause.source else ""
        lines.append(f"- {code(name)}: {md(clause.statement)}{source}")
    return lines


def _seen(cause: Cause) -> list[Seen]:
    return list(dict.fromkeys(bug for result in cause.results for bug in result.seen))


def _cells(cause: Cause) -> list[str]:
    names = [str(result.key) for result in cause.results]
    more = len(names) - _CELLS
    return [*names[:_CELLS], *([f"and {more:,} more"] if more > 0 else [])]


def _script(script: str, room: int) -> list[str]:
    """Returns the repro script as a code block that is folded away; a sentence if it is too long for an issue."""
    fence = "~" * max(4, *(len(run) + 1 for run in re.findall("~+", script)), 4)
    if len(script) > room:
        return ["The repro script is too long for this text: attach it as a file."]
    summary = (
        "<details><summary>The repro script: needs only torch and the device's module</summary>"
    )
    return [summary, "", f"{fence}python", script.rstrip("\n"), fence, "", "</details>"]
