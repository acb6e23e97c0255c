"""Records the result of each cell (a clause and an op with a dtype, or a clause and a case): the number of comparisons,
the failures, and the outcome."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from devices.cell import MOST_ULPS, CellKey, CellOutcome, Outcome
from devices.errors import first_line
from devices.failure import Failure, Kind

#: The number of failures kept for one cell. All failures are counted.
KEPT = 50

#: The number of failures of other kinds that are reported for one cell.
ALSO = 3

#: The prefix of the note of a cell that passed with remarks.
NOTED = "noted: "

#: The note of a cell in which nothing was checked and nothing went wrong.
NO_CHECK = "no check was executed; a cell that checked nothing is an error, not a pass"

#: The clauses that judge the values of an op's calls, and its variants (including out=).
VALUES, VARIANTS = "layout.values", "layout.variants"


@dataclass(frozen=True, slots=True)
class Failed:
    """A failure as a cell stores it, with the number of elements of its inputs (reports show the smallest failure) and
    the function that writes its repro script."""

    failure: Failure
    size: int = 0
    repro: Callable[[Failure], str] | None = None
    complete: Callable[[Failure], Failure] | None = None  # adds the text of the call to the failure

    def script(self) -> str:
        """Returns the repro script, whose first lines show the failure; empty if there is none."""
        return self.repro(self.failure) if self.repro is not None else ""

    @property
    def layout(self) -> str:
        return self.failure.layout

    @property
    def message(self) -> str:
        return self.failure.message


@dataclass(frozen=True, slots=True)
class Unread:
    """A call whose result could not be judged, because the call raised or returned wrong values. ``why`` is the reason
    as reports show it; ``by`` is the clause that judges the call."""

    why: str
    by: str = VALUES
    raised: tuple[str, str] | None = None  # type and text of the exception

    @classmethod
    def of(cls, error: BaseException, by: str = VALUES) -> Unread:
        """Builds the record of a call that raised the exception ``error``."""
        kind, text = type(error).__name__, first_line(error)
        return cls(
            f"every call raised an exception; the first was {kind}: {text}", by, (kind, text)
        )


@dataclass(slots=True)
class CellRecord:
    """The results of one cell while its checks run."""

    key: CellKey
    checks: int = 0
    samples: set[int] = field(default_factory=set)
    ran: set[str] = field(default_factory=set)
    failing: set[str] = field(default_factory=set)
    failures: list[Failed] = field(default_factory=list)
    failed: int = 0
    troubles: int = 0  # failures and errors; the device is checked after each new one
    ambiguous: list[str] = field(default_factory=list)
    unsupported: list[tuple[str, str]] = field(default_factory=list)  # exception type, message
    errors: list[str] = field(default_factory=list)
    blocked: list[tuple[str, str]] = field(default_factory=list)  # the blocking clause, and why
    blocking: tuple[str, str] | None = None  # type and text of the first such exception
    unread: Unread | None = None  # the first call that left nothing to judge
    unbuilt: list[str] = field(default_factory=list)  # pinned examples that could not be built
    notes: list[str] = field(default_factory=list)  # remarks that a report shows for a passing cell
    reached: str = ""  # what the drawn programs covered
    undeclared: str = ""  # the capabilities that the clause requires and the descriptor lacks
    untried: str = ""  # why the case takes more than the descriptor declares or the machine has
    seconds: float = 0.0
    ulps: float | None = None  # the largest error that was measured
    ulps_at: str = ""

    def measure(self, ulps: float, at: str) -> None:
        """Keeps the largest error, in units in the last place (ULP), and the operands at which it occurred."""
        if self.ulps is None or ulps > self.ulps:
            self.ulps, self.ulps_at = min(ulps, MOST_ULPS), at

    def check(self, sample: int, layout: str, count: int = 1) -> None:
        self.checks += count
        self.samples.add(sample)
        self.ran.add(layout)

    def count(self, checks: int) -> None:
        """Counts comparisons that belong to no sample and no layout."""
        self.checks += checks

    def fail(self, failed: Failed) -> None:
        self.failed += 1
        self.troubles += 1
        if failed.failure.layout:
            self.failing.add(failed.failure.layout)
        if len(self.failures) < KEPT:
            self.failures.append(failed)

    def refuse(self, exc: BaseException) -> None:
        """Records that the device does not implement the call, which raised ``exc``. Only the first line of the message
        is kept, because torch appends a list of all kernels registered for the op."""
        self.unsupported.append((type(exc).__name__, first_line(exc)))

    def error(self, text: str) -> None:
        """Records that the check itself could not be made, which is an error of this suite and not of the device."""
        self.errors.append(text)
        self.troubles += 1

    def pass_over(self, why: str) -> None:
        """Records that a part of the checks was not tried because the descriptor does not declare what it needs;
        ``why`` says what. If the cell has no checks and no failures yet, the whole cell becomes unsupported."""
        if self.checks or self.failures:
            self.note(why)
        else:
            self.untried = f"by declaration: {why}"

    def pass_over_unless_checked(self, why: str) -> None:
        """Makes the cell unsupported by declaration, for the reason ``why``, if no check was made and nothing
        failed."""
        found = self.checks or self.failures or self.unsupported or self.blocked or self.errors
        if not (found or self.unbuilt or self.ambiguous):
            self.pass_over(why)

    def block(self, by: str, text: str, exc: tuple[str, str] | None = None) -> None:
        """Records that the check could not be made because the device broke the clause ``by``. ``exc`` is the type and
        the text of the exception that the device raised. If ``by`` is the clause of this cell, the cell fails instead.
        """
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
        """The failure to show: the one with the fewest elements, and among those the one with the shortest layout name."""
        return min(self.failures, key=lambda f: (f.size, len(f.failure.layout)), default=None)

    def _also(self, shown: Failed | None) -> tuple[Failure, ...]:
        """Returns up to ALSO failures that differ from the shown one in kind, exception or check."""
        if shown is None:
            return ()
        ways = {_way(failed.failure): failed.failure for failed in reversed(self.failures)}
        ways.pop(_way(shown.failure), None)
        return tuple(list(ways.values())[:ALSO])

    @property
    def declared(self) -> bool:
        """True if no check was tried, because the descriptor does not declare a capability or because the machine has
        too few devices."""
        found = self.checks or self.failures or self.unsupported or self.blocked or self.errors
        return bool(self.undeclared or (self.untried and not found))

    def outcome(self) -> Outcome:
        """Returns the outcome of the cell so far. A cell without an executed check never passes."""
        return self._outcome_and_note()[0]

    def _outcome_and_note(self) -> tuple[Outcome, str]:
        """Returns the outcome and the note that explains it. A reason for not trying the cell comes first, then pinned
        examples that could not be built (an expected failure must not hide these), then failures, which need no note
        because they have messages, and then the other outcomes."""
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
            return Outcome.ERROR, NO_CHECK
        return Outcome.PASS, f"{NOTED}{'; '.join(self.notes)}" if self.notes else ""

    def note(self, text: str) -> None:
        """Adds a remark, which reports show if the cell passes."""
        if text not in self.notes:
            self.notes.append(text)

    def to_outcome(self) -> CellOutcome:
        """Returns the report of the cell that a worker sends to the controller."""
        if (left := self.unread) is not None and not self.checks:
            if left.raised is not None and left.raised[0] == NotImplementedError.__name__:
                self.unsupported.append(left.raised)
            else:
                self.block(left.by, left.why, left.raised)
            self.unread = None  # to_outcome() may be called twice
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
    """The records of the cells of one item (an op, dtype and variant, in one suite). Clauses that were not selected have
    no record.

    ``undeclared`` maps a clause to the capabilities that the clause requires and the device does not declare.
    ``untried`` maps a clause to another reason for not trying the clause. ``get`` returns None for the clauses in
    these two mappings, so no check runs for them.
    """

    def __init__(
        self,
        op: str,
        dtype: str,
        clauses: Iterable[str],
        undeclared: Mapping[str, str] = MappingProxyType({}),
        untried: Mapping[str, str] = MappingProxyType({}),
        variant: str = "",
    ) -> None:
        self.variant = variant
        self.cells = {
            c: CellRecord(
                CellKey(c, op, dtype, variant),
                undeclared=undeclared.get(c, ""),
                untried=untried.get(c, ""),
            )
            for c in clauses
        }
        self._tried = {c: record for c, record in self.cells.items() if not record.declared}

    def get(self, clause: str) -> CellRecord | None:
        return self._tried.get(clause)

    def drop(self, clause: str, why: str) -> None:
        """Makes the cell of a clause untried, for the reason ``why``; ``get`` then returns None for the clause."""
        self._tried.pop(clause).untried = why
