"""Python numbers that an integer dtype cannot hold."""

from __future__ import annotations

from copy import copy
from typing import Any

import pytest
import torch

from conformance.checks.cells import CellRecord
from conformance.checks.ops.context import run_checks
from conformance.suites.dispatch import SUITE
from conformance.suites.dispatch.number_range import refuses_number
from conformance.suites.dispatch.refusals import ERROR_INPUTS
from devices.cell import Outcome
from opinfo.catalog import Op, catalogue
from opinfo.compare import Wrong
from opinfo.guarded import identity
from tests.mutation.items import Subject


def _judged(function: Any) -> CellRecord:
    context = Subject("addcmul", "float32", run=False).context([ERROR_INPUTS])
    op: Any = Op(copy(catalogue()["addcmul"].info))
    op.info.op = function
    context.subject = op
    run_checks(context, SUITE.op_checks)
    return context.recorder.cells[ERROR_INPUTS]


def test_a_number_that_is_wrapped_is_noticed() -> None:
    def wrapping(*args: Any, value: Any = 1) -> Any:
        there = args[0].device.type != "cpu" and not args[0].is_floating_point()
        return torch.addcmul(*args, value=value % 2**15 if there else value)

    record = _judged(wrapping)
    assert record.outcome() is Outcome.FAIL
    assert "int16 cannot hold" in record.failures[0].message
    assert _judged(torch.addcmul).outcome() is Outcome.PASS


def test_a_device_without_calls_of_integers_is_not_judged() -> None:
    def refusing(*args: Any, value: Any = 1) -> Any:
        if args[0].device.type != "cpu" and not args[0].is_floating_point():
            raise RuntimeError("no integers")
        return torch.addcmul(*args, value=value)

    outcome = _judged(refusing).to_outcome()
    assert outcome.outcome is Outcome.UNSUPPORTED and "integers" in outcome.message


@pytest.mark.parametrize(("at", "refused"), [("alpha", False), ("value", True)])
def test_the_argument_is_replaced_alone(at: str, refused: bool) -> None:
    seen = []

    def op(x: torch.Tensor, alpha: Any = 0, value: Any = 0) -> torch.Tensor:
        seen.append((x.dtype, alpha, value))
        if value == 2**40:
            raise OverflowError
        return x

    def arguments(tensors: list[torch.Tensor]) -> Any:
        return tensors, {"alpha": 0.5, "value": 3}

    about = (op, identity, identity, [torch.ones(2)], arguments)
    found = refuses_number(*about, at, 2**40, "int16")
    assert isinstance(found, Wrong) is not refused
    assert seen[0] == (torch.int16, 1, 3 if at == "alpha" else 1)
    assert seen[1] == (torch.int16, *((2**40, 3) if at == "alpha" else (1, 2**40)))
