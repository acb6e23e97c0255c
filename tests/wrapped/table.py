"""``python -m tests.wrapped.table [FAULT GLOB…]``: which clause catches which planted fault."""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Iterable, Sequence
from fnmatch import fnmatchcase
from pathlib import Path

from tests.wrapped.faults import REGISTRY
from tests.wrapped.trial import Bench, Trial


def lines(trials: Iterable[Trial]) -> list[str]:
    """One line a fault and clause: the fault, the clause, what caught it, and where first."""
    rows = []
    for trial in trials:
        for clause in trial.fault.clauses:
            caught = trial.caught(clause)
            checks = f"{sum(r.failed for r in caught)} of {sum(r.checks for r in caught)} checks"
            where = ", ".join(f"{r.key.op}[{r.key.dtype}]" for r in caught)
            rows.append((trial.fault.name, clause, f"{checks} at {where}" if caught else "MISSED"))
    widths = [max((len(row[column]) for row in rows), default=0) for column in (0, 1)]
    return [f"{name:{widths[0]}}  {clause:{widths[1]}}  {found}" for name, clause, found in rows]


def main(arguments: Sequence[str]) -> int:
    """Print the table; the exit status says whether every fault was caught and nothing else changed."""
    started = time.perf_counter()
    chosen = [
        fault
        for fault in REGISTRY.values()
        if not arguments or any(fnmatchcase(fault.name, pattern) for pattern in arguments)
    ]
    with tempfile.TemporaryDirectory() as cache:
        bench = Bench(Path(cache))
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
    for run in bench.clean.values():
        for record in run.cells.values():
            if record.outcome().value != "pass":
                wrong.append(f"clean: {record.key}: {record.outcome().value}: {record.message()}")
    print("\n".join(wrong))
    seconds = time.perf_counter() - started
    print(f"{len(trials)} faults, {len(wrong)} problems, {seconds:.1f} s")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
