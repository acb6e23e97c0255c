"""Cases about distributions: samples are distributed as documented, and filling a view writes only inside the
view."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch

from conformance.checks.cases.cases import Cases
from conformance.checks.cases.context import CaseContext
from conformance.suites.random.distributions import BOUND, SAMPLES, judge
from conformance.suites.random.samplers import (
    FILLS,
    SAMPLERS,
    VECTORS,
    WITH_OTHER_ARGUMENTS,
    asking,
)
from devices.failure import Kind

cases = Cases(Kind.VALUES)


@cases("random.distribution", over=asking(VECTORS))
def as_documented(context: CaseContext, name: str) -> None:
    """20,000 samples are drawn with a random function. They are distributed as documented for the function and
    its parameters."""
    torch.manual_seed(20_240)
    values = context.from_device(SAMPLERS[name].vector(SAMPLES, context.device)).clone()
    context.same(values.numel(), SAMPLES, "the number of samples is wrong")
    judge(context, name, SAMPLERS[name].law, values)


@cases("random.distribution", over=asking(WITH_OTHER_ARGUMENTS, "arguments_"))
def other_arguments(context: CaseContext, name: str) -> None:
    """Samples are drawn with negative, zero, large and omitted parameters. They are distributed as documented
    for the function and these parameters."""
    torch.manual_seed(20_254)
    sampler, dtype = SAMPLERS[name], SAMPLERS[name].dtype
    if dtype == torch.int64 and "int64" not in context.descriptor.dtypes:
        dtype = torch.int32
    for given in sampler.others:
        law = sampler.family(*given)
        if law.high > 2**31 and dtype == torch.int32:
            continue  # the device has no integers of this range
        held = torch.ones(SAMPLES, dtype=dtype, device=context.device)
        drawn = context.from_device(sampler.draw(held, *given))
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
    """Of 20,000 samples of a continuous distribution, at most 200 are equal to another sample. A larger number would
    show that random bits are missing."""
    torch.manual_seed(20_245)
    values = context.from_device(SAMPLERS[name].vector(SAMPLES, context.device))
    # With 23 or more random bits, about 24 of 20,000 samples repeat another one; with 16 bits, about 3,000.
    distinct = values.unique().numel()
    text = f"the number of distinct samples is below {SAMPLES - 200} of {SAMPLES}"
    context.check(distinct >= SAMPLES - 200, text, found=distinct)


#: Parts of a tensor of 256 elements.
_VIEWS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "the start": lambda base: base[:100],
    "the middle": lambda base: base[37:137],
    "every third": lambda base: base[5:200:3],
    "some columns, transposed": lambda base: base.view(16, 16)[:, 3:9].t(),
}


@cases("random.distribution", over=asking(FILLS, "view_"))
def inside_its_view(context: CaseContext, name: str) -> None:
    """Filling a view in place writes every element of the view and no other element of its base."""
    for view, part in _VIEWS.items():
        base = torch.full((256,), -7.0, device=context.device)
        SAMPLERS[name].like(part(base))
        got, text = context.from_device(base), f"{name} into a view ({view})"
        outside = torch.ones(256, dtype=torch.bool)
        part(outside).fill_(False)
        untouched = torch.full((256,), -7.0)[outside]
        context.equal(got[outside], untouched, f"{text}: an element outside of the view changed")
        filled = bool((got[~outside] != -7.0).all())
        context.check(filled, f"{text}: an element of the view was not filled")
