"""Gradients of decompositions: wrong ones are noticed, and what is not determined may differ."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from conformance.contract.bugs import Imitation
from conformance.suites.autograd import SUITE
from conformance.suites.autograd.decompositions import (
    magnitudes_of_factors,
    sums_over_eigenpairs,
    sums_over_eigenvalues,
)
from tests.bugs.derivatives import effect_of
from tests.faulty import clauses_that_fail

FIRST = "autograd.first"
OPS = ("svd", "linalg.svd", "linalg.eigh", "linalg.eig", "linalg.eigvals", "qr", "linalg.qr")
CHECKS = [check for check in SUITE.op_checks if check.clause == FIRST]


@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize(
    "imitation",
    [
        {"of": "input", "then": "wrong"},
        {"of": "input", "then": "last_wrong"},
        {"of": "input", "when": ["strided"], "then": "wrong"},
        {"of": "cotangent", "then": "ignored"},
    ],
    ids=["wrong", "last element", "strided input", "cotangent ignored"],
)
@pytest.mark.parametrize("dtype", ["float32", "complex64"])
def test_a_wrong_gradient_is_noticed(op: str, imitation: dict[str, Any], dtype: str) -> None:
    fault = effect_of(Imitation(op=op, **imitation))
    assert clauses_that_fail(op, dtype, CHECKS, fault) == (FIRST,)


@pytest.mark.parametrize("op", OPS)
def test_a_right_gradient_passes(op: str) -> None:
    assert clauses_that_fail(op, "float32", CHECKS, lambda call: call.honest()) == ()


def test_sums_do_not_depend_on_order_or_phase() -> None:
    values, vectors = torch.linalg.eig(torch.arange(9.0).view(3, 3).sin())
    order = torch.tensor([2, 0, 1])
    other = values[order], vectors[:, order] * torch.exp(1j * torch.arange(3.0))
    for one, two in zip(sums_over_eigenpairs((values, vectors)), sums_over_eigenpairs(other)):
        torch.testing.assert_close(one, two)
    torch.testing.assert_close(sums_over_eigenvalues(values), sums_over_eigenvalues(values[order]))


def test_magnitudes_do_not_depend_on_signs() -> None:
    factors = torch.linalg.qr(torch.arange(9.0).view(3, 3).sin())
    for one, two in zip(
        magnitudes_of_factors(factors), magnitudes_of_factors([-f for f in factors])
    ):
        assert torch.equal(one, two)
