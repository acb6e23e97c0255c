"""Cases about torch.multinomial and torch.randperm."""

from __future__ import annotations

import math
from typing import Any

import torch

from conformance.checks.cases.cases import Cases
from conformance.checks.cases.context import CaseContext
from conformance.suites.random.distributions import SAMPLES, judge, uniform_law
from devices.failure import Kind

cases = Cases(Kind.VALUES)

#: Numbers of weights and lengths of permutations above 2^14, 30,000 and 2^16, where kernels switch
#: algorithms.
_MANY = (2**14 + 1, 30_011, 2**16 + 15)
#: The length of a permutation of which a public bug lost the end (pytorch/pytorch#59756).
_MORE = 200_003


@cases("random.distribution")
def permutation(context: CaseContext) -> None:
    """randperm returns every number exactly once, also in a strided tensor given as out=, and with a generator that was
    made without an index, where the device has generators. Long permutations are in random order: few numbers stay at
    their index, and few numbers n are followed directly by n + 1."""
    dtypes = [d for d in ("int64", "int32") if d in context.descriptor.dtypes]
    for count in (0, 1, 2, 1000, *_MANY, _MORE):
        for dtype in (getattr(torch, each) for each in dtypes or ["int64"]):
            torch.manual_seed(count)
            drawn = torch.randperm(count, device=context.device, dtype=dtype)
            found = context.from_device(drawn).long()
            text = f"randperm({count}) of {dtype}"
            every = torch.equal(found.sort().values, torch.arange(count))
            context.check(every, f"{text} does not contain every number exactly once")
            if count in _MANY:
                judge(context, text, uniform_law(0, 1), found[: count // 2].double() / count)
                # One number is expected to stay in place. More than 30 have a probability of 1e-32.
                stay = int((found == torch.arange(count)).sum())
                message = f"{text}: more than 30 numbers stay at their index"
                context.check(stay <= 30, message, found=stay)
                ascend = int((found.diff() == 1).sum())
                message = f"{text}: the order is not random: more than 30 numbers are directly followed by their successor"
                context.check(ascend <= 30, message, found=ascend)
    base = context.to_device(torch.full((1000, 2), -1))
    named: dict[str, Any] = {}
    if context.has("generator"):
        named["generator"] = torch.Generator(context.kind)
    torch.randperm(1000, device=context.device, out=base[:, 1], **named)
    gaps, found = context.from_device(base).unbind(1)
    every = torch.equal(found.sort().values, torch.arange(1000))
    text = "randperm(1000) with a strided out="
    context.check(every, f"{text} does not contain every number exactly once")
    context.check(bool((gaps == -1).all()), f"{text} writes between the elements of out=")


@cases("random.distribution")
def many_weights(context: CaseContext) -> None:
    """torch.multinomial draws from more than 2^14 weights. It draws uniformly if the weights are equal, never
    draws an index of weight 0, and draws no index twice if it draws without replacement. Few weights, an odd number of
    them, in every floating-point dtype, are drawn from as well: one index at a time."""
    for count in _MANY:
        torch.manual_seed(20_250)
        even, last = torch.ones(count), torch.zeros(count)
        last[-3:] = 1.0
        text = f"multinomial of {count} weights"
        drawn = torch.multinomial(context.to_device(even), SAMPLES, True)
        numbers = (context.from_device(drawn).double() + 0.5) / count
        judge(context, text, uniform_law(0, 1), numbers)
        for given, replaced in ((last, True), (last, False), (even, False)):
            draws = 3 if given is last else 1000
            found = torch.multinomial(context.to_device(given), draws, replaced)
            numbers = context.from_device(found)
            inside = int(numbers.min()) >= 0 and int(numbers.max()) < count
            context.check(inside, f"{text}: an index out of range was drawn")
            missing = int((given[numbers.clamp(0, count - 1)] == 0).sum())
            message = f"{text}: the number of drawn indices of weight 0 is not 0"
            context.same(missing, 0, message)
            if not replaced:
                message = (
                    f"{text}: without replacement, there are fewer distinct indices than draws"
                )
                context.same(len(set(numbers.tolist())), draws, message)
    for dtype in ("float32", "float64", "float16", "bfloat16"):
        if dtype not in context.descriptor.dtypes:
            continue
        for count, replaced in ((3, True), (3, False), (257, True)):
            weights = torch.zeros(2, count, dtype=getattr(torch, dtype))
            weights[:, count // 2] = 1
            drawn = context.from_device(torch.multinomial(context.to_device(weights), 1, replaced))
            text = f"multinomial of {count} weights in {dtype}: an index of weight 0 was drawn"
            context.check(bool((drawn == count // 2).all()), text, found=drawn.tolist())


@cases("random.distribution")
def permutation_order(context: CaseContext) -> None:
    """In 600 permutations of six numbers, each number comes first about equally often, and each
    difference (modulo 6) between the first two numbers occurs about equally often."""
    torch.manual_seed(20_243)
    rows = torch.stack(
        [context.from_device(torch.randperm(6, device=context.device)) for _ in range(600)]
    )
    first, apart = rows[:, 0], (rows[:, 1] - rows[:, 0]) % 6
    # Counts of 600 draws are within 7 standard deviations of their mean, except with a probability below
    # 1e-11.
    for what, values, kinds in (
        ("the first number of randperm", first, range(6)),
        ("the difference (modulo 6) between the first two numbers of randperm", apart, range(1, 6)),
    ):
        share = 1 / len(kinds)
        bound = 7 * math.sqrt(600 * share * (1 - share))
        counts = [int((values == kind).sum()) for kind in kinds]
        even = all(abs(count - 600 * share) <= bound for count in counts)
        text = f"{what} is not evenly distributed: the count of each value must be {600 * share:.0f} ± {bound:.0f}"
        context.check(even, text, found=counts)


#: The weights of seven categories: two have weight 0, and one has half of the total weight. The number of
#: rows.
_WEIGHTS, _ROWS = (0.0, 0.5, 1.0, 0.0, 2.0, 4.0, 0.5), 2000


#: Layouts of rows that all contain the same weights. A kernel that ignores the strides reads wrong weights in
#: most rows.
_LAYOUTS = ("contiguous", "contiguous+expand_first", "transposed", "contiguous+step_inner")


@cases("random.distribution")
def without_replacement(context: CaseContext) -> None:
    """torch.multinomial draws from rows of weights in several layouts. Without replacement, it draws each category of
    nonzero weight exactly once. With and without replacement, it never draws a category of weight 0, the category that
    has half of the total weight is drawn first in half of the rows, and the rows are independent."""
    bound = 7 * math.sqrt(0.25 / _ROWS)
    share_text = f"the share of rows in which the category with half of the weight is drawn first is not 0.5 ± {bound:.3f}"
    for layout in _LAYOUTS:
        weights = torch.tensor(_WEIGHTS).expand(_ROWS, len(_WEIGHTS))
        rows = context.lay(weights, layout, around=1.0)
        for replaced in (False, True):
            torch.manual_seed(20_244)
            found = context.from_device(torch.multinomial(rows, 5, replaced))
            how = f"multinomial of weights laid out as {layout}, {'with' if replaced else 'without'} replacement"
            context.same(tuple(found.shape), (_ROWS, 5), f"{how}: the result has the wrong shape")
            if replaced:
                text = (
                    f"{how}: the categories that were drawn are not those with a weight above zero"
                )
                context.same(sorted(set(found.reshape(-1).tolist())), [1, 2, 4, 5, 6], text)
            else:
                want = torch.tensor([1, 2, 4, 5, 6]).expand(_ROWS, 5)
                text = f"{how}: a category of nonzero weight was not drawn exactly once"
                context.equal(found.sort(dim=1).values, want, text)
            share = float((found[:, 0] == 5).double().mean())
            context.check(abs(share - 0.5) <= bound, f"{how}: {share_text}", found=share)
            rows_differ = len({tuple(row) for row in found.tolist()}) > 20
            text = f"{how}: too few rows differ, so rows are not drawn independently"
            context.check(rows_differ, text)
