"""Measures which aten overloads the verdicts of the suite depend on. It separates the calls that are judged from
everything else that the checks of an op call, and follows the results of the judged calls to the judges that read
them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from fnmatch import fnmatchcase
from functools import cache, wraps
from typing import Any, Final

import torch
from torch.utils._pytree import tree_leaves

from conformance.checks.call_hooks import Guard
from conformance.checks.cells import CellRecord
from conformance.checks.ops.modes import Mode
from conformance.coverage.call_map import judged_by
from conformance.coverage.dataflow import LoggedCall, used
from conformance.coverage.observer import Observer
from devices.cell import CallKey

_SPACE: Final = "aten::"

#: Marks in the observer's log: a call whose result is judged begins, the function under test begins and ends, it returned
#: no tensor, and judging begins.
_CALL, _FUNCTION, _RETURNED, _NUMBER, _JUDGING = "call", "function", "returned", "number", "judging"


class Noted(Guard):
    """A guard for the checks of an op that marks in the observer's log when a call begins whose result is judged, when
    its result is judged, and when anything else is done. The observer must be switched on.

    ``judged`` maps each clause to the overloads that the judged calls called and whose results the judges read,
    directly or through the results of other calls. ``reached`` has the overloads that were called otherwise.
    """

    def __init__(self, observer: Observer) -> None:
        self.judged: dict[str, set[str]] = {}
        self.reached: set[str] = set()
        self._observer = observer
        self._clauses: list[str] = []  # that judged the result of the current call

    def begin(
        self, group: Sequence[str], records: Sequence[CellRecord], at_least: float = 0.0
    ) -> None:
        self._settle()

    def call(self, call: CallKey, clauses: Collection[str] = ()) -> bool:
        self._settle()
        if clauses:
            self._observer.mark(_CALL)
        return True

    def judging(self, clause: str) -> None:
        self._observer.mark(_JUDGING)
        self._clauses.append(clause)

    def end(self) -> None:
        self._settle()

    def _settle(self) -> None:
        """Evaluates the observer's log of the latest judged call, and adds its overloads to ``judged`` and ``reached``.
        It is called when the next call begins, because then everything that reads the result is in the log."""
        log = self._observer.take()
        judged = {each for each in judged_calls(log) if sets_values(each)}
        for clause in self._clauses:
            self.judged.setdefault(clause, set()).update(judged)
        self.reached.update(
            each.overload
            for each in log
            if each.overload.startswith(_SPACE) and not (self._clauses and each.overload in judged)
        )
        self._clauses = []

    def noted(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Returns a function that calls ``function`` and marks the beginning and the end of this call in the observer's
        log, so that the calls in between count as judged."""

        @wraps(function, updated=())
        def call(*args: Any, **kwargs: Any) -> Any:
            self._observer.mark(_FUNCTION)
            try:
                found = function(*args, **kwargs)
                if not any(isinstance(each, torch.Tensor) for each in tree_leaves(found)):
                    self._observer.mark(_NUMBER)
                return found
            finally:
                self._observer.mark(_RETURNED)

        return call

    @property
    def mode(self) -> Mode:
        """The mode in which the checks make the judged calls, so that these are marked in the log."""
        return Mode("noted", self.noted)


def judged_calls(log: Sequence[LoggedCall]) -> set[str]:
    """Returns the overloads of aten in the log that the function under test or its backward pass called, and whose
    results were used afterwards."""
    judged, depth, number = False, 0, False
    calls: list[LoggedCall] = []
    under_test: list[bool] = []
    for each in log:
        if each.overload:
            calls.append(each)
            under_test.append(judged and (depth > 0 or each.in_backward))
        elif each.mark in (_CALL, _JUDGING):
            judged = each.mark == _CALL
        elif each.mark == _NUMBER:
            number = True
        else:
            depth += 1 if each.mark == _FUNCTION else -1
    found = used(calls, under_test, number=number)
    return {each.overload for each in found if each.overload.startswith(_SPACE)}


@cache
def sets_values(overload: str) -> bool:
    """Returns False for an overload whose result may have any values, such as ``aten::empty.memory_layout``, so that no
    check can find its values wrong."""
    return not any(fnmatchcase(overload, glob) for glob in judged_by().values_free)
