"""The suites: which clause families each one checks. Needs no torch until a suite is loaded.

Each is a package of the same name whose ``SUITE`` lists its cases, and its checks of ops, as data.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from functools import cache
from typing import Final

from conformance.checks.cases.cases import Case, OpCheck, Suite
from conformance.contract import Clause, Contract, Status
from devices.cell import CellKey

FAMILIES: Final[Mapping[str, tuple[str, ...]]] = {
    "layout": ("layout",),
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
}
"""The clause families of every suite, in the order in which plans take them."""

#: Suites whose failing calls are made smaller, searched for, and pinned.
SEARCHED: Final = frozenset({"layout"})

#: Clauses that another suite than their family's checks.
_ELSEWHERE: Final = {"layout.grad": "autograd"}

_SUITE_OF: Final = {family: name for name, families in FAMILIES.items() for family in families}


def suite_of(clause: str) -> str:
    """The name of the suite that checks a clause; that of its family where no suite does yet."""
    family = clause.partition(".")[0]
    return _ELSEWHERE.get(clause) or _SUITE_OF.get(family, family)


@cache
def load(name: str) -> Suite:
    """A suite. Imports its package, which needs torch."""
    suite = importlib.import_module(f"conformance.suites.{name}").SUITE
    assert isinstance(suite, Suite)
    return suite


def suites() -> tuple[Suite, ...]:
    """Every suite, in plan order."""
    return tuple(map(load, FAMILIES))


def planned_cases(contract: Contract, *, more: bool = True) -> list[Case]:
    """The cases of every checked clause, in the contract's order and then their own; without those
    beyond plan quick where ``more`` is false."""
    order = {clause.id: place for place, clause in enumerate(checked(contract))}
    cases = (case for suite in suites() for case in suite.cases if more or not case.more)
    return sorted((case for case in cases if case.clause in order), key=lambda c: order[c.clause])


def planned_op_checks(contract: Contract) -> list[OpCheck]:
    """The checks of ops whose clauses are checked, in the order of the suites."""
    wanted = {clause.id for clause in checked(contract)}
    return [check for suite in suites() for check in suite.op_checks if check.clause in wanted]


def case_of(clause: str, name: str) -> Case:
    """The case of that name. Raises KeyError."""
    for case in load(suite_of(clause)).cases:
        if (case.clause, case.name) == (clause, name):
            return case
    raise KeyError(f"{clause} has no case {name!r}")


def find_case(cell: CellKey) -> Case | None:
    """The case of a cell, None if there is none."""
    try:
        return case_of(cell.clause, cell.op) if suite_of(cell.clause) in FAMILIES else None
    except KeyError:
        return None


def checked(contract: Contract) -> list[Clause]:
    """The clauses that the suite holds devices to."""
    return [clause for clause in contract.clauses.values() if clause.status is Status.CHECKED]
