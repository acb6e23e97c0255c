"""The results of checks: of one attempt at a check, of a function that ran in a subprocess, and of a group of
processes.

Repro scripts contain a copy of this module, so it imports only modules that they contain too.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from conformance.checks.cases.exceptions import (
    Blocked,
    NotDeclared,
    NotInFlight,
    NotShown,
    failure_of,
)
from conformance.checks.child import Ended
from devices.errors import ConformError
from devices.failure import Failure, Kind


@dataclass(slots=True)
class Attempt:
    """The outcome of one attempt at a check. ``checks`` is the number of comparisons made."""

    checks: int = 0
    failure: Failure | None = None
    not_shown: str = ""  # why nothing could be judged
    undeclared: str = ""  # what the check needs and the descriptor does not declare
    blocked_by: str = ""  # the clause that must pass before this check can be made
    too_soon: bool = False  # True if the work finished before it could be observed
    killed: str = (
        ""  # the signal that killed a process of the check, if it may come from outside of the run
    )
    refused: str | None = None  # the message of the device's NotImplementedError
    program: tuple[Any, ...] | None = None  # the drawn program that failed, as Python literals
    notes: Sequence[str] = ()
    reached: str = ""  # what the drawn programs covered, for the report

    @property
    def passes(self) -> bool:
        shown = not self.not_shown and not self.undeclared
        return shown and self.failure is None and self.refused is None

    def end(self, error: BaseException) -> None:
        if isinstance(error, NotDeclared):
            self.undeclared = str(error)
        elif isinstance(error, (NotShown, ConformError)):
            self.not_shown, self.too_soon = str(error), isinstance(error, NotInFlight)
            self.blocked_by = error.by if isinstance(error, Blocked) else ""
        elif isinstance(error, NotImplementedError):
            self.refused = str(error)
        else:
            self.failure = failure_of(error)


@dataclass(slots=True)
class Result(Attempt):
    """The result of a function that ran in a subprocess, and how the process ended."""

    ended: Ended = field(default_factory=lambda: Ended(None))
    answered: bool = False  # the function returned, raised or failed a check
    value: Any = None  # the function's return value
    raised: str = ""  # "Type: message" of an exception that is not a failed check
    rank: int | None = None  # in a group of processes
    behind: bool = False  # the others waited for it when the time was over
    steps: int = 0  # how often it reported progress
    at: float = 0.0  # the time.time() at which the function returned or raised


def group_failure(results: Sequence[Result], lost: Sequence[int] = ()) -> Failure | None:
    """Returns the failure of a group of processes, which names the rank that is to blame: one that died; otherwise one
    that exited without a result; otherwise one whose check failed; otherwise, of those that raised an exception or did
    not finish in time, the one with the least progress. The ranks ``lost`` are expected to die.

    Returns None if every other rank has a result: the case then judges the results, even if some of them are exceptions.
    """
    results = [result for result in results if result.rank not in lost]
    for result in results:
        if result.ended.status not in (None, 0):
            return _ended(result, str(result.ended))
    for result in results:
        if result.ended.well and not result.answered:
            return _ended(result, "exited before its function returned")
    for result in results:
        if result.failure is not None and not result.raised:
            return result.failure.of_rank(result.rank)
    if all(result.answered and result.ended.well for result in results):
        return None
    # The others may wait for a rank that raised, or raise because a rank hangs: both have got further than that rank.
    suspects = [each for each in results if each.raised or each.behind]
    last = min(suspects, key=lambda each: (each.steps, not each.raised, each.at), default=None)
    if last is None:
        return None
    if last.failure is not None:
        return last.failure.of_rank(last.rank)
    return _ended(last, last.ended.how)


def _ended(result: Result, how: str) -> Failure:
    return Failure(kind=Kind.ENDED, detail=f"the process {how}", rank=result.rank)
