"""Documented distributions of random functions, and statistical tests that compare samples with a distribution."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import torch

from conformance.checks.cases.context import CaseContext


class Law(NamedTuple):
    """A documented distribution of samples: its distribution function and the range of its values."""

    cdf: Callable[[torch.Tensor], torch.Tensor]  # takes and returns float64 values on the CPU
    whole: bool = False  # samples are whole numbers
    low: float = -math.inf
    high: float = math.inf
    below: bool = False  # `high` itself is never drawn


def uniform_law(low: float = 0, high: float = 1) -> Law:
    return Law(lambda x: ((x - low) / (high - low)).clamp(0, 1), False, low, high, below=True)


def normal_law(mean: float = 0, std: float = 1) -> Law:
    return Law(lambda x: 0.5 * (1 + torch.erf((x - mean) / (std * math.sqrt(2)))))


def complex_normal_law(mean: float = 0, std: float = 1) -> Law:
    """Returns the distribution of the real part, or of the imaginary part, of complex normal samples. Each part
    has half of the variance."""
    return normal_law(mean, std / math.sqrt(2))


def integers_law(*bounds: int) -> Law:
    """Returns the distribution of uniform integers from ``low`` (included) to ``high`` (excluded). ``bounds`` contains
    ``low`` and ``high``, or only ``high``; ``low`` is then 0. If ``bounds`` is empty, the integers are all nonnegative
    int64 numbers."""
    low, high = bounds if len(bounds) == 2 else (0, *(bounds or (2**63,)))
    return Law(lambda x: ((x.floor() - low + 1) / (high - low)).clamp(0, 1), True, low, high - 1)


def shares_law(*weights: float) -> Law:
    """Returns the distribution of the integers 0, 1, 2 … with probabilities proportional to the given weights."""
    table = torch.tensor([0.0, *weights]).double().cumsum(0) / sum(weights)
    top = len(weights) - 1
    return Law(lambda x: table[x.floor().clamp(-1, top).long() + 1], True, 0, top)


def coin_law(probability: float = 0.5) -> Law:
    """Returns the distribution of samples that are 1 with the given probability and otherwise 0."""
    if probability in (0, 1):  # the other number is outside the range
        return integers_law(int(probability), int(probability) + 1)
    return shares_law(1 - probability, probability)


def binomial_law(count: int, probability: float) -> Law:
    shares = (
        math.comb(count, k) * probability**k * (1 - probability) ** (count - k)
        for k in range(count + 1)
    )
    return shares_law(*shares)


def exponential_law(rate: float) -> Law:
    return Law(lambda x: 1 - torch.exp(-rate * x.clamp(min=0)), low=0)


def log_normal_law(mean: float = 1, std: float = 2) -> Law:
    """Returns the distribution of the exponential of normal samples with the given mean and standard deviation."""
    return Law(lambda x: normal_law(mean, std).cdf(x.clamp(min=1e-300).log()), low=0)


def cauchy_law(median: float = 0, sigma: float = 1) -> Law:
    return Law(lambda x: 0.5 + torch.atan((x - median) / sigma) / math.pi)


def geometric_law(probability: float) -> Law:
    """Returns the distribution of the number of trials up to and including the first success."""
    return Law(lambda x: 1 - torch.pow(1 - probability, x.floor().clamp(min=0)), True, 1)


def poisson_law(rate: float) -> Law:
    """Returns the Poisson distribution with the given rate. Its distribution function is the regularized
    incomplete gamma function (DLMF 8.4.10)."""
    most = int(rate + 40 * math.sqrt(rate) + 40)
    upto = torch.special.gammaincc(
        torch.arange(1.0, most + 2).double(), torch.tensor(rate).double()
    )
    table = torch.cat([torch.zeros(1).double(), upto])
    return Law(lambda x: table[x.floor().clamp(-1, most).long() + 1], True, 0)


# The test compares the Kolmogorov-Smirnov distance with the bound of Dvoretzky, Kiefer, Wolfowitz and Massart, which is
# valid for every distribution and every number of samples. A correct device exceeds the bound with a
# probability of at most ``FALSE_ALARM`` per case, and always gives the same result, because the seed is
# fixed.

SAMPLES = 20_000
FALSE_ALARM = 1e-9


#: The probability of a false alarm for one element. About 10^5 elements are judged.
_OF_ONE = 1e-12


def bound(count: int, false_alarm: float = FALSE_ALARM) -> float:
    """Returns the largest Kolmogorov-Smirnov distance that is accepted for the given number of samples."""
    return math.sqrt(math.log(2 / false_alarm) / (2 * count))


BOUND = bound(SAMPLES)


def _steps(law: Law, numbers: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Returns a tolerance for each number. It is one rounding step for 16-bit samples of a continuous
    distribution, whose rounding is not documented, and 0 otherwise."""
    if law.whole or dtype not in (torch.float16, torch.bfloat16):
        return torch.zeros_like(numbers)
    return numbers.abs().clamp(max=1e6) * torch.finfo(dtype).eps


def distance(law: Law, values: torch.Tensor) -> float:
    """Returns the Kolmogorov-Smirnov distance: the largest difference, over all numbers, between the share of samples
    up to a number and the documented share.

    Shares of 16-bit samples are compared with the documented shares at the neighbouring numbers, because such samples
    are rounded.
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


def _in_range(context: CaseContext, text: str, law: Law, values: torch.Tensor) -> None:
    context.check(not values.isnan().any(), f"{text}: some samples are NaN")
    numbers = values.double()
    least, most = float(numbers.min()), float(numbers.max())
    context.check(law.low <= least, f"{text}: a sample is below {law.low:g}", found=least)
    inside = most < law.high if law.below else most <= law.high
    top = f"{text}: a sample is {'not below' if law.below else 'above'} {law.high:g}"
    context.check(inside, top, found=most)
    if law.whole:
        whole = torch.equal(numbers, numbers.floor())
        context.check(whole, f"{text}: some samples are not whole numbers")


def judge(context: CaseContext, text: str, law: Law, values: torch.Tensor) -> None:
    """Checks that ``values`` are samples of the given distribution."""
    count = values.numel()
    _in_range(context, text, law, values)
    if values.dtype == torch.float32 and not law.whole:
        # Of float32 numbers with 24 significant bits, a share of 2^-13 is exact in float16.
        coarse = float((values == values.half()).double().mean())
        digits = f"{text}: the share of float32 samples that float16 can represent exactly exceeds one half"
        context.check(coarse <= 0.5, digits, found=coarse)
    found = distance(law, values)
    context.check(
        found <= bound(count),
        f"{count} samples of {text} are not distributed as documented: the Kolmogorov-Smirnov distance exceeds"
        f" {bound(count):.4f} (false alarm probability: {FALSE_ALARM:g})",
        found=round(found, 4),
    )


def judge_each(
    context: CaseContext, text: str, law: Law, values: torch.Tensor, many: torch.Tensor
) -> None:
    """Checks that each column of ``values`` contains samples of the given distribution, and that no column is a
    copy of another column.

    The share of samples up to a number is compared with the documented share, for a few numbers. These numbers
    are taken from ``many``, a tensor with further samples of the distribution.
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
    each = f"{text}: an element is not distributed as documented over {times} draws"
    message = f"{each}: the share of samples up to some number differs from the documented share by more than {most:.3f}"
    context.check(found <= most, message, found=round(found, 3))
    bits = numbers.view(torch.int64)
    bits = bits ^ (bits >> 32) ^ (bits >> 52)  # short numbers have only high bits
    stuck = int((bits == bits[:1]).all(0).sum())
    message = (
        f"{text}: the number of elements that have the same value in all {times} draws is not 0"
    )
    context.same(stuck, 0, message)
    # Columns are compared by weighted integer sums, which are equal for copies in any order of addition.
    source = torch.Generator().manual_seed(times)
    weights = torch.randint(-(2**62), 2**62, (times, 1), generator=source) * 2 + 1
    copied = bits.shape[1] - len((bits * weights).sum(0).unique())
    message = f"{text}: elements are copies of other elements in every draw: the number of copies is not 0"
    context.same(copied, 0, message)
