"""Finds the results of a device's newest run that need attention: the regressions by cause, and the regressions that
are new in this run."""

from __future__ import annotations

from dataclasses import dataclass

from devices.cell import CellKey, Verdict
from reports.dashboard.axes import Axis, keys
from reports.dashboard.documents import Cause
from reports.dashboard.series import Series, counted
from reports.diff import Changes
from reports.status_letters import LETTERS


@dataclass(frozen=True, slots=True)
class RedCause:
    """A cause of regressions. ``kind`` is the status with which its example is shown (``reports.status_letters``). ``new`` is
    the number of its cells that were not regressions in the previous run."""

    cause: Cause
    kind: str
    new: int


@dataclass(frozen=True, slots=True)
class Alarm:
    """The cells of a device's newest run that need attention.

    ``gating`` counts the regressions that fail the gate. ``improvements`` counts the cells that pass although the
    manifest lists them as failing. ``provisional`` counts regressions and improvements in clauses that do not gate yet.
    ``new`` counts the regressions that the previous run did not have. ``causes`` are the causes of all regressions:
    first gating causes, then causes with new regressions, then the largest.
    """

    series: Series
    gating: int
    provisional: int
    improvements: int
    new: int
    causes: list[RedCause]

    @property
    def red(self) -> bool:
        """True if the device has anything that needs attention."""
        return bool(self.gating or self.provisional or self.improvements)


def alarm_of(series: Series, changed: Changes, axis: Axis) -> Alarm:
    """Returns the ``Alarm`` of a series: the cells of its newest run that need attention.

    ``changed`` has the changes since the previous run, and ``axis`` has the cells of the newest run.
    """
    run = series.latest
    counts, _ = counted(run)
    new = _newly_red(changed)
    red = [each for each in run.causes if each.verdict == Verdict.REGRESSION]
    cells = list(keys(axis)) if new and red else []
    causes = [
        RedCause(
            each,
            kind_of(each),
            sum(cells[place] in new for place in each.positions) if cells else 0,
        )
        for each in red
    ]
    causes.sort(key=lambda each: (not each.cause.gating, not each.new, -each.cause.cells))
    return Alarm(
        series, counts.regressions, counts.not_gating, counts.improvements, len(new), causes
    )


def urgency(alarm: Alarm) -> tuple[bool, bool, str]:
    """Returns the key to sort alarms by: first devices that fail the gate, then devices with anything else that needs
    attention. Within each group, devices are sorted by slug."""
    return not (alarm.gating or alarm.improvements), not alarm.red, alarm.series.slug


def _newly_red(changed: Changes) -> set[CellKey]:
    """Returns the cells that are regressions now and were not regressions in the previous run."""
    return {
        cell
        for cells in changed.values()
        for cell, was, now in cells
        if _is_regression(now) and not _is_regression(was)
    }


def _is_regression(letter: str) -> bool:
    return letter in LETTERS and LETTERS[letter].verdict is Verdict.REGRESSION


def kind_of(cause: Cause) -> str:
    """Returns the status with which the example of a cause is shown (``reports.status_letters``)."""
    wanted = (cause.outcome, cause.verdict)
    kinds = (each.kind for each in LETTERS.values() if (each.outcome, each.verdict) == wanted)
    return next(kinds, "fail")
