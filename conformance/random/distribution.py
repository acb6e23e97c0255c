"""random.distribution: samples are distributed as documented, and stay inside their view.

The test is Kolmogorov's distance with the bound of Dvoretzky, Kiefer, Wolfowitz and Massart, which holds for every
distribution and every number of samples: a right device exceeds it with a probability of at most ``FALSE_ALARM`` a
case, and never twice differently, since the seed is fixed.
"""

from __future__ import annotations

import math

import torch

from conformance.behaviour.cases import Cases
from conformance.behaviour.context import Context
from conformance.random.draws import FILLS, KNOWN

cases = Cases()

SAMPLES = 20_000
FALSE_ALARM = 1e-9
BOUND = math.sqrt(math.log(2 / FALSE_ALARM) / (2 * SAMPLES))


def distance(name: str, values: torch.Tensor) -> float:
    """The greatest distance between the share of samples up to any number and the documented one."""
    known = KNOWN[name]
    numbers, counts = torch.unique(values.double(), return_counts=True)
    shares = counts.double() / values.numel()
    up_to = shares.cumsum(0)
    before = known.cdf(numbers - 1) if known.whole else known.cdf(numbers)
    over = (up_to - known.cdf(numbers)).abs().max()
    under = (up_to - shares - before).abs().max()
    return float(torch.maximum(over, under))


def _drawn(context: Context, name: str) -> torch.Tensor:
    torch.manual_seed(20_240)
    return context.from_device(KNOWN[name].draw(SAMPLES, context.device, None)).clone()


@cases("random.distribution", over={name: (name,) for name in KNOWN})
def as_documented(context: Context, name: str) -> None:
    """Samples are distributed as the function documents, by its parameters."""
    known, values = KNOWN[name], _drawn(context, name)
    context.same(values.numel(), SAMPLES, "as many numbers as were asked for")
    context.check(not values.isnan().any(), "no sample is NaN")
    least, most = float(values.double().min()), float(values.double().max())
    context.check(known.low <= least, f"no sample is below {known.low:g}", got=least)
    inside = most < known.high if known.below else most <= known.high
    context.check(inside, f"no sample is above {known.high:g}, or at an open end", got=most)
    if known.whole:
        whole = values.double()
        context.check(torch.equal(whole, whole.floor()), "samples are whole numbers")
    found = distance(name, values)
    context.check(
        found <= BOUND,
        f"{SAMPLES} samples of {name} are distributed as documented: Kolmogorov's distance is at "
        f"most {BOUND:.4f} (false alarms: {FALSE_ALARM:g})",
        got=round(found, 4),
    )


@cases("random.distribution")
def neighbours(context: Context) -> None:
    """Neighbouring samples are not correlated."""
    torch.manual_seed(20_241)
    values = context.from_device(torch.randn(SAMPLES, device=context.device)).double()
    # Of independent samples each sum is nearly normal: eight deviations are beyond 1e-14.
    bound = 8 / math.sqrt(SAMPLES)
    for lag in (1, 2, 3, 4, 7, 16, 32, 64):
        found = float((values[:-lag] * values[lag:]).mean())
        context.check(abs(found) <= bound, f"correlation at distance {lag} is nearly 0", got=found)


@cases("random.distribution")
def dropout(context: Context) -> None:
    """Dropout drops the share that it is told, and scales what it keeps."""
    torch.manual_seed(20_242)
    ones = context.to_device(torch.ones(SAMPLES))
    kept = context.from_device(torch.nn.functional.dropout(ones, 0.2))
    values = sorted(set(kept.tolist()))
    context.same(values, [0.0, 1.25], "what is kept is divided by the share that is kept")
    share = float((kept != 0).double().mean())
    context.check(abs(share - 0.8) <= BOUND, "four fifths are kept", got=share)


@cases("random.distribution")
def permutation(context: Context) -> None:
    """randperm gives every number once."""
    for count in (0, 1, 2, 1000):
        torch.manual_seed(count)
        found = context.from_device(torch.randperm(count, device=context.device))
        context.same(
            sorted(found.tolist()), list(range(count)), f"randperm({count}) has every number once"
        )


@cases(
    "random.distribution", requires={"strides", "storage"}, over={f"view_{n}": (n,) for n in FILLS}
)
def inside_its_view(context: Context, name: str) -> None:
    """A fill writes every element of its view, and no byte beside it."""
    views = {
        "the start": (slice(0, 100), slice(None)),
        "the middle": (slice(37, 137), slice(None)),
        "every third": (slice(5, 200, 3), slice(None)),
    }
    for text, (part, _) in views.items():
        base = torch.full((256,), -7.0, device=context.device)
        FILLS[name](base[part], None)
        got = context.from_device(base)
        outside = torch.ones(256, dtype=torch.bool)
        outside[part] = False
        context.equal(
            got[outside], torch.full((256,), -7.0)[outside], f"{name} into {text}: beside it"
        )
        context.check(
            bool((got[part] != -7.0).all()), f"{name} into {text}: every element is filled"
        )
