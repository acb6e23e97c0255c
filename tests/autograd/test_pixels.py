"""Gradients that are wrong for images of one pixel in channels_last are noticed. Such an image is contiguous as well."""

from __future__ import annotations

import pytest
import torch

from conformance.suites.autograd import SUITE
from devices.cell import Outcome
from opinfo.axes import samples_of
from opinfo.catalog import catalogue
from tests.faulty import run_faulty
from tests.planting.derivatives import Backward, wrong_derivative


def _in_channels_last(tensor: torch.Tensor) -> bool:
    shape = tuple(tensor.shape)
    return len(shape) == 4 and shape[2:] == (1, 1) and shape[1] > 1 and tensor.stride(3) == shape[1]


class _WrongForPixels:
    def left(self, way: Backward, cotangent: torch.Tensor) -> torch.Tensor:
        return cotangent

    def entered(self, way: Backward, place: int, gradient: torch.Tensor) -> torch.Tensor:
        return gradient + 1 if _in_channels_last(way.inputs[0]) else gradient


class _Right(_WrongForPixels):
    def entered(self, way: Backward, place: int, gradient: torch.Tensor) -> torch.Tensor:
        return gradient


def outcome(op: str, fault: _WrongForPixels) -> Outcome:
    checks = [check for check in SUITE.op_checks if check.clause == "autograd.first"]
    samples = samples_of(catalogue()[op], "float32", 16)
    found = run_faulty(op, "float32", samples, checks, wrong_derivative(fault))
    return found.cells["autograd.first"].outcome()


@pytest.mark.parametrize(
    "op",
    [
        pytest.param("nn.functional.conv2d", marks=pytest.mark.slow),
        "nn.functional.batch_norm",
        pytest.param("nn.functional.group_norm", marks=pytest.mark.slow),
        pytest.param("nn.functional.adaptive_avg_pool2d", marks=pytest.mark.slow),
    ],
)
def test_a_gradient_that_is_wrong_for_one_pixel_in_channels_last_is_noticed(op: str) -> None:
    assert outcome(op, _WrongForPixels()) is Outcome.FAIL


@pytest.mark.slow
def test_right_gradients_pass() -> None:
    assert outcome("nn.functional.batch_norm", _Right()) is Outcome.PASS
