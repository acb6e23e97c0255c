"""Faults at single values, which the samples of the axis of points show."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from conformance.suites import autograd, layout
from devices.cell import Outcome
from opinfo.axes import samples_of
from opinfo.axes.points import POINTS, has_points
from opinfo.catalog import catalogue
from opinfo.compare import tensors_of
from tests.faulty import run_faulty
from tests.planting.calls import NOT_MET, Effect, KernelCall
from tests.planting.derivatives import Backward, wrong_derivative

_VALUES = [check for check in layout.SUITE.op_checks if check.clause == "layout.values"]
_GRADIENTS = [check for check in autograd.SUITE.op_checks if check.clause == "autograd.first"]


def _outcome(op: str, checks: list[Any], effect: Effect) -> Outcome:
    samples = samples_of(catalogue()[op], "float32", 16)
    with torch.enable_grad():
        (cell,) = run_faulty(op, "float32", samples, checks, effect).cells.values()
    return cell.outcome()


# -- results; tests/mutation/test_survivors.py has index_put and pooling


def _nan_is_the_smallest(call: KernelCall) -> Any:
    """topk for the smallest numbers takes NaN for a smaller one."""
    given, k, *_ = call.args
    if call.kwargs.get("largest", True) or not given.isnan().any():
        return NOT_MET
    return given.nan_to_num(-1e4).topk(k, **call.kwargs)


def test_a_topk_that_takes_nan_for_the_smallest_number_is_noticed() -> None:
    assert _outcome("topk", _VALUES, KernelCall.honest) is Outcome.PASS
    assert _outcome("topk", _VALUES, _nan_is_the_smallest) is Outcome.FAIL


# -- gradients


class _NaNBesideZero:
    """The gradient is NaN where the result is zero, as that of a quotient by the result; for a product, where two or more
    factors are zero."""

    def left(self, way: Backward, cotangent: torch.Tensor) -> torch.Tensor:
        return cotangent

    def entered(self, way: Backward, place: int, gradient: torch.Tensor) -> torch.Tensor:
        first = way.inputs[0].detach()
        if len(way.inputs) > 1:  # distances
            pairs = (first.unsqueeze(-2) == way.inputs[1].detach().unsqueeze(-3)).all(-1)
            hit = pairs.any(1 - place).unsqueeze(-1)
        else:
            hit = (first == 0).sum(-1, keepdim=True) > 1
        return gradient.masked_fill(hit, math.nan)


@pytest.mark.parametrize("op", ["linalg.vector_norm", "norm", "prod", "cdist", "std"])
def test_a_gradient_that_divides_by_zero_is_noticed(op: str) -> None:
    assert _outcome(op, _GRADIENTS, KernelCall.honest) is Outcome.PASS
    assert _outcome(op, _GRADIENTS, wrong_derivative(_NaNBesideZero())) is Outcome.FAIL


@pytest.mark.parametrize("op", sorted(filter(has_points, catalogue())))
def test_gradients_of_the_cpu_are_finite_at_the_points(op: str) -> None:
    """What is not defined is not asked for."""
    samples = [s for s in samples_of(catalogue()[op], "float32", 16) if s.axis == POINTS.name]
    assert samples
    for sample in samples:
        given = [t.clone().requires_grad_(t.is_floating_point()) for t in sample.tensors]
        args, kwargs = sample.call.bind(given)
        with torch.enable_grad():
            results = tensors_of(catalogue()[op].reference(*args, **kwargs))
            results = [each for each in results if each.requires_grad]
            if not results:
                continue
            wanted = [each for each in given if each.requires_grad]
            grads = torch.autograd.grad([each.sum() for each in results], wanted)
        assert all(bool(each.isfinite().all()) for each in grads)
