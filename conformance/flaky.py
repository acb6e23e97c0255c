"""Cells that the manifest declares flaky are run again, to hold them to their pass rate. Pure.

A few more runs, and never many: a rate is a floor under what is known to be unreliable, not a statistic.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Final

from devices.cell import Observed, Outcome
from devices.expectations import ExpectedOutcome, Matcher
from devices.matching import Expectation

_FEWEST: Final = 5
_MOST: Final = 20


def is_flaky(expectation: Expectation | None) -> bool:
    """Whether a cell with this expectation is run again."""
    return expectation is not None and expectation.outcome is ExpectedOutcome.FLAKY


def runs_for(rate: float | None) -> int:
    """Runs in all, enough for one failure to be allowed: 10 for a rate of 0.9. Five at least, twenty at most."""
    if rate is None or rate >= 1:
        return _FEWEST
    return min(_MOST, max(_FEWEST, math.ceil(round(1 / (1 - rate), 6))))


def runs_of(matcher: Matcher, cells: Sequence[Any]) -> dict[str, int]:
    """The clauses of these cells that are flaky, with the runs that each takes."""
    found = {}
    for cell in cells:
        expectation = matcher.expect(cell)
        if expectation is not None and is_flaky(expectation):
            found[cell.clause] = runs_for(expectation.min_pass_rate)
    return found


def observed_of(document: Mapping[str, Any]) -> Observed:
    """What a cell's document says was seen."""
    return Observed(
        Outcome(document["outcome"]),
        frozenset(document.get("layouts", ())),
        document.get("raises"),
        document.get("message", ""),
        document.get("declared", False),
    )


def together(documents: Sequence[dict[str, Any]], bad: Sequence[bool]) -> dict[str, Any]:
    """One document for several runs of a cell: the first of them that is ``bad`` by itself, else the first that
    does not pass, so that a report never shows a pass where the rate was missed; with what the others saw."""
    first = next((index for index, wrong in enumerate(bad) if wrong), None)
    if first is None:
        outcomes = [document["outcome"] for document in documents]
        failing = [i for i, outcome in enumerate(outcomes) if outcome != Outcome.PASS.value]
        first = failing[0] if failing else 0
    others = [
        {name: document.get(name) for name in ("outcome", "layouts", "raises", "message")}
        for index, document in enumerate(documents)
        if index != first
    ]
    return {**documents[first], "seen": others}
