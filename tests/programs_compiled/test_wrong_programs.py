"""Programs whose faults no public bug and no planted fault has: a wrong compiler fails each, and a right one passes it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch

from conformance import contract
from conformance.suites import planned_cases
from conformance.suites.compile import comparing
from devices.cell import Outcome
from tests.bugs.trials import outcome_on_cpu
from tests.bugs.wrong_compilers import op_by_op, right_backend
from tests.planting.calls import NOT_MET
from tests.planting.places import replaced

aten = torch.ops.aten


def _reads_sums_that_are_written(
    target: Any, args: Sequence[Any], honest: Callable[[], Any]
) -> Any:
    """The sum of a slice and the slice beside it reads elements that it has already replaced by sums."""
    packet = getattr(target, "overloadpacket", None)
    if packet not in (aten._foreach_add, aten.add):
        return NOT_MET
    made = honest()
    for each in made if isinstance(made, (list, tuple)) else [made]:
        if each.dim() == 1:
            each[1:] += each[:-1].clone()
    return made


@pytest.mark.slow
@pytest.mark.parametrize("wrong", [False, True])
def test_sums_of_overlapping_slices_by_foreach(wrong: bool) -> None:
    name = "reads_of_shifted_slices_by_foreach"
    [case] = [c for c in planned_cases(contract.load(), whole=False) if c.name == name]
    with replaced(
        comparing, "backend_of", op_by_op(_reads_sums_that_are_written) if wrong else right_backend
    ):
        assert outcome_on_cpu(case) is (Outcome.FAIL if wrong else Outcome.PASS)
