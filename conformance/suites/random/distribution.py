"""Samples are distributed as documented, and stay inside their view."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial

import torch

from conformance.checks.cases.cases import Cases
from conformance.checks.cases.context import Context
from conformance.suites.random.draws import FILLS, KNOWN
from conformance.suites.random.laws import (
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
from devices.failure import Kind

cases = Cases(Kind.VALUES)


@cases("random.distribution", over={name: (name,) for name in KNOWN})
def as_documented(context: Context, name: str) -> None:
    """Samples are distributed as the function documents, by its parameters."""
    torch.manual_seed(20_240)
    values = context.from_device(KNOWN[name][0](SAMPLES, context.device)).clone()
    context.same(values.numel(), SAMPLES, "as many numbers as requested")
    judge(context, name, KNOWN[name][1], values)


#: By function, other parameters: negative, zero, large, not whole, left out.
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
    """Samples that are drawn with these parameters."""
    drawn: torch.Tensor
    if name in ("randint", "normal"):
        drawn = getattr(torch, name)(*given, (SAMPLES,), dtype=dtype, device=device)
        return drawn
    held = torch.ones(SAMPLES, dtype=dtype, device=device)
    draw = getattr(held, name) if name.endswith("_") else partial(getattr(torch, name), held)
    drawn = draw(*given)
    return drawn


@cases("random.distribution", over={f"arguments_{name}": (name,) for name in ARGUMENTS})
def other_arguments(context: Context, name: str) -> None:
    """Samples are distributed as documented with other parameters: negative, large, left out."""
    torch.manual_seed(20_254)
    dtype = torch.float32
    if name in ("random_", "randint", "randint_like"):
        dtype = torch.int64 if "int64" in context.descriptor.dtypes else torch.int32
    for given, law in ARGUMENTS[name]:
        if law.high > 2**31 and dtype == torch.int32:
            continue  # the device has no integers of this range
        drawn = context.from_device(_drawn_with(name, given, dtype, context.device))
        judge(context, f"{name} of {given}", law, drawn)


@cases("random.distribution")
def neighbours(context: Context) -> None:
    """Neighbouring samples are not correlated."""
    torch.manual_seed(20_241)
    values = context.from_device(torch.randn(SAMPLES, device=context.device)).double()
    # Of independent samples each sum is nearly normal: eight deviations are beyond 1e-14.
    bound = 8 / math.sqrt(SAMPLES)
    for lag in (1, 2, 3, 4, 7, 16, 32, 64):
        found = float((values[:-lag] * values[lag:]).mean())
        text = f"correlation at distance {lag} is nearly 0"
        context.check(abs(found) <= bound, text, found=found)


@cases("random.distribution")
def dropout(context: Context) -> None:
    """Dropout drops the given share, and scales what it keeps."""
    torch.manual_seed(20_242)
    ones = context.to_device(torch.ones(SAMPLES))
    kept = context.from_device(torch.nn.functional.dropout(ones, 0.2))
    values = sorted(set(kept.tolist()))
    context.same(values, [0.0, 1.25], "what is kept is divided by the share that is kept")
    share = float((kept != 0).double().mean())
    context.check(abs(share - 0.8) <= BOUND, "four fifths are kept", found=share)


@cases("random.distribution", over={"rand_is_fine": ("rand",), "randn_is_fine": ("randn",)})
def fine(context: Context, name: str) -> None:
    """Samples of a continuous law have nearly as many values as there are samples: no bits are missing."""
    torch.manual_seed(20_245)
    values = context.from_device(KNOWN[name][0](SAMPLES, context.device))
    # With 23 bits or more, some 24 pairs of 20,000 are equal; with 16 bits, three thousand.
    distinct = values.unique().numel()
    text = f"of {SAMPLES} samples all but 200 differ"
    context.check(distinct >= SAMPLES - 200, text, found=distinct)


@cases("random.distribution", over={f"view_{n}": (n,) for n in FILLS})
def inside_its_view(context: Context, name: str) -> None:
    """A fill writes every element of its view, and no byte outside it."""
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
        context.equal(got[outside], untouched, f"{text}: elements outside the view")
        context.check((got[~outside] != -7.0).all(), f"{text}: every element is filled")
