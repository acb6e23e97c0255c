"""Gradients in 16 bits: what is wrong by a few per cent is noticed, and what roundings explain is not."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from conformance.suites.autograd import SUITE
from conformance.suites.autograd.cpu_gradients import changed_by_roundings, gradients
from conformance.suites.autograd.gradients import Gradients
from conformance.suites.autograd.half_precision import (
    DTYPES,
    QUICK,
    applies,
    judge_rounded_gradients,
)
from devices.cell import Outcome
from opinfo.catalog import catalogue
from opinfo.exceptions import exceptions
from opinfo.samples import draw, probe
from tests.faulty import run_faulty
from tests.planting.derivatives import Backward, wrong_derivative

CHECKS = [check for check in SUITE.op_checks if check.clause == "precision.gradients"]


class _Scaled:
    """Gradients of inputs in 16 bits that are wrong by a factor."""

    def __init__(self, factor: float) -> None:
        self.factor = factor

    def left(self, way: Backward, cotangent: torch.Tensor) -> torch.Tensor:
        return cotangent

    def entered(self, way: Backward, place: int, gradient: torch.Tensor) -> torch.Tensor:
        return gradient * self.factor


def outcome(op: str, dtype: str, factor: float) -> Outcome:
    samples = draw(catalogue()[op], dtype)
    found = run_faulty(op, dtype, samples, CHECKS, wrong_derivative(_Scaled(factor)))
    return found.cells["precision.gradients"].outcome()


@pytest.mark.parametrize("dtype", sorted(DTYPES))
@pytest.mark.parametrize("op", ["mul", "softmax", "nn.functional.layer_norm"])
def test_a_gradient_that_is_too_large_is_noticed(op: str, dtype: str) -> None:
    assert outcome(op, dtype, 1.0) is Outcome.PASS
    assert outcome(op, dtype, 1.04) is Outcome.FAIL


def test_the_ops_of_plan_quick_have_gradients_in_16_bits() -> None:
    for op, dtype in QUICK.items():
        samples = draw(catalogue()[op], dtype)[:1]
        assert applies(probe(catalogue()[op], dtype, samples, exceptions()))


def reference(want: torch.Tensor, **more: Any) -> Any:
    parts = {"wants": [want], "slack": [None], "least": [None], "alike": None, "shared": {}}
    parts |= {"kinds": [torch.bfloat16], "subjects": ["the gradient"], "dtype": "bfloat16"}
    return SimpleNamespace(**parts | {"bound": 2.0} | more)


def verdict(got: torch.Tensor, expected: Any) -> list[bool]:
    return [each is None for each in judge_rounded_gradients(Gradients(read=[got]), expected)]


WANT = torch.tensor([1.0, 0.25, 0.0], dtype=torch.float64)
#: Three units in the last place of the largest element.
OFF = torch.tensor([1.0, 0.25, 3 * 2.0**-7]).bfloat16()


def test_an_error_beyond_the_bound_is_noticed() -> None:
    assert verdict(WANT.bfloat16(), reference(WANT)) == [True]
    assert verdict(OFF, reference(WANT)) == [False]


def test_nan_and_a_missing_gradient_are_noticed() -> None:
    lost = WANT.bfloat16().index_fill(0, torch.tensor(2), torch.nan)
    assert verdict(lost, reference(WANT)) == [False]
    nothing = [*judge_rounded_gradients(Gradients(read=[None]), reference(WANT))]
    assert nothing[0] is not None


def test_what_roundings_change_is_forgiven() -> None:
    assert verdict(OFF, reference(WANT, slack=[torch.full((3,), 0.02)])) == [True]


def test_what_the_cpu_computes_as_wrongly_is_not_blamed_on_the_device() -> None:
    alike = Gradients(read=[OFF])
    assert verdict(OFF, reference(WANT, alike=alike)) == [True]
    assert verdict(OFF * 2, reference(WANT, alike=alike)) == [False]
    for number in (torch.nan, torch.inf):
        lost = OFF.index_fill(0, torch.tensor(2), number)
        assert verdict(lost, reference(WANT, alike=alike)) == [False]


def test_a_gradient_in_another_dtype_is_noticed() -> None:
    assert verdict(WANT.float(), reference(WANT)) == [False]


def test_the_rounding_of_a_saved_result_counts() -> None:
    """Where one probability is almost 1, the gradient of softmax cancels, by as much as that probability is rounded."""
    x = torch.tensor([[8.0, 0.0, 0.0]]).bfloat16()
    cotangent = torch.ones(1, 3).bfloat16()
    (slack,) = changed_by_roundings(
        gradients,
        lambda t: t.softmax(-1),
        lambda tensors, device: (tensors, {}),
        [x],
        [0],
        [cotangent],
        2.0**-8,
        2.0,
    )
    assert slack is not None
    assert float(slack[0, 0]) > 2.0**-9
