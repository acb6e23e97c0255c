"""Non-blocking copies of views: faults of theirs alone are noticed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from conformance import contract
from conformance.suites import planned_cases
from tests.bugs.trials import outcome_on_cpu
from tests.mutation.items import is_refused
from tests.planting.calls import NOT_MET, KernelCall
from tests.planting.places import on_simulated, planted

(_CASE,) = (
    case
    for case in planned_cases(contract.load(), whole=False)
    if (case.clause, case.name) == ("transfer.non_blocking", "strided")
)

#: Whether a copy from a tensor to another one is affected.
Affected = Callable[[torch.Tensor, torch.Tensor], bool]


def test_right_devices_pass() -> None:
    assert not is_refused(_CASE)
    assert outcome_on_cpu(_CASE).value == "pass"


@pytest.mark.parametrize(
    "affected",
    [
        lambda a, b: on_simulated(a) and not on_simulated(b) and not a.is_contiguous(),
        lambda a, b: on_simulated(a) and not on_simulated(b) and not b.is_contiguous(),
        lambda a, b: on_simulated(b) and not on_simulated(a) and not a.is_contiguous(),
        lambda a, b: on_simulated(b) and not on_simulated(a) and not b.is_contiguous(),
    ],
    ids=["view to the host", "into a view on the host", "view to the device", "into a view there"],
)
def test_a_copy_of_a_view_that_never_arrives_is_noticed(affected: Affected) -> None:
    def lost(call: KernelCall) -> Any:
        source, target = call.args[:2]
        if not call.values["non_blocking"] or not affected(source, target):
            return NOT_MET
        return target

    with planted(["_copy_from"], lost) as fault:
        assert is_refused(_CASE)
    assert fault.reached
    assert not fault.failures
