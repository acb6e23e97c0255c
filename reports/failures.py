"""All failures of a run by group: ``failures.json`` for programs, ``failures.md`` for people.

Both follow from the run's own files and are no evidence: `conform gate` never reads them.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from reports.groups import Group, families_of, grouped
from reports.judgement import Judgement
from reports.junit import headline
from reports.model import CellResult, Run
from reports.plan import RunError
from reports.text import md, one_line, repro_command

FORMAT = 1
JSON_FILE, MARKDOWN_FILE = "failures.json", "failures.md"

#: Cells of a group that are named in the line under its example.
_NAMED = 6


def groups_of(run: Run, results: Sequence[CellResult]) -> tuple[Group, ...]:
    """These results of the run, grouped."""
    return grouped(results, families_of(run.plan))


def write_failures(run: Run, judgement: Judgement) -> None:
    """Write both files into the run's folder. Raises RunError where they cannot be written."""
    groups = groups_of(run, (*judgement.new, *judgement.provisional))
    try:
        (run.folder / JSON_FILE).write_text(
            json.dumps(document(groups), indent=1) + "\n", encoding="utf-8"
        )
        (run.folder / MARKDOWN_FILE).write_text(markdown(groups), encoding="utf-8")
    except OSError as error:
        raise RunError(f"{error.filename}: cannot be written: {error.strerror or error}") from None


def document(groups: Sequence[Group]) -> dict[str, Any]:
    """The groups as plain data, largest first, each with its example and the names of all its cells."""
    return {
        "format": FORMAT,
        "cells": sum(len(group.results) for group in groups),
        "groups": [
            {
                "verdict": group.key.verdict.value,
                "clause": group.key.clause,
                "kind": group.key.kind,
                "family": group.key.family,
                "place": group.key.place,
                "count": len(group.results),
                "example": _example(group.example),
                "cells": [str(result.key) for result in group.results],
            }
            for group in groups
        ],
    }


def _example(result: CellResult) -> dict[str, Any]:
    return {
        "cell": str(result.key),
        "outcome": result.outcome.value,
        "message": result.message,
        "repro": result.repro,
        "minimised": asdict(result.example) if result.example is not None else None,
    }


def markdown(groups: Sequence[Group]) -> str:
    """The same for people (GitHub-flavoured)."""
    cells = sum(len(group.results) for group in groups)
    lines = [f"# {cells:,} new in {len(groups):,} groups", ""]
    for number, group in enumerate(groups, 1):
        example = group.example
        lines += [f"## {number}. {md(str(group.key))} ({len(group.results):,})", ""]
        lines += [f"- example: {md(str(example.key))}: {md(headline(example))}"]
        if example.example is not None:
            lines += [f"- {md(line)}" for line in example.example.lines()]
        if example.repro is not None:
            lines.append(f"- `python {example.repro}` in this folder")
        lines += ["", ", ".join(md(str(result.key)) for result in group.results), ""]
    return "\n".join(lines).rstrip("\n") + "\n"


def text_lines(
    folder: Path,
    groups: Sequence[Group],
    kind: str,
    limit: int,
    style: Callable[[str, str], str],
) -> list[str]:
    """The first groups for a terminal, each with an example and the command that shows it again."""
    lines: list[str] = []
    for group in groups[:limit]:
        bad = "bad" if group.key.verdict == "regression" else "note"
        label = style(f"{kind} {group.key.verdict}", bad)
        result = group.example
        lines.append(f"{label}: {result.key}: {result.outcome}: {one_line(headline(result))}")
        if result.example is not None:
            lines += [_indented(line) for line in result.example.lines()]
        if (command := repro_command(folder, result)) is not None:
            lines.append(f"    {command}")
        if len(group.results) > 1:
            lines.append(f"    {alike(group)}")
    return lines


def _indented(line: str) -> str:
    """A line of an example one level deeper, its own indentation kept."""
    return " " * (4 + len(line) - len(line.lstrip(" "))) + one_line(line)


def alike(group: Group) -> str:
    """How many more cells there are in a group, what they share, and some of their names."""
    others = [r for r in group.results if r is not group.example]
    key = group.key
    where = f", {key.place}" if key.place else ""
    names = [f"{r.key.op}[{r.key.dtype}]" if r.key.dtype else r.key.op for r in others[:_NAMED]]
    more = ", …" if len(others) > _NAMED else ""
    cells = "cell" if len(others) == 1 else "cells"
    return one_line(
        f"and {len(others):,} more {cells} alike ({key.kind}, {key.family}{where}): "
        f"{', '.join(names)}{more}"
    )
