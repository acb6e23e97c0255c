"""Cases about tensors of many shapes: the distribution of samples over all elements of a tensor, and the
distribution of each element over many draws."""

from __future__ import annotations

import math
from itertools import product

import torch

from conformance.checks.cases.cases import Cases
from conformance.checks.cases.context import CaseContext
from conformance.suites.random.distributions import Law, judge, judge_each
from conformance.suites.random.samplers import (
    PER_TENSOR,
    PER_TENSOR_OR_SHAPE,
    SAMPLERS,
    asking,
)
from devices.failure import Kind

cases = Cases(Kind.VALUES)

#: A shape with rows and more than 2^16 elements.
_LARGE = (4099, 17)
#: The large shape, one of five dimensions, a square that is no multiple of a tile, and one that is.
_SHAPES = (_LARGE, (3, 5, 7, 11, 13), (131, 131), (64, 64))
#: The distances in elements at which copied blocks are looked for.
_LAGS = (1, 2, 4, 8, 16, 32, 64, 128)


@cases("random.distribution", over=asking(PER_TENSOR, "shaped_"))
def shaped(context: CaseContext, name: str) -> None:
    """Samples are drawn for a large tensor, for a tensor of five dimensions and for square tensors, each of them
    contiguous, transposed and at a storage offset. The samples are distributed as documented and contain no
    copied blocks, and a second draw gives different samples."""
    sampler, law = SAMPLERS[name], SAMPLERS[name].law
    for shape, layout in product(_SHAPES, ("contiguous", "transposed", "contiguous+offset")):
        held = torch.full(shape, -7.0)
        given = context.lay(held.mT if layout == "transposed" else held, layout)
        torch.manual_seed(20_246)
        drawn = [context.from_device(sampler.like(given)).clone().reshape(-1) for _ in range(2)]
        text = f"{name} of {tuple(given.shape)}, {layout}"
        context.same(len(drawn[0]), given.numel(), f"{text}: the number of samples is wrong")
        for each in drawn:
            judge(context, text, law, each)
            _apart(context, text, law, each)
        repeated = all(torch.equal(each[-16:], each[-32:-16]) for each in drawn)
        last = f"{text}: the last 16 samples are a copy of the 16 samples before them"
        context.check(not repeated, last)
        stayed = int((drawn[0] == drawn[1]).sum())
        few = given.numel() - 1 if law.whole else 3
        same = f"{text}: a second draw gave the same samples: the number of equal elements is too large"
        context.check(stayed <= few, same, found=stayed)


def _apart(context: CaseContext, text: str, law: Law, drawn: torch.Tensor) -> None:
    """Checks that samples of a continuous distribution differ from nearby samples. Three equal numbers of 22
    random bits would have a probability of 2^-44."""
    if law.whole:
        return
    one, two, three = drawn[:-2], drawn[1:-1], drawn[2:]
    same = int(((one == two) & (two == three)).sum())
    triples = (
        f"{text}: three neighbouring samples are equal (found: the number of places where they are)"
    )
    context.same(same, 0, triples)
    same = max(int((drawn[lag:] == drawn[:-lag]).sum()) for lag in _LAGS)
    block = f"{text}: a block of samples repeats an earlier block: the number of equal elements is too large"
    context.check(same < 4, block, found=same)


#: The shapes of small tensors that are drawn many times: one with a tail that fills no vector, and one with
#: 301 rows. The number of draws.
_SMALL, _TIMES = ((19,), (301, 2)), 400
#: The tensors begin at storage offsets 0 to 3.
_STARTS = 4


@cases("random.distribution", over=asking(PER_TENSOR_OR_SHAPE, "ends_"))
def ends(context: CaseContext, name: str) -> None:
    """Small tensors are drawn 400 times at several storage offsets. Each element is distributed as documented
    over the draws, and no element is a copy of another element."""
    sampler, law = SAMPLERS[name], SAMPLERS[name].law
    for shape in _SMALL:
        count = math.prod(shape)
        base = torch.full((count + _STARTS - 1,), -7.0, device=context.device)
        torch.manual_seed(20_247)
        drawn = []
        for start in range(_STARTS):
            given = base[start : start + count].view(shape)
            drawn += [sampler.like(given).reshape(-1).clone() for _ in range(_TIMES // _STARTS)]
        values = context.from_device(torch.stack(drawn))
        for place in (0, -1):
            judge(context, f"{name} of shape {shape}", law, values[:, place].contiguous())
        # For results of 0 and 1 with the least even shares used here, 6 in 10 neighbouring pairs are equal.
        # Eight standard deviations are 0.2.
        same = (values[:, 1:] == values[:, :-1]).double().mean(0)
        text = f"{name} of shape {shape}: the share of draws in which an element equals the previous element exceeds 0.8"
        context.check(bool((same <= 0.8).all()), text, found=round(float(same.max()), 3))
        for start, part in enumerate(values.split(_TIMES // _STARTS)):
            judge_each(
                context, f"{name} of shape {shape} at storage offset {start}", law, part, values
            )


#: The elements of a large tensor that are judged: the first and the last 72, and 20 in the middle.
_PLACES = torch.arange(math.prod(_LARGE))[[*range(72), *range(34_000, 34_020), *range(-72, 0)]]
#: The number of draws. Results of 0 and 1, with the least even shares used here, are the same in all of them
#: with a probability of 0.7^64.
_FAR_TIMES = 64


@cases("random.distribution", over=asking(PER_TENSOR, "far_"))
def far(context: CaseContext, name: str) -> None:
    """A large tensor is drawn many times. Its first elements, its last elements and some in the middle are
    distributed as documented over the draws, and none of them is a copy of another element."""
    sampler, law = SAMPLERS[name], SAMPLERS[name].law
    torch.manual_seed(20_252)
    places = context.to_device(_PLACES)
    drawn = [
        sampler.like(torch.full(_LARGE, -7.0, device=context.device)).view(-1)[places]
        for _ in range(_FAR_TIMES)
    ]
    values = context.from_device(torch.stack(drawn))
    judge_each(context, f"{name} of {_LARGE}", law, values, values.flatten())
