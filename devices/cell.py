"""A cell, its outcome and the verdict on it: the data that plans, runs, manifests and reports share."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import msgspec

from devices.failure import Failure, Word


class CellKey(NamedTuple):
    """The identity of a cell: clause, op and dtype.

    For clauses that are not about single ops, ``op`` is the name of a case and ``dtype`` is empty.
    """

    clause: str
    op: str
    dtype: str

    def __str__(self) -> str:
        name = f"{self.op}[{self.dtype}]" if self.dtype else self.op
        return f"{self.clause}::{name}"

    @classmethod
    def parse(cls, text: str) -> CellKey:
        """Parse ``clause::op[dtype]``. Raises ValueError for a text of another form."""
        clause, separator, rest = text.partition("::")
        if not separator or not clause or not rest:
            raise ValueError(f"expected a cell such as 'layout.values::add[float32]', got {text!r}")
        if rest.endswith("]") and "[" in rest:
            op, _, dtype = rest[:-1].rpartition("[")
            return cls(clause, op, dtype)
        return cls(clause, rest, "")


class CallKey(NamedTuple):
    """The identity of a call in a cell: the number of the sample, and the layout of its inputs."""

    sample: int
    layout: str

    def __str__(self) -> str:
        return f"{self.sample}/{self.layout}"


class Outcome(Word):
    """How a cell ended in a run."""

    PASS = "pass"
    FAIL = "fail"
    ERROR = "error"  # the check itself failed, or nothing was checked: a mistake of this suite
    BLOCKED = "blocked"  # the device made the check impossible: another clause must pass first
    UNSUPPORTED = "unsupported"  # raised NotImplementedError, or another exception that the contract allows for this
    AMBIGUOUS = "ambiguous-reference"  # the references differ, and the device equals neither
    CRASH = "crash"
    HANG = "hang"
    NOT_RUN = "not-run"


class Verdict(Word):
    """The outcome of a cell, compared with what the manifest expects."""

    OK = "ok"
    EXPECTED = "expected"
    REGRESSION = "regression"
    IMPROVEMENT = "improvement"
    FLAKY = "flaky"
    MISSING = "missing"  # planned, but has no outcome


@dataclass(frozen=True, slots=True)
class Observed:
    """What was observed of a cell, as manifests compare it.

    ``layouts`` are the ids of the layouts that failed (empty if the clause has none). ``raises`` is the type of the
    exception that decided the outcome, if there was one, and ``said`` its text; None if only ``message``, the text of
    the report, is known. ``declared`` marks an unsupported cell that was not tried, because the descriptor does not
    declare what its clause requires.
    """

    outcome: Outcome
    layouts: frozenset[str] = frozenset()
    raises: str | None = None
    message: str = ""
    declared: bool = False
    said: str | None = None

    @property
    def headline(self) -> str:
        """The first line of the message, shortened."""
        line = self.message.strip().partition("\n")[0]
        return line if len(line) <= 120 else f"{line[:117]}..."


class Seen(NamedTuple):
    """A public bug of another device that cells like this one detect."""

    reference: str  # "pytorch#139006"
    backend: str
    url: str

    def __str__(self) -> str:
        return f"{self.reference} on {self.backend}"


def told(seen: Sequence[Seen]) -> str:
    """The bugs in one line: the first three, and how many more there are."""
    more = f" and {len(seen) - 3} more" if len(seen) > 3 else ""
    return ", ".join(map(str, seen[:3])) + more


#: The error if one of the result and the reference is NaN. A finite number, because records contain no infinities.
MOST_ULPS: Final = 1e300


class CellFacts(msgspec.Struct, frozen=True, kw_only=True):
    """What was observed in a cell: the fields that a worker reports and that the record stores.

    ``checks`` counts executed comparisons, ``samples`` the inputs that they were made on. ``layouts`` are the ids of
    the layouts that failed and ``ran_layouts`` of those that ran, both sorted. ``worst_error`` is the largest absolute
    difference, None if no values were compared. ``ulps`` is the largest error in units in the last place of the result,
    also in passing cells, and ``ulps_at`` the operands there; None if it was not measured. ``reached`` counts the pairs
    of instructions and the states that the random programs of a case reached. ``failure`` is the failure to show, of
    ``failed`` failing checks; ``also`` has one failure of each other kind. ``note`` says why a cell is unsupported or
    an error, or adds a remark. ``raises`` is the type of the exception that decided the outcome, and ``said`` its text
    for a cell without a failure. ``blocked_by`` is the clause that must pass before a blocked cell can be checked.
    ``repro`` is a path in the results folder. ``seen`` are public bugs of other devices that cells like this one
    detect. ``seconds`` is wall time.
    """

    checks: int = 0
    samples: int = 0
    layouts: tuple[str, ...] = ()
    ran_layouts: tuple[str, ...] = ()
    worst_error: float | None = None
    ulps: float | None = None
    ulps_at: str = ""
    reached: str = ""
    raises: str | None = None
    failure: Failure | None = None
    failed: int = 0
    also: tuple[Failure, ...] = ()
    note: str = ""
    said: str | None = None
    blocked_by: str = ""
    repro: str | None = None
    seen: tuple[Seen, ...] = ()
    seconds: float = 0.0
    worker: str = ""

    @property
    def message(self) -> str:
        """The text for a report: the failure with its layout and the number of failing checks, then the note."""
        failure = self.failure.report(self.failed, self.checks) if self.failure is not None else ""
        return "; ".join(text for text in (failure, self.note) if text)

    def observed_as(self, outcome: Outcome, declared: bool) -> Observed:
        """The part of these facts that a manifest compares."""
        said = self.said if self.failure is None else self.failure.said or ""
        layouts = frozenset(self.layouts)
        return Observed(outcome, layouts, self.raises, self.message, declared, said)

    def facts(self) -> dict[str, Any]:
        """These fields by name, to create another struct with the same fields."""
        return {name: getattr(self, name) for name in CellFacts.__struct_fields__}


class CellOutcome(CellFacts, frozen=True, kw_only=True, omit_defaults=True):
    """The outcome of a cell in a worker, as the worker sends it to the session.

    ``call`` is the call that ended the cell's process, if known; ``judged`` says that the call had returned and its
    answer had been checked. ``script`` is the text of the repro script if it comes from a worker on another machine.
    ``others`` are the other runs of a flaky cell.
    """

    cell: CellKey
    outcome: Outcome
    declared: bool = False
    call: CallKey | None = None
    judged: bool = False
    script: str | None = None
    others: tuple[Observed, ...] = ()

    @property
    def observed(self) -> Observed:
        """The part of the outcome that a manifest compares."""
        return self.observed_as(self.outcome, self.declared)
