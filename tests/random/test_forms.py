"""Draws of each dtype and layout: right ones pass, and what is wrong in one form only does not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from conformance.suites.random.dtypes_and_layouts import of_each_form, one_seed
from conformance.suites.random.samplers import PER_TENSOR_OR_SHAPE, SAMPLERS
from tests.random.planting import Draw, assert_seen, context


@pytest.mark.parametrize("case", [of_each_form, one_seed])
@pytest.mark.parametrize("name", PER_TENSOR_OR_SHAPE)
def test_right_draws_pass(case: Callable[..., None], name: str) -> None:
    case(context(), name)


@pytest.mark.parametrize("name", PER_TENSOR_OR_SHAPE)
def test_the_dtypes_are_those_that_the_cpu_takes(name: str) -> None:
    taken = []
    for dtype in ("float32", "float64", "float16", "bfloat16", "int64", "int32", "int16", "int8"):
        try:
            SAMPLERS[name].like(torch.ones(5).to(getattr(torch, dtype)))
        except (NotImplementedError, RuntimeError, ValueError):
            continue
        taken.append(dtype)
    assert taken == [
        each for each in SAMPLERS[name].dtypes if each not in ("complex64", "uint8", "bool")
    ]


def is_strided(t: torch.Tensor) -> bool:
    return not t.is_contiguous()


def last_zero_if_complex(fill: Draw, t: torch.Tensor, *given: float) -> torch.Tensor:
    fill(t, *given)
    if t.is_complex() and t.numel() < 1000:
        t[(-1,) * t.dim()] = 0
    return t


def block_copied_if_strided(fill: Draw, t: torch.Tensor, *given: float) -> torch.Tensor:
    drawn = fill(torch.empty(t.shape, dtype=t.dtype), *given)
    if is_strided(t):
        drawn.view(-1)[-16:] = drawn.view(-1)[-32:-16].clone()
    return t.copy_(drawn)


def first_of_the_last_if_double(fill: Draw, t: torch.Tensor, *given: float) -> torch.Tensor:
    fill(t, *given)
    if t.dtype == torch.float64:
        t[(0,) * t.dim()] = t[(-1,) * t.dim()]
    return t


def not_written_if_nan(fill: Draw, t: torch.Tensor, *given: float) -> torch.Tensor:
    drawn = fill(torch.empty(t.shape, dtype=t.dtype), *given)
    return t.copy_(drawn.where(~t.isnan(), 0.5))


def first_row_kept_if_transposed(fill: Draw, t: torch.Tensor, *given: float) -> torch.Tensor:
    drawn = fill(torch.empty(t.shape, dtype=t.dtype), *given)
    if t.dim() == 2 and t.stride(0) == 1:
        drawn[0, 5] = t[0, 5]
    return t.copy_(drawn)


def variance_for_deviation_in_half(fill: Draw, t: torch.Tensor, *given: float) -> torch.Tensor:
    if t.dtype == torch.float16:
        given = given[0], given[1] ** 0.5
    return fill(t, *given)


def moved_by_half_of_a_step(fill: Draw, t: torch.Tensor, *given: float) -> torch.Tensor:
    """Rounded from float32, so that the end of the range is drawn, too."""
    drawn = fill(torch.empty(t.shape), *given)
    return t.copy_(drawn)


def parts_of_whole_variance(fill: Draw, t: torch.Tensor, *given: float) -> torch.Tensor:
    if not t.is_complex():
        return fill(t, *given)
    parts = fill(torch.empty(*t.shape, 2), *given)
    return t.copy_(torch.view_as_complex(parts))


def no_imaginary_part(fill: Draw, t: torch.Tensor, *given: float) -> torch.Tensor:
    if not t.is_complex():
        return fill(t, *given)
    return t.copy_(fill(torch.empty(t.shape), given[0], given[1] / 2**0.5))


def last_imaginary_part_copied(fill: Draw, t: torch.Tensor, *given: float) -> torch.Tensor:
    fill(t, *given)
    if t.is_complex() and 1 < t.numel() < 1000:
        t.resolve_conj().imag[(-1,) * t.dim()] = t.resolve_conj().imag[(0,) * t.dim()]
    return t


@pytest.mark.parametrize(
    ("name", "fault", "text"),
    [
        ("normal_", no_imaginary_part, "imaginary part of normal_ of torch.complex64"),
        ("normal_", last_imaginary_part_copied, "imaginary part .* copies of other elements"),
        ("normal_", last_zero_if_complex, "complex64.*an element is not distributed"),
        ("normal_", block_copied_if_strided, "every second element.: elements are copies"),
        ("normal_", first_of_the_last_if_double, "float64.*elements are copies of other elements"),
        ("normal_", not_written_if_nan, "an element is not distributed"),
        (
            "normal_",
            first_row_kept_if_transposed,
            "transposed.: (a sample is below|an element is not distributed)",
        ),
        ("normal_", variance_for_deviation_in_half, "float16 are not distributed as documented"),
        ("normal_", parts_of_whole_variance, "complex64 are not distributed as documented"),
        ("uniform_", moved_by_half_of_a_step, "a sample is not below"),
        ("log_normal_", not_written_if_nan, "an element is not distributed"),
        ("uniform_", block_copied_if_strided, "elements are copies of other elements"),
        ("geometric_", block_copied_if_strided, "elements are copies of other elements"),
        (
            "bernoulli_",
            first_row_kept_if_transposed,
            "transposed.: (a sample is below|an element is not distributed)",
        ),
        ("random_", first_of_the_last_if_double, "elements are copies of other elements"),
    ],
)
def test_what_is_wrong_in_one_form_is_seen(
    name: str, fault: Callable[..., torch.Tensor], text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert_seen(monkeypatch, torch.Tensor, name, fault, of_each_form, name, match=text)


@pytest.mark.parametrize(("name", "dtype"), [("randint", "float32"), ("rand", "bfloat16")])
def test_what_is_scaled_in_one_dtype_is_seen(
    name: str, dtype: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def wrong(make: Draw, *given: Any, **named: Any) -> torch.Tensor:
        return make(*given, **named) * (1.3 if named["dtype"] == getattr(torch, dtype) else 1)

    text = f"{name} of torch.{dtype}: (a sample is|samples are)"
    assert_seen(monkeypatch, torch, name, wrong, of_each_form, name, match=text)


def off_by_turns(turns: list[int], when: Callable[[torch.Tensor], bool]) -> Callable[..., Any]:
    """Now and then the last element is another one."""

    def fault(fill: Draw, t: torch.Tensor, *given: float) -> torch.Tensor:
        met = when(t)
        fill(t, *given)
        turns.append(1)
        if met and len(turns) % 2:
            t[(-1,) * t.dim()] += 1
        return t

    return fault


def negative(t: torch.Tensor) -> bool:
    return not t.is_complex() and bool((t < 0).all())


@pytest.mark.parametrize("when", [negative, is_strided])
@pytest.mark.parametrize("name", ["geometric_", "cauchy_", "normal_"])
def test_a_race_in_one_form_is_seen(
    name: str, when: Callable[[torch.Tensor], bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    fault, text = off_by_turns([], when), "the same seed gave different values"
    assert_seen(monkeypatch, torch.Tensor, name, fault, one_seed, name, match=text)
