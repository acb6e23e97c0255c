"""Errors in units in the last place, as numbers."""

from __future__ import annotations

import mpmath
import pytest
import torch

from conformance.suites.precision.ulps import FORMATS, allowed, inputs, operand_values, ulps

DTYPES = list(FORMATS)


def kind(dtype: str) -> torch.dtype:
    found = getattr(torch, dtype)
    assert isinstance(found, torch.dtype)
    return found


def stepped(value: torch.Tensor, steps: int) -> torch.Tensor:
    """The floating-point numbers so many steps further from zero."""
    bits = torch.int32 if value.dtype == torch.float32 else torch.int16
    return (value.contiguous().view(bits) + steps).view(value.dtype)


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_step_is_one_ulp_from_the_smallest_normal_to_the_end_of_a_binade(dtype: str) -> None:
    _, lowest, highest = FORMATS[dtype]
    starts = torch.tensor([1.0, 1.5, -1.25, 2.0**lowest, 2.0 ** (highest - 1)], dtype=kind(dtype))
    for steps in (0, 1, 5):
        assert ulps(stepped(starts, steps), starts.double(), dtype).tolist() == [steps] * 5
    below = torch.tensor([2.0 ** (lowest - 3)], dtype=kind(dtype))  # subnormal: the same unit
    assert ulps(stepped(below, 1), below.double(), dtype).tolist() == [1.0]


@pytest.mark.parametrize("dtype", DTYPES)
def test_infinity_is_one_ulp_from_the_largest_number(dtype: str) -> None:
    most = torch.tensor([torch.finfo(kind(dtype)).max]).double()
    infinity = torch.tensor([torch.inf], dtype=kind(dtype))
    assert ulps(infinity, most, dtype).tolist() == [1.0]
    assert ulps(infinity, torch.tensor([1e300], dtype=torch.float64), dtype).tolist() == [0.0]
    assert ulps(-infinity, most, dtype)[0] > 100


def test_nan_equals_nan_and_nothing_else() -> None:
    got, want = torch.tensor([torch.nan, torch.nan, 1.0]), torch.tensor([torch.nan, 1.0, torch.nan])
    assert ulps(got, want.double(), "float32").tolist() == [0.0, torch.inf, torch.inf]


@pytest.mark.parametrize("dtype", DTYPES)
def test_all_values_of_16_bits_are_asked_and_every_binade_of_float32(dtype: str) -> None:
    for seed in (0, 1):
        values = inputs(dtype, seed)
        bits = values.view(torch.int32 if dtype == "float32" else torch.int16).to(torch.int64)
        if dtype == "float32":
            assert len(((bits >> 23) & 511).unique()) == 512
        else:
            signalling = 2 * (2 ** (FORMATS[dtype][0] - 2) - 1)
            assert len(bits.unique()) == 2**16 - signalling
        assert len(values) % 64  # a tail


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("interval", [(0.5, 1e9), (-100.0, 10.0)])
def test_an_interval_holds_all_inputs(dtype: str, interval: tuple[float, float]) -> None:
    values = inputs(dtype, 1, interval).double()
    most = torch.finfo(kind(dtype)).max
    assert values.min() >= interval[0] and values.max() <= min(interval[1], most)
    assert len(values.unique()) > 2**11


def test_an_absolute_part_is_told_in_ulps_of_the_result() -> None:
    want = torch.tensor([1.0, 2.0**-10], dtype=torch.float64)
    limit = {"ulps": 2.0, "absolute": 2.0**-23}
    found = allowed(want, [], "float32", limit)
    assert isinstance(found, torch.Tensor) and found.tolist() == [3.0, 2.0 + 2.0**10]


def test_a_cancelling_function_may_be_off_by_ulps_of_its_operand() -> None:
    want = torch.tensor([2.0**-10], dtype=torch.float64)
    limit = {"ulps": 1.0, "of_operand": 2.0}
    found = allowed(want, [torch.tensor([4.0]), torch.tensor([-1.0])], "float32", limit)
    assert isinstance(found, torch.Tensor) and found.tolist() == [1.0 + 2 * 2.0**12]


@pytest.mark.parametrize("name", ["exp", "sin", "log1p", "erfc", "atanh", "expm1"])
def test_the_reference_in_float64_is_more_precise_than_any_bound(name: str) -> None:
    """mpmath with 40 digits, at values of float32 in many binades."""
    values = inputs("float32")[5 :: 2**9].double()
    want = getattr(torch, name)(values)
    usable = want.isfinite() & values.isfinite() & (want.abs() > 1e-38) & (want.abs() < 1e38)
    function = getattr(mpmath, name)
    with mpmath.workdps(60):
        for value, found in zip(values[usable].tolist(), want[usable].tolist()):
            exact = function(mpmath.mpf(value))
            assert abs((exact - found) / exact) < 2**-45, value


def exponents(values: torch.Tensor, dtype: str) -> torch.Tensor:
    """The exponents of 16-bit numbers as their bits have them."""
    return values.view(torch.int16).to(torch.int64) >> (FORMATS[dtype][0] - 1) & (
        2 ** (16 - FORMATS[dtype][0]) - 1
    )


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_two_operands_of_16_bits_meet_in_each_pair_of_exponents(dtype: str) -> None:
    one, other = operand_values(dtype, 2)
    assert len(one) == len(other) and len(one) % 64
    pairs = exponents(one, dtype) << 8 | exponents(other, dtype)
    assert len(pairs.unique()) == 4 ** (16 - FORMATS[dtype][0])
    assert not torch.equal(one[:100].view(torch.int16), other[:100].view(torch.int16))


def test_operands_in_an_interval_stay_there() -> None:
    for each in operand_values("bfloat16", 2, (0.5, 4.0)):
        assert float(each.min()) >= 0.5 and float(each.max()) <= 4.0


def test_one_operand_and_operands_of_float32_are_as_they_were() -> None:
    assert torch.equal(
        operand_values("bfloat16", 1)[0].view(torch.int16), inputs("bfloat16").view(torch.int16)
    )
    assert [len(each) for each in operand_values("float32", 2)] == [2**16 + 7] * 2
