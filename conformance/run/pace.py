"""How far a run is: a line now and then, sparse enough for the log of a CI."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

#: Seconds until the first line, and between two.
FIRST: Final = 30.0
EVERY: Final = 60.0


@dataclass(slots=True)
class Pace:
    """Of a run that began at ``began`` (monotonic seconds) with ``before`` cells done already, of ``planned``."""

    planned: int
    before: int
    began: float
    due: float = 0.0

    def __post_init__(self) -> None:
        self.due = self.began + FIRST

    def line(self, done: int, failing: int, now: float) -> str:
        """The line to print now; empty if none is due. ``failing`` cells fail unexpectedly."""
        if now < self.due or not self.before < done < self.planned:
            return ""
        self.due = now + EVERY
        left = (now - self.began) / (done - self.before) * (self.planned - done)
        return (
            f"{done:,} of {self.planned:,} cells, {failing:,} failing, about {duration(left)} left"
        )


def duration(seconds: float) -> str:
    """Roughly: ``40 s``, ``3 min``, ``2 h 10 min``."""
    if seconds < 60:
        return f"{max(10, round(seconds, -1)):.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"
