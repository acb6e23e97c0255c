"""The test of distributions: what is drawn rightly passes, what is a little off does not."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch

from conformance.suites.random.categories import many_weights, permutation, without_replacement
from conformance.suites.random.distributions import BOUND, FALSE_ALARM, SAMPLES, distance
from conformance.suites.random.samplers import SAMPLERS, VECTORS
from conformance.suites.random.shapes import ends, shaped
from tests.random.planting import Change, Draw, assert_seen, changed, context

WRONG: dict[str, Change] = {
    "rand": lambda x: x * 0.95,
    "randn": lambda x: x + 0.1,
    "randint": lambda x: torch.where(x == 8, 7, x),
    "uniform_": lambda x: x.sqrt() * 1.6 + 1,
    "normal_": lambda x: (x - 1) * math.sqrt(3) / 3 + 1,  # the variance for std
    "normal_narrow": lambda x: (x + 2) * 1.1 - 2,
    "normal": lambda x: (x - 1) * 3 + 1,
    "exponential_": lambda x: x * 1.1,
    "log_normal_": lambda x: x * 1.1,
    "cauchy_": lambda x: x.abs(),
    "geometric_": lambda x: x - 1,  # failures before the success, not trials
    "bernoulli_": lambda x: 1 - x,
    "bernoulli": lambda x: x * 0,
    "random_": lambda x: x.clamp(max=7),
    "multinomial": lambda x: x // 2,
    "multinomial_weighted": lambda x: torch.where(x == 4, 2, x),  # one of weight 0
    "poisson": lambda x: x + (x > 4),
    "binomial": lambda x: 10 - x,
    "randperm": lambda x: x.clamp(min=1),
}


def drawn(name: str) -> torch.Tensor:
    generator = torch.Generator().manual_seed(7)
    return SAMPLERS[name].vector(SAMPLES, torch.device("cpu"), generator)


@pytest.mark.parametrize("name", VECTORS)
def test_right_samples_are_well_within_the_bound(name: str) -> None:
    assert distance(SAMPLERS[name].law, drawn(name)) < BOUND / 2


@pytest.mark.parametrize("name", VECTORS)
def test_samples_that_are_off_are_beyond_it(name: str) -> None:
    assert distance(SAMPLERS[name].law, WRONG[name](drawn(name).clone())) > BOUND


def test_the_bound_is_that_of_the_stated_rate() -> None:
    assert math.isclose(2 * math.exp(-2 * SAMPLES * BOUND**2), FALSE_ALARM)


def rounded(numbers: torch.Tensor, up: bool) -> torch.Tensor:
    """To the bfloat16 above, or below."""
    near = numbers.bfloat16()
    off = near < numbers if up else near > numbers
    return torch.where(off, torch.nextafter(near, torch.full_like(near, 9 if up else 0)), near)


@pytest.mark.parametrize("up", [True, False])
def test_16_bit_numbers_may_be_rounded_either_way(up: bool) -> None:
    law = SAMPLERS["uniform_"].law
    even = torch.linspace(2.25, 5.49, 1_000_001)  # whose own distance is 0.003
    assert distance(law, rounded(even, up)) < 0.0035
    assert distance(law, rounded(even, up).float()) > 0.007  # steps of 1/32 in a range of 3.25
    assert distance(law, rounded(even * 0.95, up)) > BOUND


# -- wrong draws that the distribution of many samples does not show


def first_off(drawn: torch.Tensor) -> torch.Tensor:
    drawn.view(-1)[0] += 1
    return drawn


def last_copied(drawn: torch.Tensor) -> torch.Tensor:
    drawn.view(-1)[-1] = drawn.view(-1)[-2]
    return drawn


def copied_after_two(drawn: torch.Tensor) -> torch.Tensor:
    flat = drawn.view(-1)
    if drawn.storage_offset() == 2:
        flat[9] = flat[8]
    return drawn


def block_copied(drawn: torch.Tensor) -> torch.Tensor:
    flat = drawn.view(-1)
    flat[-8:] = flat[-16:-8].clone()
    return drawn


def tail_zero(drawn: torch.Tensor) -> torch.Tensor:
    drawn.view(-1)[drawn.numel() // 16 * 16 :] = 0
    return drawn


@pytest.mark.parametrize(
    ("case", "fault", "text"),
    [
        (ends, first_off, "distributed as documented"),
        (ends, last_copied, "equals the previous element"),
        (ends, block_copied, "copies of other elements"),
        (ends, copied_after_two, "at storage offset 2: elements are copies of other elements"),
        (shaped, tail_zero, "three neighbouring samples are equal"),
        (shaped, block_copied, "a block of samples repeats"),
    ],
)
def test_a_wrong_element_is_seen(
    case: Callable[..., None], fault: Change, text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    case(context(), "normal_")
    assert_seen(monkeypatch, torch.Tensor, "normal_", changed(fault), case, "normal_", match=text)


def test_elements_that_stay_as_they_were_are_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    def keeps_some(fill: Draw, tensor: torch.Tensor, *given: float) -> torch.Tensor:
        held = tensor.clone()
        fill(tensor, *given)
        if not (held == -7.0).any():
            tensor.copy_(torch.where(torch.arange(tensor.shape[-1]) % 4 == 0, held, tensor))
        return tensor

    text = "a second draw gave the same samples"
    assert_seen(monkeypatch, torch.Tensor, "cauchy_", keeps_some, shaped, "cauchy_", match=text)


def last_weight_lost(drawn: torch.Tensor) -> torch.Tensor:
    return drawn.where(drawn != 2**16 + 14, 0)


def in_16_bits(drawn: torch.Tensor) -> torch.Tensor:
    return drawn % 2**16


def one_twice(drawn: torch.Tensor) -> torch.Tensor:
    drawn[1] = drawn[0]
    return drawn


def in_pairs(drawn: torch.Tensor) -> torch.Tensor:
    """Numbers change places with the one beside them only."""
    found = torch.arange(len(drawn))
    even = len(drawn) // 2 * 2
    found[:even] = found[:even].view(-1, 2).flip(1).flatten()
    return found


def in_order(drawn: torch.Tensor) -> torch.Tensor:
    return torch.arange(len(drawn)).roll(int(drawn[0]))


def first_half_low(drawn: torch.Tensor) -> torch.Tensor:
    half = len(drawn) // 2
    return torch.cat([drawn[drawn < half], drawn[drawn >= half]])


@pytest.mark.parametrize(
    ("case", "name", "fault"),
    [
        *(
            (many_weights, "multinomial", each)
            for each in (last_weight_lost, in_16_bits, one_twice)
        ),
        *((permutation, "randperm", each) for each in (in_16_bits, one_twice, in_order)),
        *((permutation, "randperm", each) for each in (first_half_low, in_pairs)),
    ],
)
def test_what_is_wrong_only_for_many_is_seen(
    case: Callable[..., None], name: str, fault: Change, monkeypatch: pytest.MonkeyPatch
) -> None:
    case(context())

    def wrong(draw: Draw, count: Any, *args: Any, **named: Any) -> torch.Tensor:
        drawn = draw(count, *args, **named)
        size = count if isinstance(count, int) else len(count)
        return fault(drawn) if size > 2**14 else drawn

    assert_seen(monkeypatch, torch, name, wrong, case)


def read_dense(rows: torch.Tensor) -> torch.Tensor:
    length = rows.shape[1]
    return rows.as_strided(rows.shape, (length, 1), rows.storage_offset())


def read_other_rows(rows: torch.Tensor) -> torch.Tensor:
    return read_dense(rows).clamp(min=0.5)  # torch refuses rows of zeros


def with_a_step_of_1(rows: torch.Tensor) -> torch.Tensor:
    return rows.as_strided(rows.shape, (rows.stride(0), 1), rows.storage_offset())


@pytest.mark.parametrize("only", [False, True, None], ids=["without", "with", "both"])
@pytest.mark.parametrize(
    ("when", "fault", "text"),
    [
        (lambda rows: rows.stride(0) == 0, read_dense, "expand_first, "),
        (lambda rows: rows.stride(0) == 1, read_other_rows, "transposed, "),
        (lambda rows: rows.stride(1) == 2, with_a_step_of_1, "step_inner, "),
        (lambda rows: True, lambda rows: rows.sqrt(), "half of the weight"),
        (lambda rows: True, lambda rows: rows + 0.1, "categor"),
    ],
)
def test_wrong_weights_are_seen(
    when: Callable[[torch.Tensor], bool],
    fault: Change,
    text: str,
    only: bool | None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    without_replacement(context())

    def wrong(draw: Draw, rows: torch.Tensor, count: int, replaced: bool) -> torch.Tensor:
        met = when(rows) and only in (None, replaced)
        return draw(fault(rows) if met else rows, count, replaced)

    assert_seen(monkeypatch, torch, "multinomial", wrong, without_replacement, match=text)
