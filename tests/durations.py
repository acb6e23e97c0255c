"""Where the time of the tests goes: seconds by file, at the end of a run that was asked for durations.

CI prints this table, so that a file that has become slow is seen there. Seconds are those of a worker: of all files
together they are the time of the run times its workers.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Protocol


class Timed(Protocol):
    """A report of pytest: of a test's setup, call or teardown."""

    nodeid: str
    duration: float


def by_file(reports: Iterable[Timed]) -> Counter[str]:
    """The seconds of each file."""
    seconds: Counter[str] = Counter()
    for report in reports:
        seconds[report.nodeid.partition("::")[0]] += report.duration  # type: ignore[assignment]
    return seconds


def table(seconds: Counter[str], rows: int) -> list[str]:
    """The files that took longest, and the sum of all."""
    shown = [f"{duration:8.1f} s  {file}" for file, duration in seconds.most_common(rows)]
    rest = len(seconds) - len(shown)
    if rest > 0:
        left = sum(seconds.values()) - sum(s for _, s in seconds.most_common(rows))
        shown.append(f"{left:8.1f} s  in {rest} other file{'s' if rest > 1 else ''}")
    return [*shown, f"{sum(seconds.values()):8.1f} s  in all"]
