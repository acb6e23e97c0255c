"""Parameters that differ from element to element, and functions that judge the samples drawn with them.

The parameters are chosen so that a sample shows with which parameters it was drawn: probabilities of 0 and 1, standard
deviations that are small compared to the distances of the means, or a single nonzero weight. So one sample is enough to
detect that the parameter of another element was used.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch

from conformance.checks.cases.context import CaseContext
from conformance.suites.random.distributions import (
    Law,
    binomial_law,
    bound,
    coin_law,
    distance,
    normal_law,
    poisson_law,
)

#: The parameters of an element, and the right result: a single number, or a distribution.
Chosen = tuple[tuple[float, ...], "float | Law"]


ROWS, COLUMNS = 61, 37  # 61 * 37 is 1 modulo 16
SHAPE = (ROWS, COLUMNS)
#: Samples further from the mean than this many standard deviations are wrong. Among 2,257 normal samples one
#: is that far in one of 10^12 runs.
_FAR = 8.0
DROPPED = 0.25


def mixed(count: int, turn: int) -> torch.Tensor:
    """Returns a tensor with a random integer below ``count`` for each element. ``turn`` is the seed of the
    random integers."""
    source = torch.Generator().manual_seed(turn)
    return torch.randint(count, SHAPE, generator=source)


def coins(turn: int) -> torch.Tensor:
    """Returns probabilities of 0 and 1. An element that is 0 for ``turn`` 0 is 1 for ``turn`` 1, and the
    reverse."""
    return (mixed(2, 0) + turn) % 2 * 1.0


def _apart(turn: int) -> torch.Tensor:
    """Returns one number for each element, by which its parameter is shifted: zeros for ``turn`` 0, so that some
    parameters are equal, and different numbers from 0 to 1 for ``turn`` 1, so that all parameters differ."""
    return turn * torch.arange(ROWS * COLUMNS).view(SHAPE) / (ROWS * COLUMNS)


def means(turn: int) -> torch.Tensor:
    return mixed(1000, turn) - 400.0 + _apart(turn)


def deviations(turn: int) -> torch.Tensor:
    return 4.0 ** (mixed(5, turn) - 3.0) * (1 + _apart(turn))


def rates(turn: int) -> torch.Tensor:
    return mixed(6, turn) * 900.0


def counts(turn: int) -> torch.Tensor:
    return mixed(20, turn) * 1.0


def weights(turn: int) -> torch.Tensor:
    """Returns rows of weights, each with a single nonzero weight. ``turn`` (0 or 1) selects one of two such tensors."""
    return torch.nn.functional.one_hot(mixed(COLUMNS, turn)[:, 0], COLUMNS) * 2.0


def numbers(turn: int) -> torch.Tensor:
    return (mixed(1000, turn) + 1) / 64


# -- judges


def _not_far(context: CaseContext, text: str, off: torch.Tensor, center: str) -> None:
    far = float(off.abs().max())
    text = f"{text}: a sample is more than {_FAR:g} standard deviations from its {center}"
    context.check(far <= _FAR, text, found=far)


def check_normal(
    context: CaseContext, text: str, drawn: torch.Tensor, mean: Any, deviation: Any
) -> None:
    """Checks that each element is a normal sample with the mean and standard deviation of that element."""
    off = ((drawn.double() - mean) / deviation).flatten()
    _not_far(context, text, off, "mean")
    found = distance(normal_law(), off)
    message = f"{text}: the deviations from the means are not distributed as documented: the Kolmogorov-Smirnov distance is too large"
    context.check(found <= bound(off.numel()), message, found=round(found, 4))
    # Due to rounding, one in 600 samples equals a mean of 600 if the standard deviation is smallest.
    same, few = int((off == 0).sum()), max(8, off.numel() // 100)
    context.check(same < few, f"{text}: too many samples equal their mean", found=same)


def exact(context: CaseContext, text: str, drawn: torch.Tensor, wanted: torch.Tensor) -> None:
    wrong = int((drawn.double() != wanted).sum())
    text = (
        f"{text}: the number of elements whose value is impossible with their parameters is not 0"
    )
    context.same(wrong, 0, text)


def all_or_none(
    context: CaseContext, text: str, drawn: torch.Tensor, count: torch.Tensor, p: torch.Tensor
) -> None:
    exact(context, text, drawn, count * p)


def counted(context: CaseContext, text: str, drawn: torch.Tensor, rate: torch.Tensor) -> None:
    off = (drawn.double() - rate) / rate.clamp(min=1e-9).sqrt()
    _not_far(context, text, off, "rate")


def chosen(context: CaseContext, text: str, drawn: torch.Tensor, weight: torch.Tensor) -> None:
    exact(context, text, drawn, weight.argmax(1, keepdim=True).expand(drawn.shape))


def check_dropout(
    context: CaseContext, text: str, drawn: torch.Tensor, given: torch.Tensor
) -> None:
    """Checks the result of dropout: each element is either 0 or the input element divided by the share of
    elements kept."""
    share = 1 - DROPPED
    scaled = torch.isclose(drawn.double(), given.double() / share, rtol=1e-5)
    wrong = int((~scaled & (drawn != 0)).sum())
    message = f"{text}: some kept elements are not the input divided by the share of elements kept: the number of such elements is not 0"
    context.same(wrong, 0, message)
    found = float((drawn != 0).double().mean())
    right = abs(found - share) <= bound(drawn.numel())
    context.check(right, f"{text}: the share of elements kept is not {share:g}", found=found)
    some = bool((drawn != 0).any(1).all())  # happens by chance with a probability of 2^-80
    context.check(some, f"{text}: all elements of some row were dropped")


# -- special parameters


def _wide(dtype: torch.dtype) -> tuple[float, ...]:
    return (1e6,) if torch.finfo(dtype).max > 1e9 else ()


def special_normal(dtype: torch.dtype) -> list[Chosen]:
    about = torch.finfo(dtype)
    return [
        ((math.inf, 1), math.inf),
        ((-math.inf, 0.5), -math.inf),
        ((math.nan, 2), math.nan),
        ((-0.0, 0), 0),
        ((1.5, 0), 1.5),
        ((-300, 0), -300),
        ((about.max, 0), about.max),
        ((about.tiny / 2, 1), normal_law(0, 1)),
        ((-2.5, 0.5), normal_law(-2.5, 0.5)),
        ((512, 200), normal_law(512, 200)),
        *(((0, each), normal_law(0, each)) for each in _wide(dtype)),
    ]


def special_means(dtype: torch.dtype) -> list[Chosen]:
    finite = (torch.finfo(dtype).tiny / 2, -0.0, 0.5, -2.5, 3.0)
    return [
        *(((each,), each) for each in (math.inf, -math.inf, math.nan)),
        *(((each,), normal_law(each, 0.25)) for each in finite),
    ]


def special_deviations(dtype: torch.dtype) -> list[Chosen]:
    return [
        *(((each,), -3) for each in (0, -0.0, torch.finfo(dtype).tiny / 2)),
        *(((each,), normal_law(-3, each)) for each in (0.5, 2.5, 300, *_wide(dtype))),
    ]


def _always_0(dtype: torch.dtype) -> list[Chosen]:
    """Returns parameters for which every sample is 0: zeros, and a subnormal number. The subnormal number is
    left out for float16, where it is 3e-5 and may give a nonzero sample."""
    least = torch.finfo(dtype).tiny / 2
    return [((each,), 0) for each in ((0, -0.0, least) if least < 1e-30 else (0, -0.0))]


def special_coins(dtype: torch.dtype) -> list[Chosen]:
    return [*_always_0(dtype), ((1,), 1), ((0.5,), coin_law(0.5))]


def special_rates(dtype: torch.dtype) -> list[Chosen]:
    return [*_always_0(dtype), *(((each,), poisson_law(each)) for each in (0.5, 2.5, 300))]


def special_counts(dtype: torch.dtype) -> list[Chosen]:
    few = torch.finfo(dtype).tiny / 2
    one: list[Chosen] = [((0, 0.5), 0), ((7, 0), 0), ((8, -0.0), 0), ((300, 1), 300), ((9, few), 0)]
    halves = binomial_law(10, 0.5)
    return [*one, ((10, 0.5), halves), ((300, 0.5), normal_law(150, math.sqrt(75)))]


@dataclass(frozen=True, slots=True)
class Parameters:
    """One set of parameters per element for a random function, and the judge of the samples that are drawn with them.

    ``makers`` contains, for each argument of the random function, either a number, or a function that returns a tensor
    with the parameters of all elements. Such a function takes 0 or 1, which selects one of two sets of parameters.
    ``judge_samples`` takes the context, a text that describes the call, the samples and the arguments.
    ``special(dtype)`` returns parameters such as zero, infinity and NaN, each with the right result.
    """

    makers: tuple[Callable[[int], torch.Tensor] | float, ...]
    judge_samples: Callable[..., None]
    special: Callable[[torch.dtype], list[Chosen]] | None = None

    def tensors(self, turn: int) -> tuple[torch.Tensor, ...]:
        """Returns the arguments that are tensors. ``turn`` (0 or 1) selects one of the two sets of parameters."""
        return tuple(each(turn) for each in self.makers if callable(each))

    def arguments(self, tensors: Iterable[Any]) -> list[Any]:
        """Returns all arguments of the random function in their order: the given tensors, and the arguments that are
        numbers."""
        given = iter(tensors)
        return [next(given) if callable(each) else each for each in self.makers]

    def judge(self, context: CaseContext, text: str, drawn: torch.Tensor, *tensors: Any) -> None:
        """Checks that each sample is one that the parameters of its element can give."""
        self.judge_samples(context, text, drawn, *self.arguments(tensors))


NOTHING = Parameters((), exact)
NORMAL = Parameters((means, deviations), check_normal, special_normal)
MEANS = Parameters((means, 0.25), check_normal, special_means)
DEVIATIONS = Parameters((-3.0, deviations), check_normal, special_deviations)
COINS = Parameters((coins,), exact, special_coins)
RATES = Parameters((rates,), counted, special_rates)
COUNTS = Parameters((counts, coins), all_or_none, special_counts)
WEIGHTS = Parameters((weights,), chosen)
NUMBERS = Parameters((numbers,), check_dropout)
