"""The CPU dies of arguments that a check has invented: that is not held against the device."""

from __future__ import annotations

import pytest

from conformance.checks.call_hooks import is_on_cpu
from devices.cell import CallKey, CellKey, Outcome
from devices.simulated import descriptor as simulated
from devices.simulated.backend.fault_switches import planted
from opinfo.device import open_device
from tests.isolation.dying import DyingDevice
from tests.isolation.test_other_checks import never, sees

CELLS = [
    CellKey("dispatch.unsupported", "gcd", "int64"),
    CellKey("dispatch.refusals", "gcd", "int64"),
]
LEFT_OUT = (
    "a call was left out, because the CPU ends the process, too, if it is called with its arguments"
)


@pytest.fixture(scope="module")
def dying(tmp_path_factory: pytest.TempPathFactory) -> DyingDevice:
    folder = tmp_path_factory.mktemp("dying")
    return DyingDevice(folder, open_device(simulated.DESCRIPTOR), None)


def takes(call: CallKey, *dtypes: str) -> bool:
    return any(f"dtype='{dtype}'" in call.layout for dtype in dtypes)


@pytest.mark.parametrize("cell", CELLS, ids=str)
def test_a_call_of_which_the_cpu_dies_too_is_left_out(dying: DyingDevice, cell: CellKey) -> None:
    plain, _ = dying.run(cell, never)
    found, deaths = dying.run(cell, lambda number, call: takes(call, "float64"))
    assert (found.outcome, found.checks, found.rest) == (Outcome.PASS, plain.checks - 1, None)
    assert LEFT_OUT in found.note and deaths.count == 2


@pytest.mark.parametrize("cell", CELLS, ids=str)
def test_a_call_of_which_the_device_alone_dies_is_a_crash(
    dying: DyingDevice, cell: CellKey
) -> None:
    found, _ = dying.run(cell, lambda number, call: takes(call, "float64") and not is_on_cpu(call))
    assert found.outcome is Outcome.CRASH and found.rest is not None
    assert found.call is not None and takes(found.call, "float64")


def test_the_cpu_s_deaths_hide_neither_the_device_s_nor_a_wrong_result(dying: DyingDevice) -> None:
    cell = CELLS[0]

    def deadly(number: int, call: CallKey) -> bool:
        return takes(call, "float64", "bool") or (takes(call, "float32") and not is_on_cpu(call))

    found, _ = dying.run(cell, deadly)
    assert found.outcome is Outcome.CRASH
    assert found.call is not None and takes(found.call, "float32")
    cell = CellKey("dispatch.unsupported", "mm", "float32")
    with planted("dispatch.unsupported_returns_garbage"):
        found, deaths = dying.run(cell, lambda number, call: takes(call, "bool"))
    assert deaths.count == 2 and sees(found) and LEFT_OUT in found.note
    assert found.repro is not None
