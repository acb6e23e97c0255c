"""Special parameters and other arguments: right draws pass, and a parameter that is taken for another does not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from conformance.suites.random.distribution import other_arguments
from conformance.suites.random.per_element import special_parameters
from conformance.suites.random.samplers import (
    WITH_OTHER_ARGUMENTS,
    WITH_SPECIAL_PARAMETERS,
    Sampler,
)
from conformance.suites.random.shapes import far
from tests.random.planting import Change, Draw, assert_seen, changed, context
from tests.random.test_distribution import block_copied


@pytest.mark.parametrize("name", WITH_SPECIAL_PARAMETERS)
def test_right_draws_of_special_parameters_pass(name: str) -> None:
    special_parameters(context(), name)


@pytest.mark.parametrize("name", WITH_OTHER_ARGUMENTS)
def test_right_draws_with_other_arguments_pass(name: str) -> None:
    other_arguments(context(), name)


def without_nan(given: torch.Tensor) -> torch.Tensor:
    return given.where(~given.isnan(), 0)


def without_infinity(given: torch.Tensor) -> torch.Tensor:
    most = torch.finfo(given.dtype).max
    return given.where(~given.isinf(), most * given.sign())


def half_made_whole(given: torch.Tensor) -> torch.Tensor:
    return given.where(given.abs() % 1 != 0.5, given.trunc())


def last_half_made_whole(given: torch.Tensor) -> torch.Tensor:
    return torch.cat([given.flatten()[:-1], half_made_whole(given.flatten()[-1:])]).view(
        given.shape
    )


def zero_taken_for_one(given: torch.Tensor) -> torch.Tensor:
    return given.where(given != 0, 1)


def subnormal_taken_for_one(given: torch.Tensor) -> torch.Tensor:
    return given.where((given == 0) | (given.abs() >= torch.finfo(given.dtype).tiny), 1)


def at_most_100(given: torch.Tensor) -> torch.Tensor:
    return given.clamp(max=100)


def without_sign(given: torch.Tensor) -> torch.Tensor:
    return given.abs()


_NORMAL = [without_nan, without_infinity, half_made_whole, at_most_100, without_sign]


@pytest.mark.parametrize("only", ["any", "out="])
@pytest.mark.parametrize(
    ("name", "place", "change"),
    [
        *(("normal", 0, each) for each in _NORMAL),
        *(("normal", 1, each) for each in (half_made_whole, zero_taken_for_one, at_most_100)),
        *(("bernoulli", 0, each) for each in (half_made_whole, last_half_made_whole)),
        *(("bernoulli", 0, each) for each in (zero_taken_for_one, subnormal_taken_for_one)),
    ],
)
def test_a_parameter_taken_for_another_is_seen(
    name: str, place: int, change: Change, only: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    _parameter_changed(name, place, change, only == "out=", monkeypatch)


@pytest.mark.parametrize(
    ("name", "place", "change"),
    [
        *(("poisson", 0, each) for each in (half_made_whole, zero_taken_for_one, at_most_100)),
        *(("binomial", 0, each) for each in (zero_taken_for_one, at_most_100)),
        *(("binomial", 1, each) for each in (half_made_whole, zero_taken_for_one)),
        ("binomial", 1, subnormal_taken_for_one),
    ],
)
def test_a_count_or_rate_taken_for_another_is_seen(
    name: str, place: int, change: Change, monkeypatch: pytest.MonkeyPatch
) -> None:
    _parameter_changed(name, place, change, False, monkeypatch)


def _parameter_changed(
    name: str, place: int, change: Change, only_out: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def wrong(draw: Draw, sampler: Sampler, *given: torch.Tensor, **named: Any) -> torch.Tensor:
        changed = list(given)
        if named or not only_out:
            changed[place] = change(given[place])
        return draw(sampler, *changed, **named)

    text = f"{name}.* next to elements with other parameters"
    assert_seen(monkeypatch, Sampler, "draw_each", wrong, special_parameters, name, match=text)


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("normal_", lambda given: [abs(each) for each in given]),
        ("normal_", lambda given: [min(each, 8) for each in given]),
        ("uniform_", lambda given: [float(int(each)) for each in given]),
        ("uniform_", lambda given: [abs(each) for each in given][::-1] if given else []),
        ("exponential_", lambda given: [min(each, 8) for each in given]),
        ("log_normal_", lambda given: [abs(each) for each in given]),
        ("cauchy_", lambda given: [min(each, 8) for each in given]),
        ("bernoulli_", lambda given: [0.5]),
        ("geometric_", lambda given: [max(given[0], 0.1)]),
        ("random_", lambda given: [each % 2**32 for each in given]),
        ("random_", lambda given: [min(each, 8) for each in given]),
    ],
)
def test_an_argument_taken_for_another_is_seen(
    name: str, change: Callable[[Any], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    def wrong(fill: Draw, tensor: torch.Tensor, *given: float) -> torch.Tensor:
        return fill(tensor, *sorted(change(given)))

    assert_seen(monkeypatch, torch.Tensor, name, wrong, other_arguments, name, match=name)


def last_zero(drawn: torch.Tensor) -> torch.Tensor:
    drawn.view(-1)[-1] = 0
    return drawn


def one_nan(drawn: torch.Tensor) -> torch.Tensor:
    drawn.view(-1)[17] = torch.nan
    return drawn


def second_row_off(drawn: torch.Tensor) -> torch.Tensor:
    drawn[1] += 1 + drawn[1].abs()
    return drawn


@pytest.mark.parametrize("fault", [last_zero, one_nan, second_row_off, block_copied])
@pytest.mark.parametrize("name", ["normal_", "geometric_", "bernoulli_", "cauchy_"])
def test_a_wrong_element_of_a_large_tensor_is_seen(
    name: str, fault: Change, monkeypatch: pytest.MonkeyPatch
) -> None:
    far(context(), name)
    assert_seen(monkeypatch, torch.Tensor, name, changed(fault), far, name, match=name)
