"""Fault → clause → caught, for the suites of behaviour on the simulated device.

``python -m tests.behaviour.table [GLOB...]`` prints it for the faults that a glob matches; the exit status is 0
where each was caught, no cell outside its radius changed, and every cell passes without a fault.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

from conformance import contract, suites
from conformance.checks.cases.cases import BehaviourCase
from devices.cell import CellKey, Outcome
from devices.simulated.descriptor import DESCRIPTOR
from devices.simulated.faults import FAULTS, Fault
from tests.behaviour.server import Seen, Server, serving

#: Outcomes by which a fault is caught.
CAUGHT = frozenset({Outcome.FAIL, Outcome.CRASH, Outcome.HANG})
#: Cells of a clause that are let catch a fault.
_ENOUGH = 4
#: Cells of a clause where some stand for all.
_SOME = 2
#: Clauses that are left out where some cells stand for all: each of their cells compiles for seconds, and so do the trials of
#: their faults.
COMPILED = frozenset(
    f"compile.{name}" for name in ("autograd", "export", "nested", "programs", "stride_tags")
)


def clauses_of_cases() -> frozenset[str]:
    """The checked clauses that have cases."""
    return frozenset(case.clause for case in suites.planned_cases(contract.load()))


def faults() -> dict[str, Fault]:
    """The faults of those clauses."""
    there = clauses_of_cases()
    return {name: fault for name, fault in FAULTS.items() if there & set(fault.clauses)}


def all_cells() -> list[CellKey]:
    """Every cell of a case that plan quick takes."""
    return [_cell(case) for case in _cases()]


def some_cells() -> list[CellKey]:
    """A few quick cells of every clause but those that compile, the drawn programs among them; of a clause that has slow
    ones alone, the first."""
    some: list[CellKey] = []
    for clause in sorted(clauses_of_cases() - COMPILED):
        cases = [case for case in _cases() if case.clause == clause]
        quick = [case for case in cases if not case.slow] or cases[:1]
        first = sorted(quick, key=lambda case: case.name != "drawn")
        some += map(_cell, first[:_SOME])
    return some


def own_cells(fault: Fault, clean: Mapping[CellKey, Seen]) -> list[CellKey]:
    """The cells of a fault's clauses that it can change; slow ones only where a clause has no others."""
    if fault.cells:
        return all_own_cells(fault)
    own: list[CellKey] = []
    for clause in fault.clauses:
        cases = [
            case for case in _cases() if case.clause == clause and _reaches(case, fault, clean)
        ]
        own += map(_cell, [case for case in cases if not case.slow] or cases)
    return own


def all_own_cells(fault: Fault) -> list[CellKey]:
    """All cells of a fault's clauses; those of plan core that it names, if it names any."""
    if not fault.cells:
        return [_cell(case) for case in _cases() if case.clause in fault.clauses]
    core = suites.planned_cases(contract.load(), whole=False)
    return [
        case.cell
        for case in core
        if case.clause in fault.clauses
        and any(fnmatchcase(case.cell.name, glob) for glob in fault.cells)
    ]


def other_cells(fault: Fault, clean: Mapping[CellKey, Seen]) -> list[CellKey]:
    """The quick cells of the other clauses of its suites that the fault could change, and must not."""
    of_suites = {suites.suite_of(clause) for clause in fault.clauses}
    return [
        _cell(case)
        for case in _cases()
        if suites.suite_of(case.clause) in of_suites
        and case.clause not in fault.clauses
        and not (case.slow or case.own_process)
        and _reaches(case, fault, clean)
        and not any(fnmatchcase(str(_cell(case)), glob) for glob in fault.radius)
    ]


def _reaches(case: BehaviourCase, fault: Fault, clean: Mapping[CellKey, Seen]) -> bool:
    """Whether the case ran without the fault and can meet it. What other processes meet is not known."""
    cell, elsewhere = _cell(case), case.own_process or case.ranks > 0
    return cell in clean and (elsewhere or fault.name in clean[cell].reached)


def _cases() -> list[BehaviourCase]:
    """The quick cases, but for those that need what the simulated device does not declare."""
    planned = suites.planned_cases(contract.load(), more=False)
    return [case for case in planned if case.requires <= DESCRIPTOR.capabilities]


def _cell(case: BehaviourCase) -> CellKey:
    return case.cell


@dataclass(frozen=True, slots=True)
class Trial:
    """What a fault did to the cells that were run."""

    fault: Fault
    clean: Mapping[CellKey, Seen]
    seen: Mapping[CellKey, Seen]

    def caught(self, clause: str) -> list[CellKey]:
        return [c for c, s in self.seen.items() if c.clause == clause and s.outcome in CAUGHT]

    @property
    def missed(self) -> list[str]:
        """Clauses of cases that the fault breaks, and that did not fail."""
        there = clauses_of_cases()
        return [c for c in self.fault.clauses if c in there and not self.caught(c)]

    @property
    def strays(self) -> list[str]:
        """Changed cells outside the fault's radius."""
        return [
            f"{cell}: {self.clean[cell].summary} became {seen.summary}: {seen.message}"
            for cell, seen in self.seen.items()
            if cell.clause not in self.fault.clauses
            and seen.summary != self.clean[cell].summary
            and not any(fnmatchcase(str(cell), pattern) for pattern in self.fault.radius)
        ]


def trial(
    server: Server, fault: Fault, clean: Mapping[CellKey, Seen], enough: int = _ENOUGH
) -> Trial:
    """Run a fault's cells with it on; the others in a process of their own, as the first may spoil it."""
    own, others = own_cells(fault, clean), other_cells(fault, clean)
    seen = {**server.run(fault.name, own, enough=enough), **server.run(fault.name, others)}
    made = Trial(fault, clean, seen)
    if made.missed:  # by what is quick, or known to reach it
        more = [c for c in all_own_cells(fault) if c.clause in made.missed and c not in made.seen]
        seen = server.run(fault.name, more, enough=enough)
        made = Trial(fault, clean, {**made.seen, **seen})
    return made


def line_of(made: Trial) -> list[str]:
    """One line a clause: what caught the fault there."""
    lines = []
    for clause in made.fault.clauses:
        cells = made.caught(clause)
        where = ", ".join(cell.unit for cell in cells[:4]) + (" …" if len(cells) > 4 else "")
        text = f"{len(cells)} cells: {where}" if cells else "MISSED"
        lines.append(f"{made.fault.name:36}  {clause:28}  {text}")
        lines += [f"    {made.seen[cell].message[:150]}" for cell in cells[:1]]
    return lines


def main(globs: Sequence[str]) -> int:
    wrong: list[str] = []
    with serving(dict(os.environ)) as server:
        clean = server.run("", all_cells())
        wrong += [
            f"clean: {cell}: {seen.outcome}: {seen.message}"
            for cell, seen in clean.items()
            if seen.outcome is not Outcome.PASS and cell.is_case
        ]
        for fault in faults().values():
            if globs and not any(fnmatchcase(fault.name, pattern) for pattern in globs):
                continue
            made = trial(server, fault, clean)
            print(*line_of(made), sep="\n", flush=True)
            wrong += [f"{fault.name}: {clause} did not fail" for clause in made.missed]
            wrong += [f"{fault.name}: outside its radius: {text}" for text in made.strays]
    print(*wrong, sep="\n")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
