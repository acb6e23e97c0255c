"""Recording what happens in cells: each executed comparison, each failure, and the outcome they add up to."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from devices.cell import MOST_ULPS, CellKey, CellOutcome, Outcome
from devices.errors import first_line
from devices.failure import Failure, Kind

#: Failures kept for one cell; all are counted.
KEPT = 50

#: Failures of other kinds that are reported of one cell.
ALSO = 3

#: How the message of a cell begins that passed with something to report.
NOTED = "noted: "

#: The clauses whose cells say what is wrong with the calls of an op, and with those that have ``out=``.
VALUES, VARIANTS = "layout.values", "layout.variants"


@dataclass(frozen=True, slots=True)
class Failed:
    """A failure as a cell keeps it: with the elements of its inputs (the smallest failure is shown), and what
    writes its repro script."""

    failure: Failure
    size: int = 0
    repro: Callable[[], str] | None = None
    complete: Callable[[Failure], Failure] | None = None  # adds its call

    @property
    def layout(self) -> str:
        return self.failure.layout

    @property
    def message(self) -> str:
        return self.failure.message


@dataclass(frozen=True, slots=True)
class Unread:
    """A call that left nothing to judge, as it raised or has the wrong values: ``why``, as reports say it, and which clause
    judges that."""

    why: str
    by: str = VALUES
    raised: tuple[str, str] | None = None  # type and text

    @classmethod
    def of(cls, error: BaseException, by: str = VALUES) -> Unread:
        """A call that raised."""
        kind, text = type(error).__name__, first_line(error)
        return cls(f"every call raised, the first {kind}: {text}", by, (kind, text))


@dataclass(slots=True)
class CellRecord:
    """What was done in one cell so far."""

    key: CellKey
    checks: int = 0
    samples: set[int] = field(default_factory=set)
    ran: set[str] = field(default_factory=set)
    failing: set[str] = field(default_factory=set)
    failures: list[Failed] = field(default_factory=list)
    failed: int = 0
    troubles: int = 0  # failures and errors: after a new one the device is looked at
    ambiguous: list[str] = field(default_factory=list)
    unsupported: list[tuple[str, str]] = field(default_factory=list)  # exception type, message
    errors: list[str] = field(default_factory=list)
    blocked: list[tuple[str, str]] = field(default_factory=list)  # by which clause, and why
    blocking: tuple[str, str] | None = None  # type and text of the first exception that blocked it
    unread: Unread | None = None  # the first call that left nothing to judge
    unbuilt: list[str] = field(default_factory=list)  # pinned examples that could not be made
    notes: list[str] = field(default_factory=list)  # what a report says of a cell that passes
    reached: str = ""  # what the drawn programs reached
    undeclared: str = ""  # the capabilities that the clause requires and the descriptor lacks
    untried: str = ""  # why the case takes more than the descriptor declares or the machine has
    seconds: float = 0.0
    ulps: float | None = None  # the largest error that was measured
    ulps_at: str = ""

    def measure(self, ulps: float, at: str) -> None:
        """Keep the largest error, in units in the last place, and the operands that it was seen at."""
        if self.ulps is None or ulps > self.ulps:
            self.ulps, self.ulps_at = min(ulps, MOST_ULPS), at

    def check(self, sample: int, layout: str, count: int = 1) -> None:
        self.checks += count
        self.samples.add(sample)
        self.ran.add(layout)

    def count(self, checks: int) -> None:
        """Note executed comparisons that are of no sample and in no layout."""
        self.checks += checks

    def fail(self, failed: Failed) -> None:
        self.failed += 1
        self.troubles += 1
        if failed.failure.layout:
            self.failing.add(failed.failure.layout)
        if len(self.failures) < KEPT:
            self.failures.append(failed)

    def refuse(self, exc: BaseException) -> None:
        """The device said that it does not implement this. Of what it said, the first line: torch adds every kernel
        that is registered for the op."""
        self.unsupported.append((type(exc).__name__, first_line(exc)))

    def error(self, text: str) -> None:
        """The check itself could not be made: a mistake of ours."""
        self.errors.append(text)
        self.troubles += 1

    def pass_over(self, why: str) -> None:
        """Something was not tried, by declaration: the whole cell, if nothing else was judged."""
        if self.checks or self.failures:
            self.note(why)
        else:
            self.untried = f"by declaration: {why}"

    def block(self, by: str, text: str, exc: tuple[str, str] | None = None) -> None:
        """The device made the check impossible: the clause ``by`` must hold first. ``exc`` are the type and the text
        of the exception that it raised. A clause that must hold first fails itself."""
        if by == self.key.clause:
            raises, said = exc or (None, None)
            found = Failure(kind=Kind.RAISED, detail=text, raises=raises, said=said)
            self.fail(Failed(found))
            return
        self.blocked.append((by, text))
        self.troubles += 1
        self.blocking = self.blocking or exc

    @property
    def smallest(self) -> Failed | None:
        """The failure to show: fewest elements, then the simplest layout (the shortest name)."""
        return min(self.failures, key=lambda f: (f.size, len(f.failure.layout)), default=None)

    def _also(self, shown: Failed | None) -> tuple[Failure, ...]:
        """One failure of each other way: of another kind, or with another exception."""
        if shown is None:
            return ()
        ways = {_way(failed.failure): failed.failure for failed in reversed(self.failures)}
        ways.pop(_way(shown.failure), None)
        return tuple(list(ways.values())[:ALSO])

    @property
    def declared(self) -> bool:
        """Whether nothing was tried, by declaration or because there is no second device."""
        found = self.checks or self.failures or self.unsupported or self.blocked or self.errors
        return bool(self.undeclared or (self.untried and not found))

    def outcome(self) -> Outcome:
        """The outcome so far. A cell with no executed check is never a pass."""
        return self._outcome_and_note()[0]

    def _outcome_and_note(self) -> tuple[Outcome, str]:
        """What the descriptor does not declare first; then what was pinned and is no longer checked, so
        that no expected failure hides it; then failures, which speak for themselves."""
        if self.undeclared:
            why = f"by declaration: the descriptor does not declare {self.undeclared}"
            return Outcome.UNSUPPORTED, why
        if self.declared:
            return Outcome.UNSUPPORTED, self.untried
        if self.unbuilt:
            return Outcome.ERROR, "; ".join(self.unbuilt)
        if self.failures:
            return Outcome.FAIL, ""
        if self.errors:
            return Outcome.ERROR, self.errors[0]
        if self.blocked:
            return Outcome.BLOCKED, "blocked by {}: {}".format(*self.blocked[0])
        if self.unsupported:
            return Outcome.UNSUPPORTED, ": ".join(self.unsupported[0])
        if self.ambiguous:
            return Outcome.AMBIGUOUS, self.ambiguous[0]
        if not self.checks:
            why = "no check was executed; a cell that checked nothing is an error, not a pass"
            return Outcome.ERROR, why
        return Outcome.PASS, f"{NOTED}{'; '.join(self.notes)}" if self.notes else ""

    def note(self, text: str) -> None:
        """A note that does not fail the clause; shown for a cell that passes."""
        if text not in self.notes:
            self.notes.append(text)

    def told(self) -> CellOutcome:
        """What a worker reports of the cell."""
        if (left := self.unread) is not None and not self.checks:
            if left.raised is not None and left.raised[0] == NotImplementedError.__name__:
                self.unsupported.append(left.raised)
            else:
                self.block(left.by, left.why, left.raised)
            self.unread = None  # a cell may be told twice
        outcome, note = self._outcome_and_note()
        shown = self.smallest if outcome is Outcome.FAIL else None
        failure = shown.failure if shown is not None else None
        if shown is not None and shown.complete is not None:
            failure = shown.complete(shown.failure)
        raises, said = (failure.raises if failure is not None else None), None
        if outcome is Outcome.UNSUPPORTED and not self.declared:
            raises, said = self.unsupported[0]
        if outcome is Outcome.BLOCKED and self.blocking is not None:
            raises, said = self.blocking
        differences = (f.failure.where for f in self.failures)
        errors = [d.error for d in differences if d is not None and d.error is not None]
        return CellOutcome(
            cell=self.key,
            outcome=outcome,
            declared=self.declared,
            checks=self.checks,
            samples=len(self.samples),
            layouts=tuple(sorted(self.failing)),
            ran_layouts=tuple(sorted(self.ran)),
            worst_error=max(errors, default=None),
            ulps=self.ulps,
            ulps_at=self.ulps_at,
            reached=self.reached,
            raises=raises,
            failure=failure,
            failed=self.failed,
            also=self._also(shown),
            note=note,
            said=said,
            blocked_by=self.blocked[0][0] if outcome is Outcome.BLOCKED else "",
            seconds=round(self.seconds, 6),
        )


def _way(failure: Failure) -> tuple[Kind, str | None, str]:
    return failure.kind, failure.raises, failure.check


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
