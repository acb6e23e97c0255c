"""What the random suite draws: every function that takes a generator, with what it documents of its samples."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import torch

Draw = Callable[[int, torch.device, Any], torch.Tensor]
Cdf = Callable[[torch.Tensor], torch.Tensor]


def _full(count: int, value: float, device: torch.device) -> torch.Tensor:
    return torch.full((count,), float(value), device=device)


def _empty(count: int, device: torch.device) -> torch.Tensor:
    return torch.empty(count, device=device)


def _named(generator: Any) -> dict[str, Any]:
    return {} if generator is None else {"generator": generator}


def _uniform(low: float, high: float) -> Cdf:
    return lambda x: ((x - low) / (high - low)).clamp(0, 1)


def _normal(mean: float, std: float) -> Cdf:
    return lambda x: 0.5 * (1 + torch.erf((x - mean) / (std * math.sqrt(2))))


def _integers(low: int, high: int) -> Cdf:
    """Evenly from ``low`` up to ``high``, which is left out."""
    return lambda x: ((x.floor() - low + 1) / (high - low)).clamp(0, 1)


def _two(probability: float) -> Cdf:
    """1 with this probability, else 0."""
    return lambda x: torch.where(x < 0, 0.0, torch.where(x < 1, 1 - probability, 1.0)).double()


class Known(NamedTuple):
    """A way to draw, and what is documented of it."""

    draw: Draw
    cdf: Cdf  # of float64 values on the CPU
    whole: bool = False  # whole numbers alone
    low: float = -math.inf
    high: float = math.inf
    below: bool = False  # `high` itself is never drawn


KNOWN: dict[str, Known] = {
    "rand": Known(
        lambda n, d, g: torch.rand(n, device=d, **_named(g)), _uniform(0, 1), False, 0, 1, True
    ),
    "randn": Known(lambda n, d, g: torch.randn(n, device=d, **_named(g)), _normal(0, 1)),
    "randint": Known(
        lambda n, d, g: torch.randint(-3, 9, (n,), device=d, **_named(g)),
        *(_integers(-3, 9), True, -3, 8),
    ),
    "uniform_": Known(
        lambda n, d, g: _empty(n, d).uniform_(2, 5, **_named(g)), _uniform(2, 5), False, 2, 5, True
    ),
    "normal_": Known(lambda n, d, g: _empty(n, d).normal_(1, 3, **_named(g)), _normal(1, 3)),
    "normal_narrow": Known(
        lambda n, d, g: _empty(n, d).normal_(-2, 0.25, **_named(g)), _normal(-2, 0.25)
    ),
    "normal": Known(
        lambda n, d, g: torch.normal(_full(n, 1, d), _full(n, 3, d), **_named(g)), _normal(1, 3)
    ),
    "exponential_": Known(
        lambda n, d, g: _empty(n, d).exponential_(2.5, **_named(g)),
        *(lambda x: 1 - torch.exp(-2.5 * x.clamp(min=0)), False, 0),
    ),
    "log_normal_": Known(
        lambda n, d, g: _empty(n, d).log_normal_(0.5, 0.75, **_named(g)),
        *(lambda x: _normal(0.5, 0.75)(x.clamp(min=1e-300).log()), False, 0),
    ),
    "cauchy_": Known(
        lambda n, d, g: _empty(n, d).cauchy_(1, 2, **_named(g)),
        lambda x: 0.5 + torch.atan((x - 1) / 2) / math.pi,
    ),
    "geometric_": Known(
        lambda n, d, g: _empty(n, d).geometric_(0.3, **_named(g)),
        *(lambda x: 1 - torch.pow(0.7, x.floor().clamp(min=0)), True, 1),
    ),
    "bernoulli_": Known(
        lambda n, d, g: _empty(n, d).bernoulli_(0.3, **_named(g)), _two(0.3), True, 0, 1
    ),
    "bernoulli": Known(
        lambda n, d, g: torch.bernoulli(_full(n, 0.3, d), **_named(g)), _two(0.3), True, 0, 1
    ),
    "random_": Known(
        lambda n, d, g: torch.empty(n, device=d, dtype=torch.int64).random_(3, 9, **_named(g)),
        *(_integers(3, 9), True, 3, 8),
    ),
    "multinomial": Known(
        lambda n, d, g: torch.multinomial(_full(7, 1, d), n, True, **_named(g)),
        *(_integers(0, 7), True, 0, 6),
    ),
    "randperm": Known(  # every number once: exactly even
        lambda n, d, g: torch.randperm(n, device=d, **_named(g)) * 10 // n,
        *(_integers(0, 10), True, 0, 9),
    ),
}

#: Fills in place, as ``fill(tensor, generator)``.
FILLS: dict[str, Callable[[torch.Tensor, Any], Any]] = {
    "uniform_": lambda t, g: t.uniform_(**_named(g)),
    "normal_": lambda t, g: t.normal_(**_named(g)),
    "exponential_": lambda t, g: t.exponential_(**_named(g)),
    "log_normal_": lambda t, g: t.log_normal_(**_named(g)),
    "cauchy_": lambda t, g: t.cauchy_(**_named(g)),
    "geometric_": lambda t, g: t.geometric_(0.3, **_named(g)),
    "bernoulli_": lambda t, g: t.bernoulli_(0.3, **_named(g)),
    "random_": lambda t, g: t.random_(**_named(g)),
}
