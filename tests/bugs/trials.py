"""Which imitations of public bugs the suite notices: each is put in front of its op, whose cells run as a plan runs them."""

from __future__ import annotations

from fnmatch import fnmatchcase
from typing import Final, Literal, get_args

from conformance import contract
from conformance.checks.cases.cases import BehaviourCase
from conformance.checks.cases.processes import DeviceLocator
from conformance.checks.cases.run_case import run_case
from conformance.checks.cells import CellRecord
from conformance.contract.bugs import Bug, is_planned
from conformance.suites import planned_cases, planned_op_checks
from devices import registry
from devices.cell import CellKey, Outcome
from devices.simulated.faults import FAULTS
from opinfo.catalog import catalogue
from opinfo.device import open_device
from opinfo.plan import plan_specs
from tests.bugs import derivatives, imitations
from tests.bugs.device_faults import DEVICE_FAULTS, in_the_device
from tests.bugs.groups import GROUPS, noticed_by_groups
from tests.bugs.kernels import KERNELS
from tests.bugs.large import LARGE, is_noticed
from tests.bugs.patches import patched
from tests.faulty import NOTICED, clauses_that_fail
from tests.mutation.items import is_refused, subject
from tests.size.planting import CLAUSE, case_named, tried

#: What became of a bug: its fault is noticed by the smallest plan of that name, or not; nothing imitates it; or all of
#: its clauses are planned ones.
Fate = Literal["quick", "core", "full", "missed", "planned", "not imitated"]
FATES: Final[tuple[Fate, ...]] = get_args(Fate)

PROGRAMS: Final = "compile.programs"


def fate(bug: Bug) -> tuple[Fate, tuple[str, ...]]:
    """What became of a bug, and the clauses that notice its fault."""
    whole = contract.load()
    if not bug.clauses:
        return "not imitated", ()
    if is_planned(bug, whole):
        return "planned", ()
    if bug.fault:
        # That each of these fails with the fault on is what the trials of planted faults show.
        fault = FAULTS[bug.fault]
        by = tuple(c for c in fault.clauses if c in bug.clauses) if fault.clauses else bug.clauses
        found: Fate = "core" if fault.cells else "quick"
        return (found if by and not bug.missed else "missed"), by
    if bug.patch in DEVICE_FAULTS:
        return noticed_on_the_simulated_device(bug)
    if bug.patch in LARGE:
        plan: Fate = "full" if case_named(LARGE[bug.patch].case).whole else "core"
        return (plan, (CLAUSE,)) if is_noticed(bug.patch) else ("missed", ())
    if bug.patch in GROUPS:
        clause, in_core = noticed_by_groups(bug)
        return ("missed" if not clause else "core" if in_core else "quick"), (clause,)
    if bug.patch:
        return noticed_by_cases(bug)
    if bug.imitation is None:
        return "not imitated", ()
    by = noticed(bug)
    if not by:
        return noticed_by_cases_of_the_op(bug)
    dtype = bug.imitation.dtype
    plan = next(name for name, spec in plan_specs().items() if spec.takes(dtype))
    return plan, by  # type: ignore[return-value]


def noticed_by_cases(bug: Bug) -> tuple[Fate, tuple[str, ...]]:
    """The smallest plan with a case that fails on the CPU while a function of torch misbehaves, and the clauses of the
    bug whose cases fail so. If the bug names cases, only those are run."""
    found: list[tuple[bool, str]] = []
    cases = [c for c in planned_cases(contract.load(), whole=False) if c.clause in bug.clauses]
    named = [c for c in cases if any(fnmatchcase(c.name, glob) for glob in bug.ops)]
    for case in named or cases:
        if case.own_process or (case.more and case.clause != PROGRAMS):
            continue
        with patched(bug.patch):
            outcome = outcome_on_cpu(case)
        found += [(case.more, case.clause)] if outcome in NOTICED else []
    plan: Fate = "missed" if not found else "core" if all(more for more, _ in found) else "quick"
    return plan, tuple(dict.fromkeys(clause for _, clause in found))


def noticed_on_the_simulated_device(bug: Bug) -> tuple[Fate, tuple[str, ...]]:
    """The smallest plan with a cell that is refused while the fault is in the simulated device, and not without it, and
    the clauses of these cells. Of the clauses' cells, those of the ops and cases that the bug names are run."""
    dtype = KERNELS[bug.patch].dtype if bug.patch in KERNELS else "float32"
    found: list[tuple[bool, str]] = []
    for op in bug.ops:
        if op in catalogue():
            about = subject(op, dtype)  # its clean run comes first
            with in_the_device(bug.patch):
                found += [(False, clause) for clause in about.noticed() if clause in bug.clauses]
    for case in sorted(planned_cases(contract.load(), whole=False), key=lambda case: case.more):
        named = not bug.ops or any(fnmatchcase(case.name, glob) for glob in bug.ops)
        if case.clause not in bug.clauses or case.own_process or not named:
            continue
        with in_the_device(bug.patch):
            refused = is_refused(case)
        if refused and not is_refused(case):
            found.append((case.more, case.clause))
            break
    plan: Fate = "missed" if not found else "core" if all(more for more, _ in found) else "quick"
    return plan, tuple(dict.fromkeys(clause for _, clause in found))


def outcome_on_cpu(case: BehaviourCase) -> Outcome:
    """The outcome of a case on the CPU, in this process."""
    record = CellRecord(CellKey(case.clause, case.name, ""))
    run_case(case, record, open_device(registry.get("cpu")), DeviceLocator(device="cpu"))
    return record.outcome()


def noticed_by_cases_of_the_op(bug: Bug) -> tuple[Fate, tuple[str, ...]]:
    """The smallest plan with a case that is named after the op and fails with the imitation in front of it, and the clause
    of the case."""
    imitation = bug.imitation
    assert imitation is not None
    function = imitation.op.rpartition(".")[2]
    for case in planned_cases(contract.load(), whole=False):
        if case.clause in bug.clauses and case.name == imitation.op:
            room = imitations if imitation.of == "call" else derivatives
            made, _ = tried(case, function, room.effect_of(imitation))
            if made.failure is not None:
                return ("core" if case.more else "quick"), (case.clause,)
    return "missed", ()


def noticed(bug: Bug) -> tuple[str, ...]:
    """The clauses of the bug that fail with its imitation in front of the op."""
    imitation = bug.imitation
    assert imitation is not None
    checks = [check for check in planned_op_checks(contract.load()) if check.clause in bug.clauses]
    if not checks:
        return ()
    room = imitations if imitation.of == "call" else derivatives
    about = imitation.op, imitation.dtype, checks, room.effect_of(imitation)
    return clauses_that_fail(*about, everywhere=imitation.then == "accepted")
