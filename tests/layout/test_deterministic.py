"""With deterministic algorithms, gradients that differ from call to call are noticed, and wrong values too."""

from __future__ import annotations

from itertools import count
from typing import Any

import pytest
import torch

from conformance.suites.layout import SUITE
from devices.cell import Outcome
from opinfo.axes import samples_of
from opinfo.catalog import catalogue
from tests.faulty import run_faulty
from tests.planting.calls import NOT_MET, Effect, KernelCall
from tests.planting.derivatives import Backward, wrong_derivative


def outcome(op: str, effect: Effect) -> Outcome:
    checks = [check for check in SUITE.op_checks if check.clause == "layout.determinism"]
    samples = samples_of(catalogue()[op], "float32", 16)
    return run_faulty(op, "float32", samples, checks, effect).cells["layout.determinism"].outcome()


class _Varies:
    """The last bit of the first element of a gradient changes from call to call if an index repeats."""

    def __init__(self) -> None:
        self._calls = count()

    def left(self, way: Backward, cotangent: torch.Tensor) -> torch.Tensor:
        return cotangent

    def entered(self, way: Backward, place: int, gradient: torch.Tensor) -> torch.Tensor:
        found = gradient.clone()
        found.view(-1)[0] += next(self._calls) % 2 * 1e-4
        return found


class _Right(_Varies):
    def entered(self, way: Backward, place: int, gradient: torch.Tensor) -> torch.Tensor:
        return gradient


def repeats(call: KernelCall) -> bool:
    return any(t.dtype == torch.int64 and t.unique().numel() < t.numel() for t in call.inputs)


def varying_where_an_index_repeats() -> Effect:
    fault = wrong_derivative(_Varies())
    return lambda call: fault(call) if repeats(call) else NOT_MET


def wrong_in_deterministic_mode(call: KernelCall) -> Any:
    if not torch.are_deterministic_algorithms_enabled():
        return NOT_MET
    return call.honest() + 1


@pytest.mark.parametrize("op", ["gather", "index_select", "nn.functional.embedding"])
def test_a_gradient_that_varies_where_an_index_repeats_is_noticed(op: str) -> None:
    assert outcome(op, varying_where_an_index_repeats()) is Outcome.FAIL


@pytest.mark.parametrize("op", ["nn.functional.linear", "cumsum"])
def test_a_gradient_that_varies_is_noticed(op: str) -> None:
    assert outcome(op, wrong_derivative(_Varies())) is Outcome.FAIL


@pytest.mark.parametrize("op", ["index_copy", "scatter_add"])
def test_a_deterministic_kernel_with_wrong_values_is_noticed(op: str) -> None:
    assert outcome(op, wrong_in_deterministic_mode) is Outcome.FAIL


@pytest.mark.parametrize("op", ["gather", "mm"])
def test_equal_gradients_pass(op: str) -> None:
    assert outcome(op, wrong_derivative(_Right())) is Outcome.PASS
