"""What is documented of samples, and whether samples are so."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import torch

from conformance.checks.cases.context import Context


class Law(NamedTuple):
    """The documented properties of what is drawn."""

    cdf: Callable[[torch.Tensor], torch.Tensor]  # of float64 values on the CPU
    whole: bool = False  # only whole numbers
    low: float = -math.inf
    high: float = math.inf
    below: bool = False  # `high` itself is never drawn


def uniform_law(low: float, high: float) -> Law:
    return Law(lambda x: ((x - low) / (high - low)).clamp(0, 1), False, low, high, below=True)


def normal_law(mean: float, std: float) -> Law:
    return Law(lambda x: 0.5 * (1 + torch.erf((x - mean) / (std * math.sqrt(2)))))


def integers_law(low: int, high: int) -> Law:
    """Evenly from ``low`` up to ``high``, which is left out."""
    return Law(lambda x: ((x.floor() - low + 1) / (high - low)).clamp(0, 1), True, low, high - 1)


def coin_law(probability: float) -> Law:
    """1 with this probability, else 0."""
    share = torch.tensor([0.0, 1 - probability, 1.0]).double()  # below 0, below 1, above
    return Law(lambda x: share[x.floor().clamp(-1, 1).long() + 1], True, 0, 1)


def shares_law(*weights: float) -> Law:
    """0, 1, 2 … with these weights."""
    table = torch.tensor([0.0, *weights]).double().cumsum(0) / sum(weights)
    top = len(weights) - 1
    return Law(lambda x: table[x.floor().clamp(-1, top).long() + 1], True, 0, top)


def exponential_law(rate: float) -> Law:
    return Law(lambda x: 1 - torch.exp(-rate * x.clamp(min=0)), low=0)


def log_normal_law(mean: float, std: float) -> Law:
    """Of e to the power of normal samples with this mean and deviation."""
    return Law(lambda x: normal_law(mean, std).cdf(x.clamp(min=1e-300).log()), low=0)


def cauchy_law(median: float, sigma: float) -> Law:
    return Law(lambda x: 0.5 + torch.atan((x - median) / sigma) / math.pi)


def geometric_law(probability: float) -> Law:
    """How many trials there are up to the first success."""
    return Law(lambda x: 1 - torch.pow(1 - probability, x.floor().clamp(min=0)), True, 1)


def poisson_law(rate: float) -> Law:
    """The regularised incomplete gamma function (DLMF 8.4.10)."""
    most = int(rate + 40 * math.sqrt(rate) + 40)
    upto = torch.special.gammaincc(
        torch.arange(1.0, most + 2).double(), torch.tensor(rate).double()
    )
    table = torch.cat([torch.zeros(1).double(), upto])
    return Law(lambda x: table[x.floor().clamp(-1, most).long() + 1], True, 0)


# The test is Kolmogorov's distance with the bound of Dvoretzky, Kiefer, Wolfowitz and Massart, which holds for every
# distribution and every number of samples: a right device exceeds it with a probability of at most ``FALSE_ALARM`` a
# case, and never twice differently, since the seed is fixed.

SAMPLES = 20_000
FALSE_ALARM = 1e-9


#: Of one element; there are some 10^5.
_OF_ONE = 1e-12


def bound(count: int, false_alarm: float = FALSE_ALARM) -> float:
    """The distance that so many samples are allowed."""
    return math.sqrt(math.log(2 / false_alarm) / (2 * count))


BOUND = bound(SAMPLES)


def _steps(law: Law, numbers: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """From numbers to those beside them: a law of real numbers says nothing of how these are rounded to 16 bits."""
    if law.whole or dtype not in (torch.float16, torch.bfloat16):
        return torch.zeros_like(numbers)
    return numbers.abs().clamp(max=1e6) * torch.finfo(dtype).eps


def distance(law: Law, values: torch.Tensor) -> float:
    """The greatest distance between the share of samples up to any number and the documented one.

    Of 16-bit numbers it is the distance from the shares up to the numbers beside it.
    """
    numbers, counts = torch.unique(values.double(), return_counts=True)
    shares = counts.double() / values.numel()
    up_to = shares.cumsum(0)
    step = _steps(law, numbers, values.dtype)
    low, high = law.cdf(numbers - step), law.cdf(numbers + step)
    before = law.cdf(numbers - 1) if law.whole else low
    until = before if law.whole else high
    below = up_to - shares
    off = torch.stack([up_to - high, low - up_to, below - until, before - below])
    return max(float(off.max()), 0.0)


def _in_range(context: Context, text: str, law: Law, values: torch.Tensor) -> None:
    context.check(not values.isnan().any(), f"{text}: no sample is NaN")
    numbers = values.double()
    least, most = float(numbers.min()), float(numbers.max())
    context.check(law.low <= least, f"{text}: no sample is below {law.low:g}", found=least)
    inside = most < law.high if law.below else most <= law.high
    top = f"{text}: no sample is above {law.high:g}, or at an open end"
    context.check(inside, top, found=most)
    if law.whole:
        whole = torch.equal(numbers, numbers.floor())
        context.check(whole, f"{text}: samples are whole numbers")


def judge(context: Context, text: str, law: Law, values: torch.Tensor) -> None:
    """Whether these are samples of a law."""
    count = values.numel()
    _in_range(context, text, law, values)
    if values.dtype == torch.float32 and not law.whole:
        # Of 24 bits, 13 are zero by a chance of 2^-13.
        coarse = float((values == values.half()).double().mean())
        digits = f"{text}: samples have more digits than float16"
        context.check(coarse <= 0.5, digits, found=coarse)
    found = distance(law, values)
    context.check(
        found <= bound(count),
        f"{count} samples of {text} are distributed as documented: Kolmogorov's distance is at "
        f"most {bound(count):.4f} (false alarms: {FALSE_ALARM:g})",
        found=round(found, 4),
    )


def judge_each(
    context: Context, text: str, law: Law, values: torch.Tensor, many: torch.Tensor
) -> None:
    """Whether each column are samples of a law, and no column is another's copy.

    The shares up to a few numbers are compared, which ``many`` samples of the law name.
    """
    times = len(values)
    _in_range(context, text, law, values)
    ordered = many.flatten()[:1024].double().sort().values
    marks = ordered[len(ordered) // 16 :: len(ordered) // 16].unique()
    step = _steps(law, marks, values.dtype)
    numbers = values.double()
    shares = torch.stack([(numbers <= mark).double().mean(0) for mark in marks.tolist()])
    off = torch.maximum(
        shares - law.cdf(marks + step)[:, None], law.cdf(marks - step)[:, None] - shares
    )
    found, most = float(off.max()), bound(times, _OF_ONE)
    each = f"{text}: over {times} draws each element is distributed as documented"
    told = f"{each}: its share of samples up to a number is off by {most:.3f} at most"
    context.check(found <= most, told, found=round(found, 3))
    bits = numbers.view(torch.int64)
    bits = bits ^ (bits >> 32) ^ (bits >> 52)  # of few digits, all but the high bits are zero
    stuck = int((bits == bits[:1]).all(0).sum())
    context.same(stuck, 0, f"{text}: no element is the same in each of {times} draws")
    # Sums of whole numbers, which are those of copies whatever the order of adding.
    source = torch.Generator().manual_seed(times)
    weights = torch.randint(-(2**62), 2**62, (times, 1), generator=source) * 2 + 1
    copied = bits.shape[1] - len((bits * weights).sum(0).unique())
    context.same(copied, 0, f"{text}: no element is another's copy in every draw")
