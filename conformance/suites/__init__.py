"""The test suites of the project, and the families of contract clauses that each suite checks. Torch is imported only
when a suite is loaded.

Each suite is a package of the same name. Its constant ``SUITE`` lists the cases and op checks of the suite as data.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from functools import cache
from typing import Final

from conformance.checks.cases.cases import BehaviourCase, OpCheck, Suite
from conformance.contract import Clause, Contract, Status
from devices.cell import CellKey

FAMILIES: Final[Mapping[str, tuple[str, ...]]] = {
    "layout": ("layout",),
    "size": (),
    "transfer": ("transfer",),
    "allocator": ("allocator",),
    "streams": ("streams", "events"),
    "graphs": ("graphs",),
    "device": ("device",),
    "dispatch": ("dispatch",),
    "random": ("random",),
    "precision": ("precision",),
    "autograd": ("autograd",),
    "autocast": ("autocast",),
    "optim": ("optim",),
    "nn": ("nn",),
    "distributed": ("distributed",),
    "compile": ("compile",),
    "profiler": ("profiler",),
}
"""The clause families that each suite checks; an empty tuple for a suite that checks only single clauses of other
suites' families. The order of the suites is the order in which a plan lists their cases."""

#: Suites whose failing calls are made smaller, searched for, and pinned.
SEARCHED: Final = frozenset({"layout"})

#: Clauses that are not checked by the suite of their family.
_ELSEWHERE: Final = {
    "layout.grad": "autograd",
    "layout.large": "size",
    "precision.gradients": "autograd",
}

_SUITE_OF: Final = {family: name for name, families in FAMILIES.items() for family in families}


def suite_of(clause: str) -> str:
    """Return the name of the suite that checks a clause, usually the suite of the clause's family. If no suite covers
    the family, return the name of the family."""
    family = clause.partition(".")[0]
    return _ELSEWHERE.get(clause) or _SUITE_OF.get(family, family)


@cache
def load(name: str) -> Suite:
    """Return the suite with the given name, such as "streams". The call imports the package of the suite, which needs
    torch."""
    suite = importlib.import_module(f"conformance.suites.{name}").SUITE
    assert isinstance(suite, Suite)
    return suite


def suites() -> tuple[Suite, ...]:
    """Return all suites, in the order of ``FAMILIES``."""
    return tuple(map(load, FAMILIES))


def planned_cases(
    contract: Contract, *, more: bool = True, whole: bool = True
) -> list[BehaviourCase]:
    """Return the cases of all clauses with status "checked", sorted by the order of the clauses in the contract. If
    ``more`` is false, cases that do not belong to the plan "quick" are left out. If ``whole`` is false, the cases
    that take many seconds or much memory are left out, which only plans with ``whole = true`` have."""
    order = {clause.id: place for place, clause in enumerate(checked(contract))}
    wanted = (
        case
        for suite in suites()
        for case in suite.cases
        if (more or not (case.more or case.whole)) and (whole or not case.whole)
    )
    return sorted((case for case in wanted if case.clause in order), key=lambda c: order[c.clause])


def planned_op_checks(contract: Contract) -> list[OpCheck]:
    """Return the op checks of all clauses with status "checked", in the order of the suites."""
    wanted = {clause.id for clause in checked(contract)}
    return [check for suite in suites() for check in suite.op_checks if check.clause in wanted]


def case_of(clause: str, name: str, variant: str = "") -> BehaviourCase:
    """Return the case with the given name and variant of a clause. Raises KeyError if the clause has no such case."""
    cell = CellKey(clause, name, "", variant)
    for case in load(suite_of(clause)).cases:
        if case.cell == cell:
            return case
    raise KeyError(f"{clause} has no case {cell.name!r}")


def find_case(cell: CellKey) -> BehaviourCase | None:
    """Return the case whose results are stored in a cell; None if the cell belongs to no case."""
    try:
        if cell.is_case and suite_of(cell.clause) in FAMILIES:
            return case_of(cell.clause, cell.unit, cell.variant)
        return None
    except KeyError:
        return None


def checked(contract: Contract) -> list[Clause]:
    """Return the clauses of the contract that have status "checked"."""
    return [clause for clause in contract.clauses.values() if clause.status is Status.CHECKED]
