"""The state of each overload of aten on a device: judged, reached, never called, or missing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable
from enum import Enum
from fnmatch import fnmatchcase
from typing import Final

import msgspec
from msgspec.structs import replace

from conformance.coverage.calls import MOST_REACHING, CallMap
from conformance.coverage.kernels import is_shared
from conformance.coverage.reasons import reason_for
from devices.cell import Outcome
from reports.model import Run
from reports.weights import Weights

#: Outcomes for which a result of the call was compared.
_COMPARED: Final = frozenset({Outcome.PASS, Outcome.FAIL})


_NOT_IN_RUN: Final = "no cell of the run judged it"


class State(str, Enum):
    """What is known of the kernel of an overload."""

    JUDGED = "judged"
    REACHED = "reached"
    NEVER_CALLED = "never-called"
    MISSING = "missing"

    def __str__(self) -> str:
        return self.value


class Row(msgspec.Struct, frozen=True):
    """An overload on a device.

    ``judged_by`` are the cells without dtype whose verdict depends on what the overload computes; ``reached_by`` some cells
    that call it without such a verdict. ``models`` and ``calls`` are its weight. ``reason`` says why the suite does not judge
    it, and ``users`` is False if no public function of torch reaches the overload with strided tensors.
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
    """The overloads of a device, those that most models call first. ``measured_with`` is the version of torch with which the
    calls were measured; ``weighed`` the number of models from which the weights come, and ``left_out`` the number of listed
    models that could not be recorded."""

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
        """The number of judged overloads that public functions of torch reach, and the number of all of these that have a
        kernel."""
        there = [row for row in self.overloads if row.users and row.state is not State.MISSING]
        return sum(row.state is State.JUDGED for row in there), len(there)


def rows_of(
    own: Collection[str],
    on_cpu: Collection[str],
    calls: CallMap,
    weights: Weights,
    cells: Collection[str] | None = None,
) -> tuple[Row, ...]:
    """Returns a row for each overload with a kernel of the device, and for each that only the CPU has. ``cells`` are the
    cells that judged in a run, without their dtypes; None for all that the suite has."""
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
    """Returns the cells of a run, without dtype and variant, that compared the result of a call."""
    return frozenset(
        f"{key.clause}::{key.unit}"
        for key, result in run.results.items()
        if result.outcome in _COMPARED
    )


def chosen(rows: Iterable[Row], states: Collection[State], globs: Collection[str]) -> list[Row]:
    """Returns the rows in some states, of overloads that a glob matches: by the full name (``aten::add.Tensor``), by the name
    without the library (``add.Tensor``), or by the op (``add``). An empty collection takes all."""

    def named(row: Row) -> bool:
        short = row.overload.removeprefix("aten::")
        names = (row.overload, short, short.partition(".")[0])
        return not globs or any(fnmatchcase(name, glob) for name in names for glob in globs)

    return [row for row in rows if (not states or row.state in states) and named(row)]
