"""How a mutant of compile is tried: the cells that reach it run one after another until one is red because of it. If none is,
a probe decides whether anything can tell the mutant from the code that it changes."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Protocol, TypeVar

from devices.cell import Outcome
from tests.mutation.baseline import is_cause
from tests.mutation.compiled_probe import Answer, Reached
from tests.mutation.kernels import PROBING, Result


class Cell(Protocol):
    """A cell of the suite: a case, or an op with a clause. ``more`` is True if plan ``quick`` lacks it."""

    @property
    def id(self) -> str: ...
    @property
    def name(self) -> str: ...
    @property
    def clause(self) -> str: ...
    @property
    def more(self) -> bool: ...


AnyCell = TypeVar("AnyCell", bound=Cell)
#: Plants a mutant for a block. With True its code runs and changes nothing.
Plant = Callable[[bool], AbstractContextManager[Reached]]


@dataclass(slots=True)
class Counted:
    """How often a mutant's code ran, and how often it changed something (``reached``). With ``sham`` nothing is changed."""

    sham: bool = False
    ran: int = 0
    reached: int = 0


def attempt(
    found: Result,
    cells: Iterable[AnyCell],
    plant: Plant,
    outcome: Callable[[AnyCell], Outcome],
    probe: Callable[[Plant], Answer],
    tell: Callable[[Result], None],
) -> Result:
    """Tries a mutant and completes its result. ``outcome`` runs a cell; ``tell`` is called before each run.

    A cell counts only if it is green without the mutant and red again with it. A mutant is equivalent only if the probe ran
    its code and no answer differed.
    """

    def red(mutated: bool, given: Sequence[AnyCell]) -> bool:
        last = Outcome.PASS
        for cell in given:
            tell(found)
            with plant(not mutated) as state:
                last = outcome(cell)
            found.reached += state.reached if mutated else 0
        return last is not Outcome.PASS

    def planted(sham: bool) -> AbstractContextManager[Reached]:
        tell(found)
        return plant(sham)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for cell in cells:
            found.trying = cell.clause
            if not red(True, [cell]):
                continue
            if not is_cause(red, cell):
                found.unsteady.append(cell.id)
            elif found.credit([cell.clause], "core" if cell.more else "quick"):
                found.note = cell.name
                return found
        if found.not_gating:
            return found
        found.trying = PROBING
        answer = probe(planted)
    if answer.reached and not answer.differs:
        found.result = "equivalent"
    else:
        found.result = found.missed()
        found.note = answer.differs or "no call of the probe runs the mutated code"
    return found
