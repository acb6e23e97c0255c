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

#: The beginning of the name of a call that is made on the CPU, with the arguments of a call that ended a process.
_ON_CPU: Final = "on the CPU: "


def on_cpu(call: CallKey) -> CallKey:
    """Returns the name of the call that is made on the CPU with the arguments of ``call``."""
    return CallKey(call.sample, f"{_ON_CPU}{call.layout}")


def is_on_cpu(call: CallKey) -> bool:
    """Returns True if ``call`` names a call on the CPU (see ``on_cpu``)."""
    return call.layout.startswith(_ON_CPU)


def allows(only: CallKey, call: CallKey) -> bool:
    """Returns True if ``call`` is ``only``, the one call that may be made, or a call that must be made before it."""
    before = call.layout == INPUTS or (call.layout == FUNCTION and call.sample == only.sample)
    return call in (only, on_cpu(only)) or before


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

    def first_on_cpu(self, call: CallKey, clauses: Collection[str] = ()) -> bool:
        """Returns True if the arguments of this call must be tried on the CPU before the call is made. This is so if the
        call ended a process, and is made again alone: if the CPU dies of the same arguments, the device is not to blame
        for the end of the process. ``call`` must be called again after the trial."""
        return False

    def judging(self, clause: str) -> None:
        """Marks the beginning of judging the result of the call for a clause. Judging may read from the device."""

    def end(self) -> None:
        """Marks the end of the group."""


UNWATCHED: Final = Guard()
