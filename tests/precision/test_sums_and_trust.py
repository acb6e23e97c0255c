"""Exact sums, and answers that are not those of the call."""

from __future__ import annotations

from collections.abc import Callable
from itertools import cycle

import pytest
import torch

from conformance.suites.precision.exact_sums import EXACT, not_exact
from conformance.suites.precision.stale_results import fresh_answers
from conformance.suites.precision.ulps import FORMATS
from opinfo.catalog import catalogue
from opinfo.compare import DEFAULT_TOLERANCES
from opinfo.exceptions import exceptions
from tests.precision.wrong import TERMS, told_of


def of_family(family: str) -> list[str]:
    return [op for each in exceptions().families if each.name == family for op in each.ops]


@pytest.mark.slow
def test_each_sum_notices_a_term_that_is_dropped_doubled_or_misplaced() -> None:
    """One dtype of each op; ``python -m tests.precision`` asks all."""
    missed, dtypes = [], cycle(FORMATS)
    for op, dtype in zip([*of_family("sums.exact"), *of_family("sums.divided")], dtypes):
        if dtype in catalogue()[op].dtypes and (told := told_of(op, dtype)) is not None:
            seen = {each for each in TERMS if EXACT in told.noticed.get(each, ())}
            missed += [(op, dtype, each) for each in TERMS if each not in seen]
    assert missed == []


def test_a_mean_may_be_one_unit_off_and_a_sum_may_not() -> None:
    third = torch.tensor([1 / 3], dtype=torch.float64)
    near = torch.nextafter(third.float(), torch.tensor(1.0))
    assert not_exact(near, third, "float32", "") is None
    assert not_exact(near + 1e-6, third, "float32", "") is not None
    three = torch.tensor([3.0], dtype=torch.float64)
    assert not_exact(torch.nextafter(three.float(), torch.tensor(0.0)), three, "float32", "")


# -- wrong devices


def asked(op: Callable[..., torch.Tensor], strided: str = "") -> str:
    """What is said of an op of two operands, which the reference asks too."""
    given = [torch.tensor([[1.0, 2.0, 3.0]] * 2), torch.tensor([[3.0, 5.0, 7.0]] * 2)]
    found = fresh_answers(
        op,
        torch.Tensor.clone,
        torch.clone,
        given,
        lambda tensors: (tensors, {}),
        turn=0,
        dtype="float32",
        tolerances=DEFAULT_TOLERANCES,
        roundings=0.0,
        strided=strided,
    )
    return str(found or "")


def test_a_right_op_is_right() -> None:
    assert asked(torch.mul) == ""


def test_a_result_kept_by_address_is_seen() -> None:
    kept: dict[int, torch.Tensor] = {}
    assert "the result for the earlier values" in asked(
        lambda a, b: kept.setdefault(a.data_ptr(), a * b).clone()
    )


@pytest.mark.parametrize("strided", ["step", "transposed"])
def test_a_result_kept_where_operands_are_not_contiguous_is_seen(strided: str) -> None:
    kept: dict[int, torch.Tensor] = {}

    def op(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        if a.is_contiguous():
            return a * b
        return kept.setdefault(a.data_ptr(), a * b).clone()

    assert asked(op) == ""
    assert "the result for the earlier values" in asked(op, strided)


def test_a_result_kept_for_out_is_seen() -> None:
    kept: dict[int, torch.Tensor] = {}

    def op(a: torch.Tensor, b: torch.Tensor, *, out: torch.Tensor | None = None) -> torch.Tensor:
        if out is None:
            return a * b
        return out.copy_(kept.setdefault(a.data_ptr(), a * b))

    assert asked(op) == ""
    assert asked(torch.mul, "into") == ""
    assert "the result for the earlier values" in asked(op, "into")


def test_a_workspace_that_is_not_cleared_is_seen() -> None:
    calls: list[torch.Tensor] = []

    def op(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        calls.append(a)
        return a * b + (1.0 if len(calls) > 6 else 0.0)

    assert "call 4 of 10" in asked(op)
