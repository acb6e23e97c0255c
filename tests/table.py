"""The table fault → clause → caught, for any device that can be told to misbehave."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from fnmatch import fnmatchcase

from tests.trials import Bench, Plantable, Trial, not_passing


def lines(trials: Iterable[Trial]) -> list[str]:
    """One line a fault and clause: the fault, the clause, what caught it, and where first."""
    rows = []
    for trial in trials:
        for clause in trial.fault.clauses:
            caught = trial.caught(clause)
            checks = f"{sum(r.failed for r in caught)} of {sum(r.checks for r in caught)} checks"
            where = ", ".join(f"{r.key.unit}[{r.key.dtype}]" for r in caught)
            rows.append((trial.fault.name, clause, f"{checks} at {where}" if caught else "MISSED"))
    widths = [max((len(row[column]) for row in rows), default=0) for column in (0, 1)]
    return [f"{name:{widths[0]}}  {clause:{widths[1]}}  {found}" for name, clause, found in rows]


def report(bench: Bench, faults: Mapping[str, Plantable], globs: Sequence[str]) -> int:
    """Print the table of the faults that a glob matches (of all without globs).

    The exit status is 0 where every fault was caught, nothing else changed and the clean run passes.
    """
    started = time.perf_counter()
    chosen = [
        fault
        for fault in faults.values()
        if not globs or any(fnmatchcase(fault.name, pattern) for pattern in globs)
    ]
    trials = [bench.trial(fault) for fault in chosen]
    print("\n".join(lines(trials)))
    wrong = [
        f"{trial.fault.name}: {text}"
        for trial in trials
        for text in (
            *(f"{clause} did not fail" for clause in trial.missed),
            *(f"{op}[{dtype}] failed no clause of it" for op, dtype in trial.untouched),
            *(f"outside its radius: {change}" for change in trial.strays),
        )
    ]
    wrong += [f"clean: {text}" for text in not_passing(bench)]
    print("\n".join(wrong))
    seconds = time.perf_counter() - started
    print(f"{len(trials)} faults, {len(wrong)} problems, {seconds:.1f} s")
    return 1 if wrong else 0
