"""The interface through which a check reports its progress to the process that runs the check: the clauses that begin,
the next call, and the end of the clauses."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Final

from conformance.checks.cells import CellRecord
from devices.cell import CallKey

#: Names used in place of a layout for the calls that come first for a sample: copying its contiguous inputs to
#: the device, and calling the op's function, with whose result the op's variants are compared.
INPUTS: Final = "inputs"
FUNCTION: Final = "function"


def allows(only: CallKey, call: CallKey) -> bool:
    """Returns True if ``call`` is ``only``, the one call that may be made, or a call that must be made before it."""
    before = call.layout == INPUTS or (call.layout == FUNCTION and call.sample == only.sample)
    return call == only or before


class Guard:
    """The object to which a check reports its progress. This one allows every call and does nothing else; it is used
    outside a run (tests, minimising, exploring). During a run ``conformance.run`` provides a guard that survives
    crashes and hangs."""

    def begin(
        self, group: Sequence[str], records: Sequence[CellRecord], at_least: float = 0.0
    ) -> None:
        """Marks the beginning of a group of clauses that share their calls. ``records`` are the records of the selected
        clauses. If the time limit of the group is lower than ``at_least`` seconds, it is raised to ``at_least``."""

    def call(self, call: CallKey, clauses: Collection[str] = ()) -> bool:
        """Returns True if the group may make this call, whose result is judged for ``clauses`` (by default for all
        clauses of the group). Returns False if the same call crashed or hung its process in an earlier attempt."""
        return True

    def judging(self, clause: str) -> None:
        """Marks the beginning of judging the result of the call for a clause. Judging may read from the device."""

    def end(self) -> None:
        """Marks the end of the group."""


UNWATCHED: Final = Guard()
