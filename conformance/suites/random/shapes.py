"""Samples of tensors of many shapes: all of the elements, and each over many draws."""

from __future__ import annotations

import math

import torch

from conformance.checks.cases.cases import Cases
from conformance.checks.cases.context import Context
from conformance.suites.random.draws import KNOWN, SHAPED, WAYS
from conformance.suites.random.laws import Law, judge, judge_each
from devices.failure import Kind

cases = Cases(Kind.VALUES)

#: More than 2^16 elements in rows.
_LARGE = (4099, 17)
#: It; five dimensions; a square that fills no tiles, and one that does.
_SHAPES = (_LARGE, (3, 5, 7, 11, 13), (131, 131), (64, 64))
#: How far from its source a block may be copied to.
_LAGS = (1, 2, 4, 8, 16, 32, 64, 128)


@cases("random.distribution", over={f"shaped_{name}": (name,) for name in SHAPED})
def shaped(context: Context, name: str) -> None:
    """For a large tensor, a square, one of five dimensions, transposed ones and ones that begin after another element
    samples are drawn, and then others."""
    draw, law = SHAPED[name][0], KNOWN[SHAPED[name][1]][1]
    for shape in _SHAPES:
        count = math.prod(shape)
        for how in ("as it is", "transposed", "after an element"):
            start = how == "after an element"
            base = torch.full((count + start,), -7.0, device=context.device)[start:].view(shape)
            given = base.mT if how == "transposed" else base
            torch.manual_seed(20_246)
            drawn = [context.from_device(draw(given)).clone().reshape(-1) for _ in range(2)]
            text = f"{name} of {tuple(given.shape)}, {how}"
            context.same(len(drawn[0]), given.numel(), f"{text}: as many numbers as elements")
            for each in drawn:
                judge(context, text, law, each)
                _apart(context, text, law, each)
            repeated = all(torch.equal(each[-16:], each[-32:-16]) for each in drawn)
            context.check(not repeated, f"{text}: the last block is not always the one before")
            stayed = int((drawn[0] == drawn[1]).sum())
            few = count - 1 if law.whole else 3
            context.check(stayed <= few, f"{text}: the next samples are others", found=stayed)


def _apart(context: Context, text: str, law: Law, drawn: torch.Tensor) -> None:
    """Whether samples of a law of real numbers differ from those beside them: of fractions of 22 bits, three are the
    same by a chance of 2^-44."""
    if law.whole:
        return
    one, two, three = drawn[:-2], drawn[1:-1], drawn[2:]
    same = int(((one == two) & (two == three)).sum())
    context.same(same, 0, f"{text}: no three neighbours are the same")
    same = max(int((drawn[lag:] == drawn[:-lag]).sum()) for lag in _LAGS)
    context.check(same < 4, f"{text}: no block is a copy of one before", found=same)


#: Small tensors that are drawn many times: a tail that fills no vector, and more than 300 rows of a few.
_SMALL, _TIMES = ((19,), (301, 2)), 400
#: They begin at the start of a storage, and after one, two and three other elements.
_STARTS = 4


@cases("random.distribution", over={f"ends_{name}": (name,) for name in WAYS})
def ends(context: Context, name: str) -> None:
    """Each element of a small tensor is distributed as documented, over many draws, and none is another's copy, wherever
    the tensor begins."""
    draw, law = WAYS[name][0], KNOWN[WAYS[name][1]][1]
    for shape in _SMALL:
        count = math.prod(shape)
        base = torch.full((count + _STARTS - 1,), -7.0, device=context.device)
        torch.manual_seed(20_247)
        drawn = []
        for start in range(_STARTS):
            given = base[start : start + count].view(shape)
            drawn += [draw(given).reshape(-1).clone() for _ in range(_TIMES // _STARTS)]
        values = context.from_device(torch.stack(drawn))
        for place in (0, -1):
            judge(context, f"{name} of {shape}", law, values[:, place].contiguous())
        # Of 0 and 1, where they are least even here, six in ten pairs are the same; eight deviations are a fifth.
        same = (values[:, 1:] == values[:, :-1]).double().mean(0)
        text = f"{name}: in four of five draws at most, an element of {shape} is the one before"
        context.check(bool((same <= 0.8).all()), text, found=round(float(same.max()), 3))
        for start, part in enumerate(values.split(_TIMES // _STARTS)):
            judge_each(context, f"{name} of {shape}, after {start} elements", law, part, values)


#: Elements of a large tensor whose draws are judged: the first and the last blocks, some in the middle.
_PLACES = torch.arange(math.prod(_LARGE))[[*range(72), *range(34_000, 34_020), *range(-72, 0)]]
#: 0 and 1, where they are least even here, are the same in all by a chance of 0.7^64.
_FAR_TIMES = 64


@cases("random.distribution", over={f"far_{name}": (name,) for name in SHAPED})
def far(context: Context, name: str) -> None:
    """The first, the last and other elements of a large tensor are distributed as documented over many draws, and none is
    another's copy."""
    draw, law = SHAPED[name][0], KNOWN[SHAPED[name][1]][1]
    torch.manual_seed(20_252)
    places = context.to_device(_PLACES)
    drawn = [
        draw(torch.full(_LARGE, -7.0, device=context.device)).view(-1)[places]
        for _ in range(_FAR_TIMES)
    ]
    values = context.from_device(torch.stack(drawn))
    judge_each(context, f"{name} of {_LARGE}", law, values, values.flatten())
