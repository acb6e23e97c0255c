"""Exact sums, and answers that are not those of the call."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

import pytest
import torch

from conformance.suites.precision.exact import EXACT, not_exact
from conformance.suites.precision.trust import TRUST, fresh_answers
from devices.cell import Outcome
from opinfo.catalog import catalogue
from opinfo.compare import DEFAULT_TOLERANCES
from opinfo.exceptions import exceptions
from tests.precision.test_bounds import Wrapped


def zeros(value: torch.Tensor) -> torch.Tensor:
    return torch.zeros_like(value)


def constant(value: torch.Tensor) -> torch.Tensor:
    if value.numel() < 2:
        return torch.zeros_like(value)
    return torch.full_like(value, value.flatten()[0].item())


def off_by_one(value: torch.Tensor) -> torch.Tensor:
    changed = value.clone()
    if changed.numel() and changed.is_floating_point():
        changed.view(-1)[-1:] += 1
    return changed


def of_family(family: str) -> list[str]:
    return [op for each in exceptions().families if each.name == family for op in each.ops]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_one_term_too_many_in_one_element_fails_for_every_sum(dtype: str) -> None:
    device, missed = Wrapped(off_by_one), []
    for op in of_family("sums.exact"):
        found = device.cells(op, dtype, EXACT) if dtype in catalogue()[op].dtypes else {}
        if found and found[EXACT] is not Outcome.FAIL:
            missed.append((op, found))
    assert missed == []


def test_a_mean_may_be_one_unit_off_and_a_sum_may_not() -> None:
    third = torch.tensor([1 / 3], dtype=torch.float64)
    near = torch.nextafter(third.float(), torch.tensor(1.0))
    assert not_exact(near, third, "float32", "") is None
    assert not_exact(near + 1e-6, third, "float32", "") is not None
    three = torch.tensor([3.0], dtype=torch.float64)
    assert not_exact(torch.nextafter(three.float(), torch.tensor(0.0)), three, "float32", "")


@pytest.mark.parametrize("answer", [zeros, constant], ids=lambda f: f.__name__)
def test_an_answer_that_is_no_answer_never_passes(
    answer: Callable[[torch.Tensor], torch.Tensor],
) -> None:
    """A device that always says this passes no cell: neither of trust nor of values."""
    device = Wrapped(answer)
    ops = [op.id for op in catalogue().values() if "float32" in op.dtypes]
    Random(3).shuffle(ops)
    passed = []
    for op in ops[:60]:
        found = device.cells(op, "float32", TRUST)
        if found and found[TRUST] is Outcome.PASS:
            passed.append(op)
    assert passed == []


# -- wrong devices


def asked(op: Callable[..., torch.Tensor]) -> str:
    """What is said of an op of two operands, which the reference asks too."""
    given = [torch.tensor([1.0, 2.0, 3.0]), torch.tensor([3.0, 5.0, 7.0])]
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
    )
    return str(found or "")


def test_a_right_op_is_right() -> None:
    assert asked(torch.mul) == ""


def test_a_result_kept_by_address_is_seen() -> None:
    kept: dict[int, torch.Tensor] = {}
    assert "the answer for the values before" in asked(
        lambda a, b: kept.setdefault(a.data_ptr(), a * b).clone()
    )


def test_a_workspace_that_is_not_cleared_is_seen() -> None:
    calls: list[torch.Tensor] = []

    def op(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        calls.append(a)
        return a * b + (1.0 if len(calls) > 6 else 0.0)

    assert "call 4 of 10" in asked(op)
