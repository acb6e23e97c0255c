"""Runs the benchmarks and prints each figure with its budget: ``python -m benchmarks [NAME …]``.

Figures that compare two ways are medians of ratios of alternating runs (A B A B …), because the speed of machines
varies. Every figure is appended to ``benchmarks/history.jsonl``. The exit code is 1 if a figure misses its budget.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import click
from rich.console import Console

try:
    import psutil  # noqa: F401  # of the extra "bench"
except ModuleNotFoundError:
    sys.exit("error: the benchmarks need psutil: python -m pip install 'torch-conformance[bench]'")

from benchmarks import (
    dashboard,
    equal_work,
    growth,
    manifest,
    matching,
    memory,
    merging,
    overhead,
    phases,
    recording,
    throughput,
    workers,
)
from benchmarks.figures import (
    HISTORY,
    BadHistory,
    Figure,
    circumstances,
    compared,
    keep,
    read,
    table_of,
)

BENCHMARKS: dict[str, Callable[[], Iterator[Figure]]] = {
    "equal-work": equal_work.measured,
    "matching": matching.measured,
    "manifest": manifest.measured,
    "throughput": throughput.measured,
    "simulated": throughput.measured_simulated,
    "memory": memory.measured,
    "merging": merging.measured,
    "overhead": overhead.measured,
    "phases": phases.measured,
    "dashboard": dashboard.measured,
    "workers": workers.measured,
    "full-plan": workers.measured_full,
    "growth": growth.measured,
    "recording": recording.measured,
}


@click.command()
@click.argument("names", nargs=-1, metavar="[NAME …]", type=click.Choice(list(BENCHMARKS)))
@click.option("--history", type=click.Path(path_type=Path, dir_okay=False), default=HISTORY,
              show_default="benchmarks/history.jsonl", help="Append the figures to this file.")  # fmt: skip
@click.option("--compare", nargs=2, type=click.Path(path_type=Path), metavar="BEFORE AFTER",
              help="Measure nothing: compare the ratios of two histories.")  # fmt: skip
@click.option("--slack", type=float, default=10.0, show_default=True,
              help="Percent by which a ratio may be worse than before.")  # fmt: skip
def main(names: tuple[str, ...], history: Path, compare: tuple[Path, Path], slack: float) -> None:
    """Run the benchmarks with these names, or all of them, and print a table of figures and budgets.

    Exits with 1 if a budget is missed, or with --compare if a ratio is worse than before; with 4 if a history cannot be
    read.
    """
    if compare:
        sys.exit(_compared(*compare, slack / 100))
    around, figures = circumstances(), []
    for name in names or BENCHMARKS:
        print(f"== {name}", flush=True)
        for each in BENCHMARKS[name]():
            print(each, flush=True)
            keep(history, [each], around)
            figures.append(each)
    if figures:
        print()
        Console(width=110, highlight=False).print(table_of(figures))
        print(f"appended to {history}")
    sys.exit(0 if all(each.held for each in figures) else 1)


def _compared(before: Path, after: Path, slack: float) -> int:
    try:
        table, good = compared(read(before), read(after), slack)
    except BadHistory as error:
        print(f"error: {error}", file=sys.stderr)
        return 4
    Console(width=110, highlight=False).print(table)
    return 0 if good else 1


if __name__ == "__main__":
    main()
