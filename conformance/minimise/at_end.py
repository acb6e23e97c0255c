"""Minimising what is new in a run, at its end: regressions alone, one of each group first."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from itertools import zip_longest
from pathlib import Path

from conformance.aside import AsideDied
from conformance.minimise.aside import Bench, Task, minimised
from conformance.minimise.script import write_repro
from conformance.suites import LAYOUT, suite_of
from devices.cell import CellKey, Outcome, Verdict
from reports.deviation import deviation, shown_layout
from reports.groups import grouped
from reports.model import CellResult

Say = Callable[[str], None]


def tasks_of(results: Iterable[CellResult], families: Mapping[str, str], most: int) -> list[Task]:
    """The failures to minimise: the first of every group, then the second of every group, and so on."""
    new = [
        r
        for r in results
        if r.verdict is Verdict.REGRESSION
        and r.outcome is Outcome.FAIL
        and suite_of(r.key.clause) == LAYOUT  # programs of the other suites come minimised
    ]
    members = [
        [group.example, *(r for r in group.results if r is not group.example)]
        for group in grouped(new, families)
    ]
    turns = (result for turn in zip_longest(*members) for result in turn if result is not None)
    chosen = [result for result, _ in zip(turns, range(most))]
    return [Task(r.key, shown_layout(r.message), deviation(r.message, r.raises)) for r in chosen]


def with_examples(
    results: dict[CellKey, CellResult],
    bench: Bench,
    families: Mapping[str, str],
    folder: Path,
    most: int,
    say: Say,
) -> dict[CellKey, CellResult]:
    """The results with the examples that were found; their scripts replace those in the folder."""
    tasks = tasks_of(results.values(), families, most)
    if not tasks:
        return results
    say(f"minimising {len(tasks):,} new failures …")
    started, found, unsolved = time.monotonic(), dict(results), 0
    try:
        for answer in minimised(bench, tasks):
            cell = answer.task.cell
            if answer.example is None:
                unsolved += 1
                continue
            repro = write_repro(folder, cell, answer.script)
            found[cell] = replace(found[cell], example=answer.example, repro=repro)
    except AsideDied as death:
        say(f"minimising ended early, its process {death}")
    seconds = time.monotonic() - started
    more = f", {unsolved:,} could not be" if unsolved else ""
    count = sum(r.example is not None for r in found.values())
    say(f"minimised {count:,} of them in {seconds:.1f} s{more}")
    return found
