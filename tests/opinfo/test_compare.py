"""Comparison of results: what counts as equal, dtype by dtype."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from opinfo.compare import DEFAULT_TOLERANCES, bit_equal, difference, same_bytes

NAN, INF = float("nan"), float("inf")


def differs(actual: Any, expected: Any) -> str | None:
    found = difference(actual, expected, DEFAULT_TOLERANCES)
    return None if found is None else str(found)


def test_nan_equals_nan() -> None:
    assert differs(torch.tensor([NAN, 1.0]), torch.tensor([NAN, 1.0])) is None


def test_nan_does_not_equal_a_number() -> None:
    assert differs(torch.tensor([NAN]), torch.tensor([1.0])) is not None
    assert differs(torch.tensor([1.0]), torch.tensor([NAN])) is not None


def test_infinities_of_both_signs_differ() -> None:
    assert differs(torch.tensor([INF]), torch.tensor([INF])) is None
    assert differs(torch.tensor([INF]), torch.tensor([-INF])) is not None


def test_negative_zero_equals_zero() -> None:
    assert differs(torch.tensor([-0.0]), torch.tensor([0.0])) is None


@pytest.mark.parametrize("dtype", sorted(DEFAULT_TOLERANCES))
def test_the_tolerance_of_a_dtype_is_torch_s_own(dtype: str) -> None:
    kind = getattr(torch, dtype)
    if dtype == "complex32":  # assert_close has no kernel for it; torch.testing's table says this
        assert DEFAULT_TOLERANCES[dtype] == (1e-3, 1e-5)
        return
    rtol, atol = torch.testing._comparison.default_tolerances(kind)
    assert DEFAULT_TOLERANCES[dtype] == (rtol, atol)


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "bfloat16", "complex64"])
def test_an_error_is_held_to_atol_plus_rtol_times_expected(dtype: str) -> None:
    rtol, atol = DEFAULT_TOLERANCES[dtype]
    kind = getattr(torch, dtype)
    expected = torch.tensor([64.0], dtype=kind)
    allowed = atol + rtol * 64
    step = torch.finfo(torch.float32 if dtype == "complex64" else kind).eps * 64
    inside = torch.tensor([64.0 + max(allowed - step, 0)], dtype=kind)
    beyond = torch.tensor([64.0 + allowed + 2 * step], dtype=kind)
    assert differs(inside, expected) is None
    assert differs(beyond, expected) is not None


def test_given_tolerances_are_used() -> None:
    pair = torch.tensor([1.1]), torch.tensor([1.0])
    assert difference(*pair, {"float32": (0.2, 0.0)}) is None
    assert difference(*pair, {"float32": (0.0, 0.05)}) is not None


def test_the_largest_error_is_reported() -> None:
    found = difference(
        torch.tensor([1.0, 2.5, NAN, 9.0]), torch.tensor([1.0, 2.0, 3.0, 5.0]), DEFAULT_TOLERANCES
    )
    assert found is not None and found.error == 4.0
    assert str(found) == "expected 2.0, found 2.5; 3 of 4 differ, the first at [1]"


@pytest.mark.parametrize(
    "dtype",
    ["bool", "uint8", "int8", "int16", "int32", "int64", "uint16", "uint32", "uint64"],
)
def test_whole_numbers_must_be_equal(dtype: str) -> None:
    kind = getattr(torch, dtype)
    expected = torch.tensor([0, 1, 1], dtype=kind)
    assert differs(expected.clone(), expected) is None
    text = differs(torch.tensor([0, 1, 0], dtype=kind), expected)
    assert text is not None and text.endswith("; 1 of 3 differ, the first at [2]")


def test_large_int64_are_not_compared_as_floats() -> None:
    assert differs(torch.tensor([2**62 + 1]), torch.tensor([2**62])) is not None


@pytest.mark.parametrize(
    "dtype", ["float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz"]
)
def test_float8_is_compared_by_value(dtype: str) -> None:
    kind = getattr(torch, dtype)
    expected = torch.tensor([1.0, -2.0, NAN]).to(kind)
    assert differs(expected.clone(), expected) is None
    assert differs(torch.tensor([1.0, -1.75, NAN]).to(kind), expected) is not None


def test_float8_e8m0fnu_is_compared_by_value() -> None:
    expected = torch.tensor([1.0, 4.0]).to(torch.float8_e8m0fnu)
    assert differs(expected.clone(), expected) is None
    assert differs(torch.tensor([1.0, 2.0]).to(torch.float8_e8m0fnu), expected) is not None


def test_complex32_is_compared_by_value_and_within_its_tolerance() -> None:
    expected = torch.tensor([1 + 2j, 3 - 1j]).to(torch.complex32)
    near = torch.tensor([1.001 + 2j, 3 - 1j]).to(torch.complex32)
    far = torch.tensor([1.1 + 2j, 3 - 1j]).to(torch.complex32)
    assert differs(near, expected) is None
    assert differs(far, expected) is not None


def test_shapes_must_be_equal_where_values_broadcast() -> None:
    text = differs(torch.ones(1, 3), torch.ones(3))
    assert text == "expected shape (3,), found (1, 3)"


def test_dtypes_must_be_equal_where_values_are() -> None:
    assert differs(torch.ones(3).double(), torch.ones(3)) == (
        "expected torch.float32, found torch.float64"
    )


def test_layouts_must_be_equal_where_values_are() -> None:
    dense = torch.eye(3)
    assert differs(dense.to_sparse(), dense) is not None
    assert differs(dense.to_sparse(), dense.to_sparse()) is None
    assert differs((dense * 2).to_sparse(), dense.to_sparse()) is not None


def test_strides_do_not_matter() -> None:
    values = torch.arange(6.0).reshape(2, 3)
    assert differs(values.t().contiguous().t(), values) is None


def test_the_differing_output_of_several_is_named() -> None:
    one, two = torch.ones(2), torch.zeros(2)
    text = differs((one, one), (one, two))
    assert text is not None and text.startswith("output 1: expected 0.0, found 1.0; 2 of 2 differ")
    assert differs((one,), (one, two)) == "expected 2 tensors, found 1"


@pytest.mark.parametrize(
    ("actual", "expected", "same"),
    [
        (3, 3, True),
        (3, 4, False),
        (3, 3.0, False),
        (NAN, NAN, True),
        ([1, NAN], (1, NAN), True),
        ([1], [1, 2], False),
        (None, None, True),
        (torch.Size([2]), torch.Size([2]), True),
    ],
)
def test_results_without_tensors_are_compared_too(actual: Any, expected: Any, same: bool) -> None:
    assert (differs(actual, expected) is None) == same


def test_bits_of_nan_and_numbers_are_equal_to_themselves() -> None:
    values = torch.tensor([NAN, 1.0, -0.0, INF])
    assert bit_equal(values, values.clone())


def test_negative_zero_has_other_bits_than_zero() -> None:
    assert not bit_equal(torch.tensor([0.0]), torch.tensor([-0.0]))
    assert not bit_equal(torch.tensor([0j]), torch.tensor([complex(0.0, -0.0)]))


def test_nan_at_another_place_has_other_bits() -> None:
    assert not bit_equal(torch.tensor([NAN, 1.0]), torch.tensor([1.0, NAN]))


def test_bits_are_compared_whatever_the_strides() -> None:
    values = torch.tensor([[NAN, 1.0, 2.0], [3.0, 4.0, 5.0]])
    assert bit_equal(values.t().contiguous().t(), values)
    one = torch.full((4, 4), NAN)[::2, ::3][:1, :1]
    assert bit_equal(one, torch.full((1, 1), NAN))


@pytest.mark.parametrize(
    "dtype",
    [
        *("float8_e5m2", "complex32", "uint16", "bool", "bfloat16"),
        *("float64", "complex64", "complex128"),
    ],
)
def test_bits_are_compared_in_every_dtype(dtype: str) -> None:
    left = torch.tensor([1.0, 0.0]).to(getattr(torch, dtype))
    assert bit_equal(left, left.clone())
    assert not bit_equal(left, torch.tensor([0.0, 1.0]).to(left.dtype))


def test_bits_are_those_of_the_values_that_a_lazy_view_stands_for() -> None:
    values = torch.tensor([1 + 2j, 3 - 4j])
    assert bit_equal(values.conj(), values.conj().resolve_conj())
    assert not bit_equal(values.conj(), values)
    negative = torch._neg_view(values.real)
    assert bit_equal(negative, -values.real) and not bit_equal(negative, values.real)


@pytest.mark.parametrize("count", [0, 7, 4095, 4096, 4103, 70_001])
def test_bytes_are_compared_to_the_last(count: int) -> None:
    left = (torch.arange(count) % 251).to(torch.uint8)
    assert same_bytes(left, left.clone())
    assert not same_bytes(left, torch.cat([left, left.new_zeros(1)]))
    assert not count or not same_bytes(left, left[:-3])
    for place in {0, count // 2, count - 8, count - 1} if count else ():
        right = left.clone()
        right[place] += 1
        assert not same_bytes(left, right)


def test_other_shapes_and_dtypes_have_other_bits() -> None:
    assert not bit_equal(torch.zeros(2), torch.zeros(1, 2))
    assert not bit_equal(torch.zeros(2), torch.zeros(2, dtype=torch.int32))
