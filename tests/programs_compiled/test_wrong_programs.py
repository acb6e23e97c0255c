"""Programs whose faults no public bug and no planted fault has: a wrong compiler fails each, and a right one passes it."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch

from conformance import contract
from conformance.checks.cases.context import CaseContext
from conformance.checks.cases.exceptions import CheckFailed
from conformance.suites import planned_cases
from conformance.suites.compile import comparing
from conformance.suites.compile.device_programs import region_on_a_side_stream
from devices import registry
from devices.cell import Outcome
from opinfo.device import open_device
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
@pytest.mark.parametrize("wrong", ["stays on the side stream", "does not wait", ""])
def test_a_region_on_a_side_stream(wrong: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The program of the simulated device, with stream calls of graphs that do something else."""
    device = open_device(registry.get("simulated"))
    operators = importlib.import_module("torch._dynamo.variables.streams")
    right = operators._get_stream_by_index

    class Wrong:
        def __init__(self, stream: torch.Stream) -> None:
            self.stream = stream

        def wait_stream(self, other: Wrong) -> None:
            if wrong != "does not wait":
                self.stream.wait_stream(other.stream)
            if wrong == "stays on the side stream" and self.stream.stream_id:
                torch.accelerator.set_stream(self.stream)

    monkeypatch.setattr(operators, "_get_stream_by_index", lambda index: Wrong(right(index)))
    context = CaseContext(device, "compile.programs::region_on_a_side_stream")
    if not wrong:
        region_on_a_side_stream(context)
        return
    with pytest.raises(CheckFailed, match="changed the current stream|dropped a call"):
        region_on_a_side_stream(context)


@pytest.mark.slow
@pytest.mark.parametrize("wrong", [False, True])
def test_sums_of_overlapping_slices_by_foreach(wrong: bool) -> None:
    name = "reads_of_shifted_slices_by_foreach"
    [case] = [c for c in planned_cases(contract.load(), whole=False) if c.name == name]
    with replaced(
        comparing, "backend_of", op_by_op(_reads_sums_that_are_written) if wrong else right_backend
    ):
        assert outcome_on_cpu(case) is (Outcome.FAIL if wrong else Outcome.PASS)
