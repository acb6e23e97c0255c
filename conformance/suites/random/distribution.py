"""Cases about distributions: samples are distributed as documented, and filling a view writes only inside the
view."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial

import torch

from conformance.checks.cases.cases import Cases
from conformance.checks.cases.context import CaseContext
from conformance.suites.random.distributions import (
    BOUND,
    SAMPLES,
    Law,
    cauchy_law,
    coin_law,
    exponential_law,
    geometric_law,
    integers_law,
    judge,
    log_normal_law,
    normal_law,
    uniform_law,
)
from conformance.suites.random.samplers import FILLS, KNOWN
from devices.failure import Kind

cases = Cases(Kind.VALUES)


@cases("random.distribution", over={name: (name,) for name in KNOWN})
def as_documented(context: CaseContext, name: str) -> None:
    """20,000 samples are drawn with a random function. They are distributed as documented for the function and
    its parameters."""
    torch.manual_seed(20_240)
    values = context.from_device(KNOWN[name][0](SAMPLES, context.device)).clone()
    context.same(values.numel(), SAMPLES, "the number of samples is wrong")
    judge(context, name, KNOWN[name][1], values)


#: Further parameters for each function: negative, zero, large, fractional and omitted.
ARGUMENTS: dict[str, tuple[tuple[tuple[float, ...], Law], ...]] = {
    "uniform_": (
        ((), uniform_law(0, 1)),
        ((-5.5, -2.25), uniform_law(-5.5, -2.25)),
        ((-20, 300.5), uniform_law(-20, 300.5)),
        ((0, 1e6), uniform_law(0, 1e6)),
    ),
    "normal_": (
        ((), normal_law(0, 1)),
        ((-2.5,), normal_law(-2.5, 1)),
        ((300.5, 20), normal_law(300.5, 20)),
        ((0, 1e6), normal_law(0, 1e6)),
    ),
    "exponential_": tuple(((rate,), exponential_law(rate)) for rate in (20.5, 1, 0.25, 1e-6)),
    "log_normal_": (
        ((), log_normal_law(1, 2)),
        ((-0.5, 0.25), log_normal_law(-0.5, 0.25)),
        ((9.5, 0.5), log_normal_law(9.5, 0.5)),
        ((0, 1), log_normal_law(0, 1)),
    ),
    "cauchy_": (
        ((), cauchy_law(0, 1)),
        ((-20.5, 0.25), cauchy_law(-20.5, 0.25)),
        ((300, 12), cauchy_law(300, 12)),
    ),
    "geometric_": tuple(((share,), geometric_law(share)) for share in (0.9, 0.5, 0.04)),
    "bernoulli_": (
        ((), coin_law(0.5)),
        ((0.95,), coin_law(0.95)),
        ((0,), integers_law(0, 1)),
        ((1,), integers_law(1, 2)),
    ),
    "random_": (
        ((5,), integers_law(0, 5)),
        ((0, 2), integers_law(0, 2)),
        ((-20, 300), integers_law(-20, 300)),
        ((-(2**40), 2**41), integers_law(-(2**40), 2**41)),
        ((), integers_law(0, 2**63)),
    ),
    "randint": (
        ((7,), integers_law(0, 7)),
        ((-20, 300), integers_law(-20, 300)),
        ((-(2**40), 2**41), integers_law(-(2**40), 2**41)),
    ),
    "randint_like": (
        ((7,), integers_law(0, 7)),
        ((-20, 300), integers_law(-20, 300)),
        ((-(2**40), 2**41), integers_law(-(2**40), 2**41)),
    ),
    "normal": (
        ((-2.5, 20), normal_law(-2.5, 20)),
        ((300.5, 0.25), normal_law(300.5, 0.25)),
    ),
}


def _drawn_with(
    name: str, given: tuple[float, ...], dtype: torch.dtype, device: torch.device
) -> torch.Tensor:
    """Returns 20,000 samples that the named function draws with the given parameters."""
    drawn: torch.Tensor
    if name in ("randint", "normal"):
        drawn = getattr(torch, name)(*given, (SAMPLES,), dtype=dtype, device=device)
        return drawn
    held = torch.ones(SAMPLES, dtype=dtype, device=device)
    draw = getattr(held, name) if name.endswith("_") else partial(getattr(torch, name), held)
    drawn = draw(*given)
    return drawn


@cases("random.distribution", over={f"arguments_{name}": (name,) for name in ARGUMENTS})
def other_arguments(context: CaseContext, name: str) -> None:
    """Samples are drawn with negative, zero, large and omitted parameters. They are distributed as documented
    for the function and these parameters."""
    torch.manual_seed(20_254)
    dtype = torch.float32
    if name in ("random_", "randint", "randint_like"):
        dtype = torch.int64 if "int64" in context.descriptor.dtypes else torch.int32
    for given, law in ARGUMENTS[name]:
        if law.high > 2**31 and dtype == torch.int32:
            continue  # the device has no integers of this range
        drawn = context.from_device(_drawn_with(name, given, dtype, context.device))
        judge(context, f"{name} with the arguments {given}", law, drawn)


@cases("random.distribution")
def neighbours(context: CaseContext) -> None:
    """Normal samples are not correlated with samples at small distances in the same tensor."""
    torch.manual_seed(20_241)
    values = context.from_device(torch.randn(SAMPLES, device=context.device)).double()
    # For independent samples the sum is nearly normal; more than eight standard deviations have a probability
    # of 1e-14.
    bound = 8 / math.sqrt(SAMPLES)
    for lag in (1, 2, 3, 4, 7, 16, 32, 64):
        found = float((values[:-lag] * values[lag:]).mean())
        text = f"samples at distance {lag} are correlated"
        context.check(abs(found) <= bound, text, found=found)


@cases("random.distribution")
def dropout(context: CaseContext) -> None:
    """dropout sets the given share of elements to zero and scales all other elements."""
    torch.manual_seed(20_242)
    ones = context.to_device(torch.ones(SAMPLES))
    kept = context.from_device(torch.nn.functional.dropout(ones, 0.2))
    values = sorted(set(kept.tolist()))
    context.same(
        values,
        [0.0, 1.25],
        "the distinct values in the result of dropout are not 0 and the input divided by the share of elements kept",
    )
    share = float((kept != 0).double().mean())
    context.check(abs(share - 0.8) <= BOUND, "the share of elements kept is not 0.8", found=share)


@cases("random.distribution", over={"rand_is_fine": ("rand",), "randn_is_fine": ("randn",)})
def fine(context: CaseContext, name: str) -> None:
    """Of 20,000 samples of a continuous distribution, at most 200 repeat another sample. More repetitions would
    show that random bits are missing."""
    torch.manual_seed(20_245)
    values = context.from_device(KNOWN[name][0](SAMPLES, context.device))
    # With 23 or more random bits, about 24 of 20,000 samples repeat another one; with 16 bits, about 3,000.
    distinct = values.unique().numel()
    text = f"the number of distinct samples is below {SAMPLES - 200} of {SAMPLES}"
    context.check(distinct >= SAMPLES - 200, text, found=distinct)


@cases("random.distribution", over={f"view_{n}": (n,) for n in FILLS})
def inside_its_view(context: CaseContext, name: str) -> None:
    """Filling a view in place writes every element of the view and no other element of its base."""
    parts: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
        "the start": lambda base: base[:100],
        "the middle": lambda base: base[37:137],
        "every third": lambda base: base[5:200:3],
        "some columns, transposed": lambda base: base.view(16, 16)[:, 3:9].t(),
    }
    for view, part in parts.items():
        base = torch.full((256,), -7.0, device=context.device)
        getattr(part(base), name)(*FILLS[name])
        got, text = context.from_device(base), f"{name} into {view}"
        outside = torch.ones(256, dtype=torch.bool)
        part(outside).fill_(False)
        untouched = torch.full((256,), -7.0)[outside]
        context.equal(got[outside], untouched, f"{text}: an element outside of the view changed")
        context.check(
            (got[~outside] != -7.0).all(), f"{text}: an element of the view was not filled"
        )
