"""context.assert_close: which tensors are close, and the message about those that are not."""

from __future__ import annotations

import math

import pytest
import torch

from conformance.checks.cases.context import CaseContext
from conformance.checks.cases.exceptions import CheckFailed
from devices import registry
from devices.failure import Difference, Failure, Kind
from opinfo.device import open_device

INF, NAN = math.inf, math.nan


@pytest.fixture
def context() -> CaseContext:
    return CaseContext(open_device(registry.get("cpu")), "a test")


def failure(
    context: CaseContext, found: torch.Tensor, want: torch.Tensor, **named: object
) -> Failure:
    """How the comparison fails."""
    with pytest.raises(CheckFailed) as raised:
        context.assert_close(found, want, "the gradient is wrong", **named)  # type: ignore[arg-type]
    assert context.checks == 1
    return raised.value.failure


def numbers(*values: complex) -> torch.Tensor:
    return torch.tensor(values)


@pytest.mark.parametrize(
    ("found", "want", "named"),
    [
        (numbers(1.0, 2.0), numbers(1.0, 2.0), {}),
        (numbers(1.0, 2.5), numbers(1.0, 2.0), {"atol": 0.5}),
        (numbers(1.0, -2.5), numbers(1.0, -2.0), {"rtol": 0.25}),
        (numbers(0.25, 2.5), numbers(0.0, 2.0), {"atol": torch.tensor([0.25, 0.5])}),
        (numbers(INF, -INF), numbers(INF, -INF), {"rtol": 0.1}),
        (numbers(NAN, 1.0), numbers(NAN, 1.0), {"equal_nan": True}),
        (numbers(3 + 4j), numbers(3 + 4.5j), {"atol": 0.5}),
        (numbers(complex(INF, 1)), numbers(complex(INF, 1)), {}),
        (numbers(complex(NAN, 1)), numbers(complex(0, NAN)), {"equal_nan": True}),
        (torch.tensor([7, 8]), torch.tensor([7, 9]), {"atol": 1}),
        (torch.tensor([True, False]), torch.tensor([True, False]), {}),
        (torch.tensor(2.0), torch.tensor(2.0), {}),
        (torch.empty(0, 3), torch.empty(0, 3), {}),
        (numbers(0.1), numbers(0.1).double(), {"check_dtype": False}),
        (torch.tensor([5], dtype=torch.uint8), torch.tensor([5.0]), {"check_dtype": False}),
        (numbers(1.0).half(), numbers(1.001).half(), {"rtol": 0.01}),
        (numbers(1.0).requires_grad_(), numbers(1.0), {}),
        (torch.ones(2, 3).mT, torch.ones(3, 2), {}),
    ],
)  # fmt: skip
def test_close_tensors_pass(
    context: CaseContext, found: torch.Tensor, want: torch.Tensor, named: dict[str, object]
) -> None:
    context.assert_close(found, want, "they differ", **named)  # type: ignore[arg-type]
    assert context.checks == 1


@pytest.mark.parametrize(
    ("found", "want", "named"),
    [
        (numbers(1.0, 2.5), numbers(1.0, 2.0), {"atol": 0.4999}),
        (numbers(1.0, 2.5), numbers(1.0, 2.0), {"rtol": 0.2499}),
        (numbers(0.3, 2.0), numbers(0.0, 2.0), {"atol": torch.tensor([0.25, 0.5])}),
        (numbers(NAN), numbers(NAN), {"atol": 1.0}),
        (numbers(NAN), numbers(1.0), {"atol": 1.0, "equal_nan": True}),
        (numbers(1.0), numbers(NAN), {"atol": 1.0, "equal_nan": True}),
        (numbers(INF), numbers(NAN), {"equal_nan": True}),
        (numbers(INF), numbers(-INF), {"rtol": 1.0}),
        (numbers(INF), numbers(1.0), {"rtol": 1e30}),
        (numbers(1.0), numbers(INF), {"rtol": 0.1}),
        (numbers(1.0), numbers(2.0), {"atol": INF}),
        (numbers(1.0), numbers(2.0), {"atol": NAN}),
        (numbers(1.0), numbers(2.0), {"rtol": NAN}),
        (numbers(1.0, 1.0), numbers(1.0, 2.0), {"atol": torch.tensor([0.0, INF])}),
        (numbers(3 + 4j), numbers(3 - 4j), {"atol": 1.0}),
        (numbers(3 + 0j), numbers(3 + 1j), {}),
        (numbers(complex(NAN, 1)), numbers(1 + 1j), {"equal_nan": True}),
        (torch.tensor([7]), torch.tensor([8]), {}),
        (torch.tensor([2**53]), torch.tensor([2**53 + 1]), {}),
        (torch.tensor([True]), torch.tensor([False]), {}),
        (torch.tensor(2.0), torch.tensor(3.0), {}),
        (numbers(0.1), numbers(0.1).double() + 1e-7, {"check_dtype": False}),
    ],
)  # fmt: skip
def test_a_difference_of_values_fails(
    context: CaseContext, found: torch.Tensor, want: torch.Tensor, named: dict[str, object]
) -> None:
    assert failure(context, found, want, **named).kind is Kind.VALUES


def test_the_message_names_the_largest_difference_and_the_tolerance(context: CaseContext) -> None:
    want = torch.tensor([[1.0, 2.0], [4.0, 8.0]])
    found = torch.tensor([[1.0, 2.5], [4.0, 10.0]])
    shown = failure(context, found, want, rtol=0.125, atol=0.0625, at="graph 2 of 3")
    assert shown.message == (
        "the gradient is wrong: expected 8 at index [1, 1], with a tolerance of 1.06 (rtol 0.125, atol 0.0625),"
        " found 10, the largest difference is 2 (graph 2 of 3); 2 of 4 differ, the first at [0, 1]"
    )
    assert shown.where == Difference(2, 4, (0, 1), 2.0)


@pytest.mark.parametrize(
    ("found", "want", "named", "message"),
    [
        (numbers(1.0, NAN, 5.0), numbers(1.0, 2.0, 3.0), {"atol": 0.5},
         "expected 2 at index [1], with a tolerance of 0.5, found nan; 2 of 3 differ, the first at [1]"),
        (numbers(1.0, INF), numbers(1.0, 2.0), {},
         "expected 2 at index [1], found inf; 1 of 2 differ, the first at [1]"),
        (numbers(1.0), numbers(-INF), {"atol": 0.5, "rtol": 0.5},
         "expected -inf at index [0] (rtol 0.5, atol 0.5), found 1; 1 of 1 differ, the first at [0]"),
        (torch.tensor(3), torch.tensor(2), {},
         "expected 2, found 3, the largest difference is 1; 1 of 1 differ, the first at []"),
        (torch.tensor([True]), torch.tensor([False]), {},
         "expected False at index [0], found True, the largest difference is 1; 1 of 1 differ, the first at [0]"),
        (numbers(1 + 1j), numbers(1 - 1j), {},
         "expected 1-1j at index [0], found 1+1j, the largest difference is 2; 1 of 1 differ, the first at [0]"),
        (numbers(2.0), numbers(1.0), {"atol": torch.tensor([0.25]), "rtol": 0.5},
         "expected 1 at index [0], with a tolerance of 0.75, found 2, the largest difference is 1;"
         " 1 of 1 differ, the first at [0]"),
        (torch.ones(2, 3), torch.ones(3, 2), {}, "expected shape (3, 2), found shape (2, 3)"),
        (torch.ones(1), torch.ones(()), {}, "expected shape (), found shape (1,)"),
        (torch.empty(0, 3), torch.empty(3, 0), {}, "expected shape (3, 0), found shape (0, 3)"),
        (torch.ones(2).half(), torch.ones(2), {}, "expected torch.float32, found torch.float16"),
    ],
)  # fmt: skip
def test_the_message_about(
    context: CaseContext,
    found: torch.Tensor,
    want: torch.Tensor,
    named: dict[str, object],
    message: str,
) -> None:
    assert failure(context, found, want, **named).message == f"the gradient is wrong: {message}"


def test_shapes_and_dtypes_have_kinds_of_their_own(context: CaseContext) -> None:
    assert failure(context, torch.ones(2), torch.ones(3)).kind is Kind.SHAPE
    context.checks = 0
    assert failure(context, torch.ones(2), torch.ones(2).long()).kind is Kind.DTYPE
