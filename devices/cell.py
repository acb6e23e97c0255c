"""Cells, their outcomes and their verdicts: the data that plans, runs, manifests and reports share."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from sys import intern
from typing import Any, Final, NamedTuple

import msgspec

from devices.failure import Failure, Word


class CellKey(NamedTuple):
    """The identity of a cell: clause, unit, dtype and variant.

    ``unit`` names the thing on which the clause is checked: an op, or a case of the clause. The cell of a case has an
    empty ``dtype``. ``variant`` says in which way the unit is executed, such as ``compiled`` or ``4 ranks``, if there
    is a cell for each of several ways. Most cells have an empty ``variant``.
    """

    clause: str
    unit: str
    dtype: str
    variant: str = ""

    def __str__(self) -> str:
        return f"{self.clause}::{self.name}"

    @property
    def name(self) -> str:
        """The name of the cell within its clause, such as ``add[float32]``, ``add[float32]@compiled``, ``a_case`` or
        ``a_case@4 ranks``."""
        name = f"{self.unit}[{self.dtype}]" if self.dtype else self.unit
        return f"{name}@{self.variant}" if self.variant else name

    @property
    def is_case(self) -> bool:
        """True if the cell is about a case of the clause, False if it is about an op. Only the cells of ops have a
        dtype."""
        return not self.dtype

    @property
    def kind(self) -> str:
        """The dtype and the variant as one text, as records and the dashboard store them: ``float32``,
        ``float32@compiled``, ``@4 ranks``, or an empty text."""
        return f"{self.dtype}@{self.variant}" if self.variant else self.dtype

    def as_data(self) -> dict[str, str]:
        """Returns the cell as JSON documents state it: ``clause``, ``op`` (the name of the op or case), ``dtype``,
        and ``variant`` if the cell has one."""
        data = {"clause": self.clause, "op": self.unit, "dtype": self.dtype}
        return {**data, "variant": self.variant} if self.variant else data

    @classmethod
    def of_kind(cls, clause: str, unit: str, kind: str) -> CellKey:
        """Returns the cell of a clause and a unit (an op or case) with the dtype and variant that ``kind`` states, a
        text such as ``float32@compiled``."""
        dtype, _, variant = kind.partition("@")
        return cls(clause, unit, intern(dtype), intern(variant))

    @classmethod
    def parse(cls, text: str) -> CellKey:
        """Returns the cell that a text names: ``clause::op[dtype]`` or ``clause::case``, with ``@variant`` at the end
        if the cell has a variant. Raises ValueError if the text has another form."""
        clause, separator, rest = text.partition("::")
        rest, at, variant = rest.partition("@")
        if not separator or not clause or not rest or (at and not variant):
            raise ValueError(f"expected a cell such as 'layout.values::add[float32]', got {text!r}")
        if rest.endswith("]") and "[" in rest:
            unit, _, dtype = rest[:-1].rpartition("[")
            return cls(clause, unit, dtype, variant)
        return cls(clause, rest, "", variant)


class CallKey(NamedTuple):
    """The identity of a call in a cell: the number of the sample and the layout of its inputs."""

    sample: int
    layout: str

    def __str__(self) -> str:
        return f"{self.sample}/{self.layout}"


class Outcome(Word):
    """The outcome of running a cell."""

    PASS = "pass"
    FAIL = "fail"
    ERROR = "error"  # the check could not be made, or nothing was checked: a mistake of the suite
    BLOCKED = "blocked"  # the device made the check impossible: it fails another clause first
    UNSUPPORTED = "unsupported"  # the device raised NotImplementedError, or does not declare it
    AMBIGUOUS = "ambiguous-reference"  # the references differ, and the device equals neither
    CRASH = "crash"
    HANG = "hang"
    NOT_RUN = "not-run"


class Verdict(Word):
    """The result of comparing the outcome of a cell with the outcome that the manifest expects."""

    OK = "ok"
    EXPECTED = "expected"
    REGRESSION = "regression"
    IMPROVEMENT = "improvement"
    FLAKY = "flaky"
    MISSING = "missing"  # planned, but without an outcome


@dataclass(frozen=True, slots=True)
class Observed:
    """The observation of one cell: the facts about its outcome that are compared with a manifest.

    ``layouts`` are the stable ids of the layouts that failed; the set is empty if the clause has no layouts. ``raises``
    is the name of the exception type that decided the outcome, if there was one. ``said`` is the message of
    that exception as the device wrote it, or None if only ``message``, the text of the report, is known. ``declared``
    is True for an unsupported cell that was not tried, either because the descriptor does not declare a capability that
    the clause requires, or because the machine has too few devices. ``rest`` is the observation of the other checks of
    a cell that ended its process, or None if no other check of the cell is known.
    """

    outcome: Outcome
    layouts: frozenset[str] = frozenset()
    raises: str | None = None
    message: str = ""
    declared: bool = False
    said: str | None = None
    rest: Observed | None = None

    @property
    def is_end(self) -> bool:
        """True if the cell ended its process: it crashed or did not return."""
        return self.outcome in (Outcome.CRASH, Outcome.HANG)

    @property
    def headline(self) -> str:
        """The first line of the message, shortened."""
        line = self.message.strip().partition("\n")[0]
        return line if len(line) <= 120 else f"{line[:117]}..."


class Seen(NamedTuple):
    """A publicly reported bug of another device that also occurs in a cell of the tested device."""

    reference: str  # "pytorch#139006"
    backend: str
    url: str

    def __str__(self) -> str:
        return f"{self.reference} on {self.backend}"


class Use(NamedTuple):
    """How many of the public models whose training steps were recorded call an op."""

    models: int
    of: int

    def __str__(self) -> str:
        return f"{self.models:,} of {self.of:,} models"


def list_bugs(seen: Sequence[Seen]) -> str:
    """Returns a line with the first three of the given bugs, and the number of further bugs."""
    more = f" and {len(seen) - 3} more" if len(seen) > 3 else ""
    return ", ".join(map(str, seen[:3])) + more


#: The error in ulps if only one of result and reference is NaN. (Records cannot hold infinities.)
MOST_ULPS: Final = 1e300


class OtherChecks(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The result of a cell's other checks: if a cell ended its process, the cell ran again without the calls that end
    the process, and these are the checks of that second run.

    ``outcome`` is the outcome that the cell would have without these calls. ``left_out`` is the number of calls that
    are known to end the process. ``skipped`` is the number of further calls that were not made, because they are
    like calls that end the process, or because too many calls of the cell do. ``layouts``, ``raises``, ``failure``,
    ``failed``, ``also``, ``note``, ``said``, ``blocked_by`` and ``repro`` have the same meaning as in ``CellFacts``.
    ``ended`` and ``verdict`` are the verdict on the end of the process alone and the verdict on the other checks
    alone; they are None until the cell is judged.
    """

    outcome: Outcome
    left_out: int = 0
    skipped: int = 0
    layouts: tuple[str, ...] = ()
    raises: str | None = None
    failure: Failure | None = None
    failed: int = 0
    also: tuple[Failure, ...] = ()
    note: str = ""
    said: str | None = None
    blocked_by: str = ""
    repro: str | None = None
    ended: Verdict | None = None
    verdict: Verdict | None = None

    @property
    def message(self) -> str:
        """The failure with its layout, then the note; empty if all checks passed without a remark."""
        failure = self.failure.report(0, 0) if self.failure is not None else ""
        return "; ".join(text for text in (failure, self.note) if text)

    def describe(self, checks: int) -> str:
        """Returns a phrase for a report about the checks that the cell made without the calls that end its process,
        such as "2 of 7 other checks fail: …". ``checks`` is the number of checks that were executed then."""
        if self.outcome is Outcome.FAIL:
            of = f"{self.failed} of {checks}" if checks else f"{self.failed}"
            one = "fails" if self.failed == 1 else "fail"
            text = f"{of} other checks {one}: {self.message}"
        elif self.outcome is Outcome.PASS:
            text = "the only other check passes" if checks == 1 else f"{checks} other checks pass"
        else:
            text = f"the other checks end with the outcome '{self.outcome}': {self.message}"
        if not self.skipped:
            return text
        calls = "1 more call was" if self.skipped == 1 else f"{self.skipped} more calls were"
        return f"{text} ({calls} not made, because too many calls like {'it' if self.skipped == 1 else 'them'} end the process)"

    @property
    def observed(self) -> Observed:
        """The observation of the other checks (those that the cell makes without the calls that end its process), in
        the form that is compared with a manifest."""
        said = self.said if self.failure is None else self.failure.said or ""
        return Observed(self.outcome, frozenset(self.layouts), self.raises, self.message, said=said)


class CellFacts(msgspec.Struct, frozen=True, kw_only=True):
    """The facts about a cell that a worker reports and that the record of a run stores.

    ``checks`` counts executed comparisons, ``samples`` the inputs on which they were made. ``layouts`` are the ids of
    the layouts that failed, ``ran_layouts`` the ids of the layouts that ran, both sorted. ``worst_error`` is the
    largest absolute difference, or None if nothing was compared by value. ``ulps`` is the largest error in units in the
    last place, measured in passing cells too, or None if no error was measured; ``ulps_at`` has the operands at which
    that error occurred. ``reached`` counts the pairs of instructions and the states that the random programs of a case
    covered. ``failure`` is the failure that reports show; ``failed`` is the number of failing checks. ``also`` has further
    failures that differ from ``failure`` in kind, exception or check. ``note`` is the reason why a cell is unsupported
    or could not be checked, or a remark. ``raises`` is the type of the exception that decided the outcome; ``said`` is
    the message of that exception as the device wrote it, and is set only if the cell has no failure. ``blocked_by`` is
    the clause that must pass before a blocked cell can be checked. ``repro`` is a path in the results folder. ``seen``
    are publicly known bugs of other devices that this cell shows too. ``called_by`` says how many public models call the
    op of a cell that did not pass, or is None. ``on_cpu`` is the reason of the CPU's manifest if torch's CPU fails in the
    same way. ``seconds`` is wall time. ``rest`` is the result of the other checks of a
    cell that ended its process, or None if no other check of the cell is known; ``checks``, ``samples``,
    ``ran_layouts`` and the errors of such a cell are those of its other checks.
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
    called_by: Use | None = None
    on_cpu: str = ""
    seconds: float = 0.0
    worker: str = ""
    rest: OtherChecks | None = None

    @property
    def message(self) -> str:
        """The text of a report: the failure with its layout and the number of failing checks, then the note, then the
        other checks of a cell that ended its process."""
        failure = self.failure.report(self.failed, self.checks) if self.failure is not None else ""
        rest = f"and {self.rest.describe(self.checks)}" if self.rest is not None else ""
        return "; ".join(text for text in (failure, self.note, rest) if text)

    @property
    def failing_layouts(self) -> tuple[str, ...]:
        """The layouts in which a check failed. For a cell that ended its process, the layouts in which its other
        checks failed are included."""
        return self.layouts if self.rest is None else self.rest.layouts

    def observed_as(self, outcome: Outcome, declared: bool) -> Observed:
        """Returns the observation of the cell with the given outcome. A manifest is compared with that observation."""
        said = self.said if self.failure is None else self.failure.said or ""
        layouts = frozenset(self.layouts)
        rest = self.rest.observed if self.rest is not None else None
        return Observed(outcome, layouts, self.raises, self.message, declared, said, rest)

    def facts(self) -> dict[str, Any]:
        """Returns the fields of ``CellFacts`` by name, from which another struct with the same fields can be made."""
        return {name: getattr(self, name) for name in CellFacts.__struct_fields__}


class CellOutcome(CellFacts, frozen=True, kw_only=True, omit_defaults=True):
    """The result of a cell as a worker sends it to the process that collects the results.

    ``call`` is the call that ended the cell's process, if it is known. ``judged`` is True if that call had returned
    and its result was being checked. ``script`` is the text of the repro script if the worker is on another machine.
    ``others`` are the observations of the other runs of a flaky cell.
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
        """The observation of the cell, in the form that is compared with a manifest."""
        return self.observed_as(self.outcome, self.declared)
