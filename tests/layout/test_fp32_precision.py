"""The judge of products at float32 matmul precision "high": errors of TF32 pass, larger ones do not."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from conformance.checks.ops.calls import Found
from conformance.suites.layout.fp32_precision import judge_high_precision, magnitudes


def shortened(x: torch.Tensor, bits: int) -> torch.Tensor:
    """The elements without all but the first ``bits`` bits of their fractions."""
    lost = 23 - bits
    return (x.view(torch.int32) >> lost << lost).view(torch.float32)


def judged(result: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]) -> Found:
    x, y = (
        torch.randn(shape, generator=torch.Generator().manual_seed(2))
        for shape in ((9, 33), (33, 7))
    )
    reference: Any = SimpleNamespace(
        wide=SimpleNamespace(result=x.double() @ y.double()),
        sizes=SimpleNamespace(result=torch.matmul(*magnitudes([x, y]))),
        factors=1,
    )
    evidence: Any = SimpleNamespace(raised=None, read=result(x, y))
    return judge_high_precision(evidence, reference)


@pytest.mark.parametrize("bits", [10, 12, 23])
def test_operands_as_short_as_in_tf32_pass(bits: int) -> None:
    assert [*judged(lambda x, y: shortened(x, bits) @ shortened(y, bits))] == [None]


def with_one(number: float) -> Callable[[torch.Tensor, torch.Tensor], torch.Tensor]:
    def result(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        product = x @ y
        product[2, 3] = number
        return product

    return result


@pytest.mark.parametrize(
    "result",
    [
        lambda x, y: shortened(x, 7) @ shortened(y, 7),
        with_one(float("nan")),
        with_one(float("inf")),
        with_one(0.0),
        lambda x, y: (x @ y)[:-1],
    ],
    ids=["bfloat16", "NaN", "infinity", "zero", "shape"],
)
def test_a_larger_error_is_found(result: Any) -> None:
    (wrong,) = judged(result)
    assert wrong is not None


def test_a_sum_of_nothing_but_zeros_passes() -> None:
    reference: Any = SimpleNamespace(
        wide=SimpleNamespace(result=torch.zeros(3, dtype=torch.float64)),
        sizes=SimpleNamespace(result=torch.zeros(3, dtype=torch.float64)),
        factors=1,
    )
    for value, passes in ((0.0, True), (1e-9, False)):
        evidence: Any = SimpleNamespace(raised=None, read=torch.full((3,), value))
        (wrong,) = judge_high_precision(evidence, reference)
        assert (wrong is None) == passes
