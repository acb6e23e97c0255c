"""Tables of the functions that draw random numbers, each with the documented distribution of its samples."""

from __future__ import annotations

import math
from collections.abc import Callable
from operator import methodcaller
from typing import Any

import torch

from conformance.suites.random.distributions import (
    Law,
    cauchy_law,
    coin_law,
    exponential_law,
    geometric_law,
    integers_law,
    log_normal_law,
    normal_law,
    poisson_law,
    shares_law,
    uniform_law,
)

#: ``draw(count, device, **named)`` returns samples; ``named`` may have a generator.
Draw = Callable[..., torch.Tensor]


def named(generator: Any) -> dict[str, Any]:
    """Returns keyword arguments that pass the generator to a random function. The dictionary is empty for the
    default generator (None)."""
    return {} if generator is None else {"generator": generator}


def _full(count: int, value: float, device: torch.device) -> torch.Tensor:
    return torch.full((count,), float(value), device=device)


def _filled(method: str, *parameters: float, dtype: torch.dtype = torch.float32) -> Draw:
    """Returns a function that draws samples by filling a new tensor in place with the named method."""
    return lambda n, d, **g: getattr(torch.empty(n, device=d, dtype=dtype), method)(
        *parameters, **g
    )


_TENTHS = [math.comb(10, k) * 0.3**k * 0.7 ** (10 - k) for k in range(11)]


#: Methods that fill a tensor in place, and their parameters.
FILLS: dict[str, tuple[float, ...]] = {
    "uniform_": (2.25, 5.5),
    "normal_": (1, 2.5),
    "exponential_": (2.5,),
    "log_normal_": (0.5, 0.75),
    "cauchy_": (0.75, 1.5),
    "geometric_": (0.3,),
    "bernoulli_": (0.3,),
    "random_": (3, 9),
}


#: By name: a way to draw, and the documented distribution of its samples.
KNOWN: dict[str, tuple[Draw, Law]] = {
    "rand": (lambda n, d, **g: torch.rand(n, device=d, **g), uniform_law(0, 1)),
    "randn": (lambda n, d, **g: torch.randn(n, device=d, **g), normal_law(0, 1)),
    "randint": (lambda n, d, **g: torch.randint(-3, 9, (n,), device=d, **g), integers_law(-3, 9)),
    "uniform_": (_filled("uniform_", *FILLS["uniform_"]), uniform_law(*FILLS["uniform_"])),
    "normal_": (_filled("normal_", *FILLS["normal_"]), normal_law(*FILLS["normal_"])),
    "normal_narrow": (_filled("normal_", -2, 0.25), normal_law(-2, 0.25)),
    "normal": (
        lambda n, d, **g: torch.normal(_full(n, 1, d), _full(n, 2.5, d), **g),
        normal_law(1, 2.5),
    ),
    "exponential_": (
        _filled("exponential_", *FILLS["exponential_"]),
        exponential_law(*FILLS["exponential_"]),
    ),
    "log_normal_": (
        _filled("log_normal_", *FILLS["log_normal_"]),
        log_normal_law(*FILLS["log_normal_"]),
    ),
    "cauchy_": (
        _filled("cauchy_", *FILLS["cauchy_"]),
        cauchy_law(*FILLS["cauchy_"]),
    ),
    "geometric_": (
        _filled("geometric_", *FILLS["geometric_"]),
        geometric_law(*FILLS["geometric_"]),
    ),
    "bernoulli_": (_filled("bernoulli_", *FILLS["bernoulli_"]), coin_law(0.3)),
    "bernoulli": (lambda n, d, **g: torch.bernoulli(_full(n, 0.3, d), **g), coin_law(0.3)),
    "random_": (_filled("random_", *FILLS["random_"], dtype=torch.int64), integers_law(3, 9)),
    "multinomial": (
        lambda n, d, **g: torch.multinomial(_full(7, 1, d), n, True, **g),
        integers_law(0, 7),
    ),
    "multinomial_weighted": (
        lambda n, d, **g: torch.multinomial(
            torch.tensor([3.0, 1.0, 0.0, 4.0, 2.0]).to(d), n, True, **g
        ),
        shares_law(3, 1, 0, 4, 2),
    ),
    "poisson": (lambda n, d, **g: torch.poisson(_full(n, 4, d), **g), poisson_law(4)),
    "binomial": (
        lambda n, d, **g: torch.binomial(_full(n, 10, d), _full(n, 0.3, d), **g),
        shares_law(*_TENTHS),
    ),
    "randperm": (  # every number once, so the distribution is exactly even
        lambda n, d, **g: torch.randperm(n, device=d, **g) * 10 // n,
        integers_law(0, 10),
    ),
}

#: By name: a function that draws one number per element of a tensor, and the key in :data:`KNOWN` of its
#: distribution.
SHAPED: dict[str, tuple[Callable[[torch.Tensor], torch.Tensor], str]] = {
    "rand_like": (torch.rand_like, "rand"),
    "randn_like": (torch.randn_like, "randn"),
    "randint_like": (lambda t: torch.randint_like(t, -3, 9), "randint"),
    "normal": (lambda t: torch.normal(torch.full_like(t, 1), torch.full_like(t, 2.5)), "normal"),
    "normal_of_means": (lambda t: torch.normal(torch.full_like(t, 1), 2.5), "normal"),
    "normal_of_deviations": (lambda t: torch.normal(1.0, torch.full_like(t, 2.5)), "normal"),
    "bernoulli": (lambda t: torch.bernoulli(torch.full_like(t, 0.3)), "bernoulli"),
    "poisson": (lambda t: torch.poisson(torch.full_like(t, 4)), "poisson"),
    "binomial": (
        lambda t: torch.binomial(torch.full_like(t, 10), torch.full_like(t, 0.3)),
        "binomial",
    ),
    **{name: (methodcaller(name, *given), name) for name, given in FILLS.items()},
}

#: The entries of SHAPED, and functions that take the shape and the dtype of the result.
WAYS: dict[str, tuple[Callable[[torch.Tensor], torch.Tensor], str]] = {
    **SHAPED,
    "rand": (lambda t: torch.rand(t.shape, dtype=t.dtype, device=t.device), "rand"),
    "randn": (lambda t: torch.randn(t.shape, dtype=t.dtype, device=t.device), "randn"),
    "randint": (
        lambda t: torch.randint(-3, 9, t.shape, dtype=t.dtype, device=t.device),
        "randint",
    ),
}
