"""What a check reports to the process that runs it: which clauses begin, which call is next, and when they are done."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Final

from conformance.checks.cells import CellRecord
from devices.cell import CallKey

#: Name, in the place of a layout, what comes before other calls on a sample: contiguous inputs are put on the device; the
#: function is called that its variants are held against.
INPUTS: Final = "inputs"
FUNCTION: Final = "function"


def allows(only: CallKey, call: CallKey) -> bool:
    """Whether a call is the ``only`` one, or comes before it."""
    before = call.layout == INPUTS or (call.layout == FUNCTION and call.sample == only.sample)
    return call == only or before


class Guard:
    """Does nothing. Used outside of a run (tests, minimising, exploring); in a run,
    ``conformance.run`` provides one that survives crashes and hangs."""

    def begin(
        self, group: Sequence[str], records: Sequence[CellRecord], at_least: float = 0.0
    ) -> None:
        """A group of clauses that share their calls is about to run. ``records`` are the selected ones. They may
        take ``at_least`` this many seconds, even where their limit is lower."""

    def call(self, call: CallKey, clauses: Collection[str] = ()) -> bool:
        """Whether the group may make this call, whose answer is judged for ``clauses`` (for all of the group's where
        none are given). It may not if the call ended a process before."""
        return True

    def judging(self, clause: str) -> None:
        """The answer to the call is about to be judged for this clause, which may read from the device."""

    def done(self) -> None:
        """The group has run."""


UNWATCHED: Final = Guard()
