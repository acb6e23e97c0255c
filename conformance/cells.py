"""Recording what happens in cells: each executed comparison, each failure, and the outcome they add up to."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from devices.cell import CellKey, Outcome

#: Failures kept for one cell; all are counted.
KEPT = 50

#: How the message of a cell begins that passed with something to report.
NOTED = "noted: "


@dataclass(frozen=True, slots=True)
class Failure:
    """One comparison that did not hold. ``repro`` writes a script of its own when asked."""

    layout: str
    message: str
    error: float | None = None  # largest absolute difference
    raises: str | None = None  # exception type that decided it
    size: int = 0  # elements of the inputs: the smallest failure is shown
    repro: Callable[[], str] | None = None


@dataclass(slots=True)
class CellRecord:
    """What was done in one cell so far."""

    key: CellKey
    checks: int = 0
    samples: set[int] = field(default_factory=set)
    ran: set[str] = field(default_factory=set)
    failing: set[str] = field(default_factory=set)
    failures: list[Failure] = field(default_factory=list)
    failed: int = 0
    ambiguous: list[str] = field(default_factory=list)
    unsupported: list[tuple[str, str]] = field(default_factory=list)  # exception type, message
    errors: list[str] = field(default_factory=list)
    unbuilt: list[str] = field(default_factory=list)  # pinned examples that could not be made
    notes: list[str] = field(default_factory=list)  # what a report says of a cell that passes
    undeclared: str = ""  # the capabilities that the clause requires and the descriptor lacks
    untried: str = ""  # why the case takes more than the descriptor declares or the machine has
    seconds: float = 0.0

    def check(self, sample: int, layout: str, count: int = 1) -> None:
        """Note an executed comparison."""
        self.checks += count
        self.samples.add(sample)
        self.ran.add(layout)

    def count(self, checks: int) -> None:
        """Note executed comparisons that are of no sample and in no layout."""
        self.checks += checks

    def fail(self, failure: Failure) -> None:
        self.failed += 1
        if failure.layout:
            self.failing.add(failure.layout)
        if len(self.failures) < KEPT:
            self.failures.append(failure)

    def refuse(self, exc: BaseException) -> None:
        """The device said that it does not implement this."""
        self.unsupported.append((type(exc).__name__, str(exc)))

    def error(self, text: str) -> None:
        """The check itself could not be made."""
        self.errors.append(text)

    def note(self, text: str) -> None:
        """What is worth reporting and breaks no clause: shown of a cell that passes."""
        if text not in self.notes:
            self.notes.append(text)

    @property
    def troubles(self) -> int:
        """Failures and errors so far: what makes one ask whether the device still lives."""
        return self.failed + len(self.errors)

    @property
    def smallest(self) -> Failure | None:
        """The failure to show: fewest elements, then the simplest layout (the shortest name)."""
        return min(self.failures, key=lambda f: (f.size, len(f.layout)), default=None)

    @property
    def declared(self) -> bool:
        """Whether nothing was tried, by declaration or for want of a second device."""
        return bool(self.undeclared or self.untried)

    def outcome(self) -> Outcome:
        """What the descriptor does not declare first; then what was pinned and is no longer checked, so
        that no expected failure hides it; then failures. A cell with no executed check is never a pass."""
        if self.declared:
            return Outcome.UNSUPPORTED
        if self.unbuilt:
            return Outcome.ERROR
        if self.failures:
            return Outcome.FAIL
        if self.errors:
            return Outcome.ERROR
        if self.unsupported:
            return Outcome.UNSUPPORTED
        if self.ambiguous:
            return Outcome.AMBIGUOUS
        return Outcome.PASS if self.checks else Outcome.ERROR

    def message(self) -> str:
        """One text for the report."""
        if self.undeclared:
            return f"by declaration: the descriptor does not declare {self.undeclared}"
        if self.untried:
            return self.untried
        if self.unbuilt:
            return "; ".join(self.unbuilt)
        if (shown := self.smallest) is not None:
            more = f" ({self.failed} failing checks of {self.checks})" if self.failed > 1 else ""
            where = f"[{shown.layout}] " if shown.layout else ""
            return f"{where}{shown.message}{more}"
        if self.errors:
            return self.errors[0]
        if self.unsupported:
            return ": ".join(self.unsupported[0])
        if self.ambiguous:
            return self.ambiguous[0]
        if not self.checks:
            return "no check was executed: a pass that checked nothing is an error"
        return f"{NOTED}{'; '.join(self.notes)}" if self.notes else ""

    def document(self) -> dict[str, Any]:
        """Plain data that crosses a process boundary."""
        shown = self.smallest
        outcome = self.outcome()
        raises = shown.raises if shown else None
        if outcome is Outcome.UNSUPPORTED and not self.declared:
            raises = self.unsupported[0][0]
        errors = [f.error for f in self.failures if f.error is not None]
        return {
            "cell": list(self.key),
            "outcome": outcome.value,
            "declared": self.declared,
            "checks": self.checks,
            "samples": len(self.samples),
            "layouts": sorted(self.failing),
            "ran": sorted(self.ran),
            "worst_error": max(errors, default=None),
            "raises": raises,
            "message": self.message(),
            "seconds": round(self.seconds, 6),
        }


class Recorder:
    """The cells of one item (op, dtype, suite). Clauses that were not selected have no record.

    ``undeclared`` names, by clause, the capabilities that it requires and the device does not
    declare, ``untried`` why it is not tried otherwise: no check is given the records of those
    clauses, so nothing is tried.
    """

    def __init__(
        self,
        op: str,
        dtype: str,
        clauses: Iterable[str],
        undeclared: Mapping[str, str] = MappingProxyType({}),
        untried: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        self.cells = {
            c: CellRecord(
                CellKey(c, op, dtype), undeclared=undeclared.get(c, ""), untried=untried.get(c, "")
            )
            for c in clauses
        }
        self._tried = {c: record for c, record in self.cells.items() if not record.declared}

    def get(self, clause: str) -> CellRecord | None:
        return self._tried.get(clause)

    def __contains__(self, clause: str) -> bool:
        return clause in self._tried

    def __bool__(self) -> bool:
        """Whether there is anything to try."""
        return bool(self._tried)
