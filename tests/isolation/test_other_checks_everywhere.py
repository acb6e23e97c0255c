"""A crash hides no other check in the op clauses of all suites: faults of the simulated device are seen where it dies in one
call of each cell."""

from __future__ import annotations

import pytest

from conformance import contract
from conformance.suites import planned_op_checks
from conformance.suites.layout import SUITE
from devices.cell import CellKey, Outcome
from devices.simulated import descriptor as simulated
from devices.simulated.backend.fault_switches import planted
from devices.simulated.faults import FAULTS
from opinfo.device import open_device
from tests.isolation.dying import DyingDevice
from tests.isolation.test_other_checks import never, nth, sees

#: Ops of faults that name none.
_OPS = {
    "autograd.first_wrong": "sigmoid",
    "autograd.second_wrong": "sinh",
    "autograd.forward_ad_wrong": "nn.functional.glu",
    "autograd.forward_over_reverse_wrong": "nn.functional.glu",
    "autograd.tangent_of_base_lost": "erf",
    "graphs.op_runs_at_capture": "neg",
    "grad.wrong_layout": "mul",
}
#: Clauses that make a single check of an op, over all its numbers: there is no other check.
_SINGLE = frozenset({"precision.ulp", "precision.budget"})


def _cases() -> list[tuple[str, str, str, str]]:
    """A fault, an op and a dtype for each op clause beside those of the layout suite."""
    found: dict[str, tuple[str, str, str, str]] = {}
    clauses = {check.clause for check in planned_op_checks(contract.load())}
    for name, fault in FAULTS.items():
        for clause in fault.clauses:
            family = clause.partition(".")[0]
            if clause in clauses - _SINGLE and (family != "layout" or clause == "layout.grad"):
                ops = fault.ops or (_OPS.get(name, ""),)
                found.setdefault(clause, (clause, name, ops[0], (fault.dtypes or ("float32",))[0]))
    return list(found.values())


@pytest.fixture(scope="module")
def dying(tmp_path_factory: pytest.TempPathFactory) -> DyingDevice:
    folder = tmp_path_factory.mktemp("dying")
    return DyingDevice(folder, open_device(simulated.DESCRIPTOR), None)


@pytest.mark.slow
@pytest.mark.parametrize(("clause", "fault", "op", "dtype"), _cases())
def test_a_fault_is_seen_on_a_device_that_dies_in_one_call_of_each_cell(
    dying: DyingDevice, clause: str, fault: str, op: str, dtype: str
) -> None:
    cell = CellKey(clause, op, dtype)
    with planted(fault):
        alone, _ = dying.run(cell, never)
        assert sees(alone) and alone.checks > 1
        ends = [dying.run(cell, nth(number)) for number in (0, 1)]
        # A call may be the only one that shows the fault: then it is seen where another call dies.
        assert any(deaths.count and sees(found) for found, deaths in ends)
        rests = [found.rest.outcome for found, _ in ends if found.rest is not None]
        assert Outcome.ERROR not in rests


def test_every_op_clause_outside_of_the_layout_suite_is_tried() -> None:
    clauses = {check.clause for check in planned_op_checks(contract.load())}
    others = clauses - {check.clause for check in SUITE.op_checks} - _SINGLE
    assert {clause for clause, *_ in _cases()} == others
