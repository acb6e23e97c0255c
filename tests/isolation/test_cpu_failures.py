"""Which failures of a device are those of torch's CPU."""

from __future__ import annotations

import pytest

from conformance.run.cpu_failures import reason_on_cpu
from devices import registry
from devices.cell import CellKey, Outcome, Verdict
from devices.failure import Failure, Kind
from devices.manifest import Block, ExpectedOutcome, Manifest
from reports.model import CellResult


def block() -> Block:
    """A block of the CPU's manifest that holds here, for one op and one dtype, and that lists layouts."""
    device = registry.get("cpu")
    assert device.folder is not None
    blocks = Manifest.load(device.folder / "expected.toml").active(device.facts()).blocks
    return next(
        each
        for each in blocks
        if each.outcome is ExpectedOutcome.FAIL
        and each.layouts
        and each.raises is None
        and "*" not in "".join((*each.clause, *each.op, *each.dtype))
    )


def result(found: Block, outcome: Outcome, layouts: tuple[str, ...]) -> CellResult:
    key = CellKey(found.clause[0], found.op[0], found.dtype[0])
    failure = Failure(kind=Kind.VALUES, layout=layouts[0]) if layouts else None
    return CellResult(key, outcome, Verdict.REGRESSION, layouts=layouts, failure=failure)


def test_a_failure_that_the_cpu_s_manifest_accepts_is_the_cpu_s() -> None:
    found = block()
    assert found.reason in reason_on_cpu(result(found, Outcome.FAIL, tuple(found.layouts or ())))


@pytest.mark.parametrize(
    ("outcome", "layouts"),
    [(Outcome.FAIL, ("no such layout",)), (Outcome.CRASH, ()), (Outcome.PASS, ())],
)
def test_another_failure_of_the_same_cell_is_not_the_cpu_s(
    outcome: Outcome, layouts: tuple[str, ...]
) -> None:
    assert reason_on_cpu(result(block(), outcome, layouts)) == ""
