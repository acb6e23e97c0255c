"""Conversions between floating-point dtypes: the expected values are right, and wrong conversions are noticed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from conformance.suites.precision.conversions import FORMATS, around, numbers_of, rounded, values_of
from devices.simulated.backend.fault_switches import planted
from tests.autograd.trying import tried

CLAUSE = "precision.conversions"
SMALL = [dtype for dtype in FORMATS if getattr(torch, dtype).itemsize <= 2]
Convert = Callable[..., Any]


@pytest.mark.parametrize("dtype", SMALL)
def test_a_number_is_decoded_as_torch_does_and_is_its_own_rounding(dtype: str) -> None:
    numbers = numbers_of(dtype)
    values = values_of(numbers, dtype)
    assert len(values) == 256**numbers.dtype.itemsize
    assert torch.equal(values.nan_to_num(1e9), numbers.float().double().nan_to_num(1e9))
    finite = values[values.isfinite()]
    assert torch.equal(rounded(finite, dtype), finite)


def test_of_two_numbers_that_are_as_near_the_even_one_is_right() -> None:
    x = torch.tensor([1 + 2**-8, 1 + 3 * 2**-8, -(1 + 2**-8), 2.0**-134], dtype=torch.float64)
    assert rounded(x, "bfloat16").tolist() == [1, 1 + 2**-6, -1, 0]
    beyond = torch.tensor([65519.0, 65520.0, -1e9], dtype=torch.float64)
    assert rounded(beyond, "float16").tolist() == [65504, float("inf"), -float("inf")]


def test_the_numbers_around_a_dtype_hold_ties() -> None:
    given = around("float16", "float32")
    assert {1 + 2**-11, 65520.0} <= set(given.tolist()) and given.isnan().any()


def _with_to(
    monkeypatch: pytest.MonkeyPatch, wrong: Callable[[Convert, torch.Tensor, Any], Any]
) -> None:
    """Replaces Tensor.to. ``wrong`` returns another result for a conversion, or None."""
    convert = torch.Tensor.to

    def to(self: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        kind = args[0] if args and isinstance(args[0], torch.dtype) else None
        found = wrong(convert, self, kind) if kind not in (None, self.dtype) else None
        return convert(self, *args, **kwargs) if found is None else found

    monkeypatch.setattr(torch.Tensor, "to", to)


def _truncates(convert: Convert, x: torch.Tensor, kind: Any) -> Any:
    if (x.dtype, kind) == (torch.float32, torch.bfloat16):
        return (x.contiguous().view(torch.int32) & -(2**16)).view(torch.float32).bfloat16()
    return None


def _ties_away_from_zero(convert: Convert, x: torch.Tensor, kind: Any) -> Any:
    if (x.dtype, kind) == (torch.float32, torch.float16):
        return convert(x * (1 + 2**-20), kind)
    return None


def _reads_nan_as_a_number(convert: Convert, x: torch.Tensor, kind: Any) -> Any:
    if x.dtype == torch.float8_e4m3fn:
        return convert(convert(x, torch.float32).nan_to_num(480.0), kind)
    return None


def _loses_the_sign_of_zero(convert: Convert, x: torch.Tensor, kind: Any) -> Any:
    if x.dtype == torch.float16 and kind == torch.float8_e5m2:
        return convert(convert(x, torch.float32) + 0.0, kind)
    return None


def _flushes(convert: Convert, x: torch.Tensor, kind: Any) -> Any:
    if x.dtype == torch.bfloat16 and kind == torch.float32:
        wide = convert(x, torch.float64)
        return convert(torch.where(wide.abs() < 2.0**-126, wide * 0, wide), kind)
    return None


def _ignores_the_step(convert: Convert, x: torch.Tensor, kind: Any) -> Any:
    if x.dtype == torch.float8_e5m2 and x.dim() and x.stride(0) == 2:
        return convert(x.as_strided(x.shape, (1,)), kind)
    return None


@pytest.mark.parametrize(
    ("wrong", "source"),
    [
        (_truncates, "float32"),
        (_ties_away_from_zero, "float32"),
        (_reads_nan_as_a_number, "float8_e4m3fn"),
        (_loses_the_sign_of_zero, "float16"),
        (_flushes, "bfloat16"),
        (_ignores_the_step, "float8_e5m2"),
    ],
)
def test_a_wrong_conversion_is_noticed(
    wrong: Any, source: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert tried(CLAUSE, f"from_{source}").failure is None
    _with_to(monkeypatch, wrong)
    assert "is wrong" in str(tried(CLAUSE, f"from_{source}").failure)


def test_the_simulated_device_s_fault_is_noticed() -> None:
    assert tried(CLAUSE, "from_float16", "simulated").failure is None
    with planted("precision.conversion_truncates"):
        assert "from float16 to float8_e5m2" in str(
            tried(CLAUSE, "from_float16", "simulated").failure
        )
