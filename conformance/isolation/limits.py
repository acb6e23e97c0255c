"""How long a cell may take before it counts as hung: ``limits.toml``, read."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Final

from devices._toml import tomllib

#: Seconds that an item has outside of its cells, however short their time is set.
OUTSIDE: Final = 60.0
_FILE: Final = Path(__file__).with_name("limits.toml")


@cache
def _table() -> Mapping[str, Any]:
    table: dict[str, Any] = tomllib.loads(_FILE.read_text(encoding="utf-8"))
    return table


@dataclass(frozen=True, slots=True)
class Limits:
    """Seconds that a cell of a clause may take: ``seconds`` times the clause's factor."""

    seconds: float
    factors: tuple[tuple[str, float], ...] = ()  # exact names, or prefixes that end in *

    def of(self, clause: str) -> float:
        """Seconds. Of the patterns that match the longest counts; an empty clause is an item outside of its
        cells, which draws samples and reads files, and has a minute at least."""
        if not clause:
            return max(self.seconds, OUTSIDE)
        found = 1.0
        longest = -1
        for pattern, factor in self.factors:
            matches = (
                clause.startswith(pattern[:-1]) if pattern.endswith("*") else clause == pattern
            )
            if matches and len(pattern) > longest:
                found, longest = factor, len(pattern)
        return self.seconds * found


def limits_for(plan: str, scale: float, override: float | None = None) -> Limits:
    """The limits of a plan on a device that takes ``scale`` times as long. ``override`` (seconds) replaces
    the plan's, factors and scale included."""
    if override is not None:
        return Limits(override)
    table = _table()
    seconds = table["seconds"]
    base = float(seconds.get(plan, max(seconds.values())))
    return Limits(base * scale, tuple((name, float(f)) for name, f in table["factors"].items()))
