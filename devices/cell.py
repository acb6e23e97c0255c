"""What is planned, run, expected and reported: a cell, its outcome, and the verdict on it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import msgspec

from devices.failure import Failure, Word


class CellKey(NamedTuple):
    """The identity of a cell: clause x op x dtype.

    Clauses that are not about single ops put the name of their case in ``op`` and leave ``dtype`` empty.
    """

    clause: str
    op: str
    dtype: str

    def __str__(self) -> str:
        name = f"{self.op}[{self.dtype}]" if self.dtype else self.op
        return f"{self.clause}::{name}"

    @classmethod
    def parse(cls, text: str) -> CellKey:
        """Read ``clause::op[dtype]`` back. Raises ValueError where the text has another form."""
        clause, separator, rest = text.partition("::")
        if not separator or not clause or not rest:
            raise ValueError(f"expected a cell such as 'layout.values::add[float32]', got {text!r}")
        if rest.endswith("]") and "[" in rest:
            op, _, dtype = rest[:-1].rpartition("[")
            return cls(clause, op, dtype)
        return cls(clause, rest, "")


class CallKey(NamedTuple):
    """The identity of a call in a cell: the sample's number, and the layout of its inputs."""

    sample: int
    layout: str

    def __str__(self) -> str:
        return f"{self.sample}/{self.layout}"


class Outcome(Word):
    """What became of a cell when it was run."""

    PASS = "pass"
    FAIL = "fail"
    ERROR = "error"  # the check itself could not be made, or nothing was checked: our mistake
    BLOCKED = "blocked"  # the device made the check impossible: another clause must hold first
    UNSUPPORTED = "unsupported"  # raised NotImplementedError, or a declared refusal
    AMBIGUOUS = "ambiguous-reference"  # the references differ, and the device equals neither
    CRASH = "crash"
    HANG = "hang"
    NOT_RUN = "not-run"


class Verdict(Word):
    """The outcome of a cell held against what the manifest expects of it."""

    OK = "ok"
    EXPECTED = "expected"
    REGRESSION = "regression"
    IMPROVEMENT = "improvement"
    FLAKY = "flaky"
    MISSING = "missing"  # planned, and without an outcome


@dataclass(frozen=True, slots=True)
class Observed:
    """What was seen of one cell.

    ``layouts`` are the stable ids of the layouts that failed (empty where the clause has none),
    ``raises`` the name of the exception type that decided the outcome, if one did, and ``said`` its
    text, in the device's own words; None where only ``message`` is known, which is the text of the
    report. ``declared`` says of an unsupported cell that nothing was tried, because the descriptor
    does not declare what its clause requires.
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
    """A public bug of another device that showed in such a cell."""

    reference: str  # "pytorch#139006"
    backend: str
    url: str

    def __str__(self) -> str:
        return f"{self.reference} on {self.backend}"


def told(seen: Sequence[Seen]) -> str:
    """Bugs in a line: the first three, and how many more there are."""
    more = f" and {len(seen) - 3} more" if len(seen) > 3 else ""
    return ", ".join(map(str, seen[:3])) + more


#: Where a NaN is found and a number expected, or the other way round: records hold no infinities.
MOST_ULPS: Final = 1e300


class CellFacts(msgspec.Struct, frozen=True, kw_only=True):
    """What was seen in a cell: the fields that a worker reports and that the record keeps, listed once.

    ``checks`` counts executed comparisons, ``samples`` the inputs that they were made on. ``layouts`` are the ids of
    the layouts that failed, ``ran_layouts`` of those that ran, both sorted. ``worst_error`` is the largest absolute
    difference seen, None if nothing was compared by value. ``ulps`` is the largest error in units in the last place of
    the result, of a passing cell too, and ``ulps_at`` the operands; None if none was measured. ``reached`` counts the pairs
    of instructions and the states that the drawn programs of a case reached. ``failure`` is the failure that is shown, of ``failed``
    failing checks; ``also`` are failures of other kinds, one of each. ``note`` says why a cell is unsupported or an error, or what else is worth reporting. ``raises`` is
    the type of the exception that decided the outcome, ``said`` its text, in the device's own words, for a cell
    without a failure. ``blocked_by`` is the clause that must hold before a blocked cell can be judged. ``repro`` is a
    path in the results folder. ``seen`` are public bugs of other devices that showed in such a cell. ``seconds`` is wall
    time.
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
        """The text of a report: the failure, its layout and how many checks failed; then the note."""
        failure = self.failure.report(self.failed, self.checks) if self.failure is not None else ""
        return "; ".join(text for text in (failure, self.note) if text)

    def observed_as(self, outcome: Outcome, declared: bool) -> Observed:
        """What a manifest is held against."""
        said = self.said if self.failure is None else self.failure.said or ""
        layouts = frozenset(self.layouts)
        return Observed(outcome, layouts, self.raises, self.message, declared, said)

    def facts(self) -> dict[str, Any]:
        """These fields by name, to make another struct that has them."""
        return {name: getattr(self, name) for name in CellFacts.__struct_fields__}


class CellOutcome(CellFacts, frozen=True, kw_only=True, omit_defaults=True):
    """What became of a cell in a worker: the data that flows from there to the session.

    ``call`` is the call that ended the cell's process, if it is known; ``judged`` says that it had returned, and that its
    answer was judged. ``script`` is the text of the repro, if it came
    from a worker on another machine. ``others`` are the other runs of a flaky cell.
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
        """The part of it that a manifest is held against."""
        return self.observed_as(self.outcome, self.declared)
