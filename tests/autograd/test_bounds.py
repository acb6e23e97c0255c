"""Gradients of elements that are equal to a bound."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from conformance.suites.autograd import SUITE
from devices.cell import Outcome
from opinfo.axes import samples_of
from opinfo.catalog import catalogue
from tests.faulty import run_faulty
from tests.planting.calls import NOT_MET, Effect, KernelCall

_FIRST = [check for check in SUITE.op_checks if check.clause == "autograd.first"]


def _with_gradient_within(low: float, high: float) -> Effect:
    """hardtanh passes the cotangent on for elements that are equal to its bounds. By default these are ``low`` and
    ``high``."""

    def effect(call: KernelCall) -> Any:
        if not (call.first.requires_grad and torch.is_grad_enabled()):
            return NOT_MET
        least, most = call.kwargs.get("min_val", low), call.kwargs.get("max_val", high)

        class Hardtanh(torch.autograd.Function):
            @staticmethod
            def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
                ctx.save_for_backward(x)
                return call.function(x.detach(), *call.args[1:], **call.kwargs)  # type: ignore[no-any-return]

            @staticmethod
            def backward(ctx: Any, cotangent: torch.Tensor) -> torch.Tensor:
                (x,) = ctx.saved_tensors
                return cotangent * ((x >= least) & (x <= most))  # type: ignore[no-any-return]

        return Hardtanh.apply(call.first)  # type: ignore[no-untyped-call]

    return effect


@pytest.mark.slow
def test_a_gradient_that_is_wrong_at_a_bound_alone_is_noticed() -> None:
    op = "nn.functional.hardtanh"
    samples = samples_of(catalogue()[op], "float32", 16)
    with torch.enable_grad():
        for effect, outcome in (
            (KernelCall.honest, Outcome.PASS),
            (_with_gradient_within(-1.0, 1.0), Outcome.FAIL),
        ):
            (cell,) = run_faulty(op, "float32", samples, _FIRST, effect).cells.values()
            assert cell.outcome() is outcome
