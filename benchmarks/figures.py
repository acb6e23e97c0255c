"""Measured figures and their budgets: the printed table, the history, and the comparison of two histories."""

from __future__ import annotations

import json
import os
import platform
import subprocess
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from datetime import datetime, timezone
from importlib.metadata import version
from pathlib import Path
from typing import Any

from rich.table import Table

ROOT = Path(__file__).resolve().parent.parent
HISTORY = ROOT / "benchmarks" / "history.jsonl"


@dataclass(frozen=True, slots=True)
class Figure:
    """A measured figure and its budget. A ``ratio`` compares two measurements of the same session, so it can be
    compared between machines, and pull requests are judged by ratios only."""

    name: str
    value: float
    budget: float
    at_least: bool = False
    ratio: bool = False

    @property
    def held(self) -> bool:
        return self.value >= self.budget if self.at_least else self.value <= self.budget

    @property
    def limit(self) -> str:
        return f"{'≥' if self.at_least else '≤'} {self.budget:g}"

    def worse(self, before: Figure) -> float:
        """By which fraction this figure is worse than the one before; negative if it is better."""
        change = self.value / before.value - 1
        return -change if self.at_least else change

    def __str__(self) -> str:
        return f"{self.name}: {self.value:.2f} (budget {self.limit}) {'met' if self.held else 'MISSED'}"


class BadHistory(ValueError):
    """A history cannot be read, or has no figures to compare."""


def table_of(figures: Iterable[Figure]) -> Table:
    table = Table(box=None, pad_edge=False)
    table.add_column("figure")
    for column in ("measured", "budget"):
        table.add_column(column, justify="right")
    table.add_column("")
    for each in figures:
        table.add_row(each.name, f"{each.value:,.2f}", each.limit, "met" if each.held else "MISSED")
    return table


def circumstances() -> dict[str, str]:
    """The circumstances of a measurement: date, commit, machine and the version of torch."""
    return {
        "date": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "commit": _commit(),
        "machine": f"{_processor()}, {os.cpu_count()} cores",
        "torch": version("torch"),
    }


def _commit() -> str:
    """The commit, followed by ``+`` if the working tree has changes; empty outside a checkout."""
    try:
        done = subprocess.run(
            ["git", "describe", "--always", "--dirty=+", "--exclude=*"],
            cwd=ROOT,
            capture_output=True,
            text=True,
            check=False,
        )
    except OSError:  # git is not installed
        return ""
    return done.stdout.strip()


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:  # not Linux
        lines = []
    named = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(named, "") or platform.processor() or platform.machine()


def keep(path: Path, figures: Iterable[Figure], around: Mapping[str, str]) -> None:
    """Append the figures to a history, one in each line."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a", encoding="utf-8") as file:
        file.writelines(
            json.dumps({**asdict(each), **around}, ensure_ascii=False) + "\n" for each in figures
        )


def read(path: Path) -> dict[str, Figure]:
    """The last figure of each name in a history. Raises :class:`BadHistory`."""
    found: dict[str, Figure] = {}
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise BadHistory(f"{path} cannot be read: {error}") from None
    for number, line in enumerate(text.splitlines(), 1):
        try:
            row: dict[str, Any] = json.loads(line)
            figure = Figure(
                str(row["name"]),
                float(row["value"]),
                float(row["budget"]),
                bool(row["at_least"]),
                bool(row["ratio"]),
            )
        except (ValueError, TypeError, KeyError):
            raise BadHistory(
                f"{path}, line {number}: expected a figure as `python -m benchmarks` writes it, "
                f"found {line[:60]!r}"
            ) from None
        found[figure.name] = figure
    return found


def compared(
    before: Mapping[str, Figure], after: Mapping[str, Figure], slack: float
) -> tuple[Table, bool]:
    """The ratios of two histories side by side, and whether none is worse by more than ``slack`` (0.1 is 10 %).

    Raises :class:`BadHistory` if they have no ratio in common.
    """
    shared = [n for n, each in after.items() if each.ratio and n in before and before[n].value > 0]
    if not shared:
        raise BadHistory("the histories have no ratio in common: measure the same benchmarks twice")
    table, good = Table(box=None, pad_edge=False), True
    table.add_column("ratio")
    for column in ("before", "after", "worse by"):
        table.add_column(column, justify="right")
    table.add_column("")
    for name in shared:
        worse = after[name].worse(before[name])
        good &= worse <= slack
        table.add_row(
            name,
            f"{before[name].value:.2f}",
            f"{after[name].value:.2f}",
            f"{worse:+.1%}",
            "" if worse <= slack else "WORSE",
        )
    return table, good
