"""Determines the state of each aten overload on a device: judged, reached (called but not judged), never called, or
missing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable
from enum import Enum
from fnmatch import fnmatchcase
from typing import Final

import msgspec
from msgspec.structs import replace

from conformance.coverage.call_map import MOST_REACHING, CallMap
from conformance.coverage.kernels import is_shared
from conformance.coverage.reasons import reason_for
from devices.cell import Outcome
from reports.model import Run
from reports.weights import Weights

#: Outcomes for which a result of the call was compared.
_COMPARED: Final = frozenset({Outcome.PASS, Outcome.FAIL})


_NOT_IN_RUN: Final = "no cell of the run judged it"


class State(str, Enum):
    """How far the suite tests the kernel of an overload: its results are judged, it is only called (reached), it is
    never called, or the device has no kernel for it (missing)."""

    JUDGED = "judged"
    REACHED = "reached"
    NEVER_CALLED = "never-called"
    MISSING = "missing"

    def __str__(self) -> str:
        return self.value


class Row(msgspec.Struct, frozen=True):
    """An overload and its state on a device.

    ``judged_by`` has the cells, without dtype, whose verdict depends on the overload's results; ``reached_by`` has some
    cells that call it although their verdict does not depend on it. ``models`` and ``calls`` are the numbers of public
    models that call the overload, and of their calls. ``reason`` says why the suite does not judge it. ``users`` is
    False if no public function of torch calls it with strided tensors.
    """

    overload: str
    state: State
    judged_by: tuple[str, ...] = ()
    reached_by: tuple[str, ...] = ()
    models: int = 0
    calls: int = 0
    reason: str = ""
    users: bool = True


class Coverage(msgspec.Struct, frozen=True):
    """The overloads of a device with their states; those that the most models call come first. ``measured_with`` is the
    version of torch with which the suite's calls were measured. ``weighed`` is the number of models whose calls were
    counted, and ``left_out`` is the number of listed models that could not be recorded."""

    device: str
    torch: str
    measured_with: str
    weighed: int
    left_out: int
    overloads: tuple[Row, ...]

    @property
    def counts(self) -> dict[State, int]:
        """The number of overloads in each state."""
        found = Counter(row.state for row in self.overloads)
        return {state: found[state] for state in State}

    @property
    def met(self) -> tuple[int, int]:
        """Two numbers about the overloads that have a kernel on the device and are called by public functions of torch:
        how many of them are judged, and how many there are."""
        there = [row for row in self.overloads if row.users and row.state is not State.MISSING]
        return sum(row.state is State.JUDGED for row in there), len(there)


def rows_of(
    own: Collection[str],
    on_cpu: Collection[str],
    calls: CallMap,
    weights: Weights,
    cells: Collection[str] | None = None,
) -> tuple[Row, ...]:
    """Returns a row for each overload that has a kernel on the device (``own``), and for each that has one only on the
    CPU (``on_cpu``). ``calls`` maps the suite's cells to overloads, and ``weights`` has the calls of public models.
    ``cells`` are the cells, without dtype, that ran; None stands for all cells of the suite."""
    judging = calls.judging(cells)
    everywhere = judging if cells is None else calls.judging()

    def row(name: str) -> Row:
        weight, why = weights.of_overload(name), reason_for(name)
        by, reached = tuple(judging.get(name, ())), calls.reached.get(name, ())
        plain = Row(name, State.JUDGED, by, models=weight.models, calls=weight.calls)
        if name not in own:
            return replace(plain, state=State.MISSING, judged_by=(), reason=_missing(name))
        if by:
            return plain
        if name in everywhere:
            few = tuple(everywhere[name][:MOST_REACHING])
            return replace(plain, state=State.NEVER_CALLED, reached_by=few, reason=_NOT_IN_RUN)
        state = State.REACHED if reached else State.NEVER_CALLED
        text, users = (why.why, why.users) if why is not None else ("", True)
        return replace(plain, state=state, reached_by=reached, reason=text, users=users)

    rows = map(row, {*own, *on_cpu})
    return tuple(sorted(rows, key=lambda each: (-each.models, -each.calls, each.overload)))


def _missing(name: str) -> str:
    if is_shared(name):
        return "torch's kernel made of other ops serves the device"
    return "a call raises NotImplementedError, or falls back to the CPU"


def cells_of(run: Run) -> frozenset[str]:
    """Returns the cells of a run that passed or failed, and so compared the result of a call; without dtype and
    variant."""
    return frozenset(
        f"{key.clause}::{key.unit}"
        for key, result in run.results.items()
        if result.outcome in _COMPARED
    )


def chosen(rows: Iterable[Row], states: Collection[State], globs: Collection[str]) -> list[Row]:
    """Returns the rows whose state is in ``states`` and whose overload matches one of ``globs``. A glob is compared
    with the full name (``aten::add.Tensor``), the name without the library (``add.Tensor``), and the name of the op
    (``add``). An empty collection selects every row."""

    def named(row: Row) -> bool:
        short = row.overload.removeprefix("aten::")
        names = (row.overload, short, short.partition(".")[0])
        return not globs or any(fnmatchcase(name, glob) for name in names for glob in globs)

    return [row for row in rows if (not states or row.state in states) and named(row)]
