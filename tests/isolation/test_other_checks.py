"""A crash hides no other check of its cell: planted faults are seen on a device that dies in one call of each cell."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from conformance import contract
from conformance.run.item_report import Lost
from conformance.suites.layout import SUITE
from devices.cell import CallKey, CellKey, CellOutcome, Outcome
from opinfo.device import open_device
from tests.isolation.dying import Deadly, DyingDevice
from tests.sampling import trials_of
from tests.trials import planted_items
from tests.wrapped import descriptor as wrapped
from tests.wrapped.faults import REGISTRY, Fault, planted
from tests.wrapped.trial import RIG

EXP = CellKey("layout.values", "exp", "float32")


@pytest.fixture(scope="module")
def dying(tmp_path_factory: pytest.TempPathFactory) -> DyingDevice:
    folder = tmp_path_factory.mktemp("dying")
    return DyingDevice(folder, open_device(wrapped.DESCRIPTOR), wrapped.__file__)


def nth(wanted: int) -> Deadly:
    """The call of each group with this number ends the process."""
    return lambda number, call: number == wanted


def never(number: int, call: CallKey) -> bool:
    return False


def is_lazy(number: int, call: CallKey) -> bool:
    return call.layout in ("conj", "neg")


def sees(found: CellOutcome) -> bool:
    """Whether a check fails, besides the crash."""
    return Outcome.FAIL in (found.outcome, found.rest and found.rest.outcome)


def hidden(dying: DyingDevice, fault: Fault) -> Iterator[str]:
    """The clauses that a fault breaks, and whose cell shows nothing but the crash, wherever the cell dies."""
    for clause in fault.clauses:
        cells = [CellKey(clause, op, dtype) for op, dtype in planted_items(RIG, fault)]
        samples = RIG.more_samples.get(cells[0].unit, RIG.samples)
        with planted(fault.name):
            alone = (dying.run(cell, never, samples=samples)[0] for cell in cells)
            failed = next(found for found in alone if sees(found))
            if failed.checks == 1:  # there is no other check
                continue
            cell = failed.cell
            ends = (dying.run(cell, nth(number), samples=samples) for number in (0, 1))
            # A call may be the only one that shows the fault: then it is seen where another call dies.
            if not any(deaths.count and sees(found) for found, deaths in ends):
                yield clause


@pytest.mark.parametrize("fault", trials_of(REGISTRY))
def test_a_fault_is_seen_on_a_device_that_dies_in_one_call_of_each_cell(
    dying: DyingDevice, fault: Fault
) -> None:
    assert list(hidden(dying, fault)) == []


def test_the_faults_break_every_op_clause_of_the_layout_suite() -> None:
    broken = {clause for fault in REGISTRY.values() for clause in fault.clauses}
    checked = {check.clause for check in SUITE.op_checks}
    assert checked & contract.load().clauses.keys() - broken == set()


def test_a_cell_that_dies_in_one_call_tells_how_its_other_checks_end(dying: DyingDevice) -> None:
    plain, _ = dying.run(EXP, never)
    found, deaths = dying.run(EXP, nth(1))
    assert (found.outcome, found.call) == (
        Outcome.CRASH,
        CallKey(0, "contiguous+step_inner+offset"),
    )
    assert (deaths.count, found.checks) == (2, plain.checks - 1)  # once more, to confirm it
    assert found.message == (
        "[contiguous+step_inner+offset] the worker was killed by SIGSEGV; "
        f"and {found.checks} other checks pass"
    )
    with planted("values.ignore_strides"):
        found, _ = dying.run(EXP, nth(1))
    assert found.rest is not None and found.rest.failure is not None
    assert found.message.startswith(
        "[contiguous+step_inner+offset] the worker was killed by SIGSEGV; and "
        f"{found.rest.failed} of {found.checks} other checks fail: [{found.rest.failure.layout}] "
    )
    assert found.rest.repro == "repro/layout.values/exp-float32-other-checks.py"


def test_lazily_negated_inputs_that_end_the_process_hide_no_wrong_strided_values(
    dying: DyingDevice,
) -> None:
    with planted("values.ignore_strides"):
        found, _ = dying.run(EXP, is_lazy)
    assert found.call is not None and found.call.layout == "neg" and sees(found)
    assert found.rest is not None and (found.rest.left_out, found.rest.skipped) == (1, 0)


@pytest.mark.parametrize(("name", "value"), [("sample", 0), ("layout", "contiguous")])
def test_of_calls_that_are_alike_two_die_and_the_others_are_not_made(
    dying: DyingDevice, name: str, value: object
) -> None:
    with planted("values.ignore_strides"):
        found, deaths = dying.run(EXP, lambda number, call: getattr(call, name) == value)
    assert found.rest is not None and sees(found)
    assert deaths.count == 3 and found.rest.left_out == 2 and found.rest.skipped > 0
    assert f"({found.rest.skipped} more calls were not made, because" in found.message


def test_a_cell_of_which_every_call_dies_has_no_other_checks(dying: DyingDevice) -> None:
    found, deaths = dying.run(EXP, lambda number, call: True)
    assert (found.outcome, found.rest, found.checks) == (Outcome.CRASH, None, 0)
    assert deaths.count == 4


def test_a_call_that_hung_is_left_out_and_a_second_hang_ends_it(dying: DyingDevice) -> None:
    def hung(sample: int) -> Lost:
        call = dying.call(EXP, CallKey(sample, "contiguous"))
        return Lost(EXP, Outcome.HANG, "the worker did not return in 5 s", call)

    found, _ = dying.run(EXP, never, [hung(0)])
    assert found.outcome is Outcome.HANG
    assert found.rest is not None and found.rest.outcome is Outcome.PASS
    found, _ = dying.run(EXP, never, [hung(0), hung(1)])
    assert (found.outcome, found.rest) == (Outcome.HANG, None)
