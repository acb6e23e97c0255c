"""Samples are distributed as documented, and stay inside their view."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from operator import methodcaller
from typing import Any, NamedTuple

import torch

from conformance.checks.cases.cases import Cases
from conformance.checks.cases.context import Context
from devices.failure import Kind

cases = Cases(Kind.VALUES)


# -- what is drawn: every function that takes a generator, with the documented properties of its samples

#: ``draw(count, device, **named)``; a generator is named, or none is.
Draw = Callable[..., torch.Tensor]


def named(generator: Any) -> dict[str, Any]:
    """How a call names a generator: not at all if it is the default one."""
    return {} if generator is None else {"generator": generator}


def _full(count: int, value: float, device: torch.device) -> torch.Tensor:
    return torch.full((count,), float(value), device=device)


def _filled(method: str, *parameters: float, dtype: torch.dtype = torch.float32) -> Draw:
    """Draw by filling a tensor in place."""
    return lambda n, d, **g: getattr(torch.empty(n, device=d, dtype=dtype), method)(
        *parameters, **g
    )


class Law(NamedTuple):
    """The documented properties of what is drawn."""

    cdf: Callable[[torch.Tensor], torch.Tensor]  # of float64 values on the CPU
    whole: bool = False  # only whole numbers
    low: float = -math.inf
    high: float = math.inf
    below: bool = False  # `high` itself is never drawn


def _uniform(low: float, high: float) -> Law:
    return Law(lambda x: ((x - low) / (high - low)).clamp(0, 1), False, low, high, below=True)


def _normal(mean: float, std: float) -> Law:
    return Law(lambda x: 0.5 * (1 + torch.erf((x - mean) / (std * math.sqrt(2)))))


def _integers(low: int, high: int) -> Law:
    """Evenly from ``low`` up to ``high``, which is left out."""
    return Law(lambda x: ((x.floor() - low + 1) / (high - low)).clamp(0, 1), True, low, high - 1)


def _two(probability: float) -> Law:
    """1 with this probability, else 0."""
    share = torch.tensor([0.0, 1 - probability, 1.0]).double()  # below 0, below 1, above
    return Law(lambda x: share[x.floor().clamp(-1, 1).long() + 1], True, 0, 1)


def _shares(*weights: float) -> Law:
    """0, 1, 2 … with these weights."""
    table = torch.tensor([0.0, *weights]).double().cumsum(0) / sum(weights)
    top = len(weights) - 1
    return Law(lambda x: table[x.floor().clamp(-1, top).long() + 1], True, 0, top)


def _poisson(rate: float) -> Law:
    """The regularised incomplete gamma function (DLMF 8.4.10)."""
    return Law(
        lambda x: torch.where(
            x < 0,
            0.0,
            torch.special.gammaincc(x.floor().clamp(min=0) + 1, torch.tensor(rate).double()),
        ),
        True,
        0,
    )


_TENTHS = [math.comb(10, k) * 0.3**k * 0.7 ** (10 - k) for k in range(11)]


#: Fills in place, and their parameters.
FILLS: dict[str, tuple[float, ...]] = {
    "uniform_": (2.25, 5.5),
    "normal_": (1, 2.5),
    "exponential_": (2.5,),
    "log_normal_": (0.5, 0.75),
    "cauchy_": (0.75, 1.5),
    "geometric_": (0.3,),
    "bernoulli_": (0.3,),
    "random_": (3, 9),
}


#: By name, a way to draw and what is documented of it.
KNOWN: dict[str, tuple[Draw, Law]] = {
    "rand": (lambda n, d, **g: torch.rand(n, device=d, **g), _uniform(0, 1)),
    "randn": (lambda n, d, **g: torch.randn(n, device=d, **g), _normal(0, 1)),
    "randint": (lambda n, d, **g: torch.randint(-3, 9, (n,), device=d, **g), _integers(-3, 9)),
    "uniform_": (_filled("uniform_", *FILLS["uniform_"]), _uniform(*FILLS["uniform_"])),
    "normal_": (_filled("normal_", *FILLS["normal_"]), _normal(*FILLS["normal_"])),
    "normal_narrow": (_filled("normal_", -2, 0.25), _normal(-2, 0.25)),
    "normal": (
        lambda n, d, **g: torch.normal(_full(n, 1, d), _full(n, 2.5, d), **g),
        _normal(1, 2.5),
    ),
    "exponential_": (
        _filled("exponential_", *FILLS["exponential_"]),
        Law(lambda x: 1 - torch.exp(-2.5 * x.clamp(min=0)), low=0),
    ),
    "log_normal_": (
        _filled("log_normal_", *FILLS["log_normal_"]),
        Law(lambda x: _normal(0.5, 0.75).cdf(x.clamp(min=1e-300).log()), low=0),
    ),
    "cauchy_": (
        _filled("cauchy_", *FILLS["cauchy_"]),
        Law(lambda x: 0.5 + torch.atan((x - 0.75) / 1.5) / math.pi),
    ),
    "geometric_": (
        _filled("geometric_", *FILLS["geometric_"]),
        Law(lambda x: 1 - torch.pow(0.7, x.floor().clamp(min=0)), True, 1),
    ),
    "bernoulli_": (_filled("bernoulli_", *FILLS["bernoulli_"]), _two(0.3)),
    "bernoulli": (lambda n, d, **g: torch.bernoulli(_full(n, 0.3, d), **g), _two(0.3)),
    "random_": (_filled("random_", *FILLS["random_"], dtype=torch.int64), _integers(3, 9)),
    "multinomial": (
        lambda n, d, **g: torch.multinomial(_full(7, 1, d), n, True, **g),
        _integers(0, 7),
    ),
    "multinomial_weighted": (
        lambda n, d, **g: torch.multinomial(
            torch.tensor([3.0, 1.0, 0.0, 4.0, 2.0]).to(d), n, True, **g
        ),
        _shares(3, 1, 0, 4, 2),
    ),
    "poisson": (lambda n, d, **g: torch.poisson(_full(n, 4, d), **g), _poisson(4)),
    "binomial": (
        lambda n, d, **g: torch.binomial(_full(n, 10, d), _full(n, 0.3, d), **g),
        _shares(*_TENTHS),
    ),
    "randperm": (  # every number once: exactly even
        lambda n, d, **g: torch.randperm(n, device=d, **g) * 10 // n,
        _integers(0, 10),
    ),
}

# -- random.distribution: samples are distributed as documented, and stay inside their view
# The test is Kolmogorov's distance with the bound of Dvoretzky, Kiefer, Wolfowitz and Massart, which holds for every
# distribution and every number of samples: a right device exceeds it with a probability of at most ``FALSE_ALARM`` a
# case, and never twice differently, since the seed is fixed.

SAMPLES = 20_000
FALSE_ALARM = 1e-9


def bound(count: int) -> float:
    """The distance that so many samples are allowed."""
    return math.sqrt(math.log(2 / FALSE_ALARM) / (2 * count))


BOUND = bound(SAMPLES)


def distance(law: Law, values: torch.Tensor) -> float:
    """The greatest distance between the share of samples up to any number and the documented one.

    Of 16-bit numbers it is the distance from the shares up to the numbers beside it: a law of real numbers says
    nothing of how these are rounded.
    """
    numbers, counts = torch.unique(values.double(), return_counts=True)
    shares = counts.double() / values.numel()
    up_to = shares.cumsum(0)
    step = torch.zeros_like(numbers)
    if values.is_floating_point() and values.itemsize < 4 and not law.whole:
        step = numbers.abs().clamp(max=1e6) * torch.finfo(values.dtype).eps
    low, high = law.cdf(numbers - step), law.cdf(numbers + step)
    before = law.cdf(numbers - 1) if law.whole else low
    until = before if law.whole else high
    below = up_to - shares
    off = torch.stack([up_to - high, low - up_to, below - until, before - below])
    return max(float(off.max()), 0.0)


@cases("random.distribution", over={name: (name,) for name in KNOWN})
def as_documented(context: Context, name: str) -> None:
    """Samples are distributed as the function documents, by its parameters."""
    torch.manual_seed(20_240)
    values = context.from_device(KNOWN[name][0](SAMPLES, context.device)).clone()
    context.same(values.numel(), SAMPLES, "as many numbers as requested")
    judge(context, name, KNOWN[name][1], values)


def judge(context: Context, text: str, law: Law, values: torch.Tensor) -> None:
    """Whether these are samples of a law."""
    count = values.numel()
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
    elif values.dtype == torch.float32:  # of 24 bits, 13 are zero by a chance of 2^-13
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


#: More than 2^16 elements in rows; five dimensions; a square that fills no tiles, and one that does.
_SHAPES = ((4099, 17), (3, 5, 7, 11, 13), (131, 131), (64, 64))
#: How far from its source a block may be copied to.
_LAGS = (1, 2, 4, 8, 16, 32, 64, 128)


#: Ways to draw for each element of a tensor, and the law of :data:`KNOWN` that they share.
SHAPED: dict[str, tuple[Callable[[torch.Tensor], torch.Tensor], str]] = {
    "rand_like": (torch.rand_like, "rand"),
    "randn_like": (torch.randn_like, "randn"),
    "randint_like": (lambda t: torch.randint_like(t, -3, 9), "randint"),
    "normal": (lambda t: torch.normal(torch.full_like(t, 1), torch.full_like(t, 2.5)), "normal"),
    "normal_of_means": (lambda t: torch.normal(torch.full_like(t, 1), 2.5), "normal"),
    "normal_of_deviations": (lambda t: torch.normal(1.0, torch.full_like(t, 2.5)), "normal"),
    "bernoulli": (lambda t: torch.bernoulli(torch.full_like(t, 0.3)), "bernoulli"),
    "poisson": (lambda t: torch.poisson(torch.full_like(t, 4)), "poisson"),
    "binomial": (
        lambda t: torch.binomial(torch.full_like(t, 10), torch.full_like(t, 0.3)),
        "binomial",
    ),
    **{name: (methodcaller(name, *given), name) for name, given in FILLS.items()},
}


@cases("random.distribution", over={f"shaped_{name}": (name,) for name in SHAPED})
def shaped(context: Context, name: str) -> None:
    """For a large tensor, a square, one of five dimensions, transposed ones and ones that begin after another element
    samples are drawn, and then others."""
    draw, law = SHAPED[name]
    for shape in _SHAPES:
        count = math.prod(shape)
        for how in ("as it is", "transposed", "after an element"):
            start = how == "after an element"
            base = torch.full((count + start,), -7.0, device=context.device)[start:].view(shape)
            given = base.mT if how == "transposed" else base
            torch.manual_seed(20_246)
            drawn = [context.from_device(draw(given)).clone().reshape(-1) for _ in range(2)]
            context.same(len(drawn[0]), given.numel(), "as many numbers as elements")
            judge(context, law, KNOWN[law][1], drawn[0])
            if not KNOWN[law][1].whole:  # chances of 2^-32 and of 2^-30, of fractions of 22 bits
                one, two, three = drawn[0][:-2], drawn[0][1:-1], drawn[0][2:]
                same = int(((one == two) & (two == three)).sum())
                context.same(same, 0, f"of {tuple(given.shape)} no three neighbours are the same")
                same = max(int((drawn[0][lag:] == drawn[0][:-lag]).sum()) for lag in _LAGS)
                text = f"of {tuple(given.shape)} no block is a copy of one before"
                context.check(same < 4, text, found=same)
            stayed = int((drawn[0] == drawn[1]).sum())
            few = count - 1 if KNOWN[law][1].whole else 3
            text = f"the next samples of shape {tuple(given.shape)} are others"
            context.check(stayed <= few, text, found=stayed)


#: Small tensors that are drawn many times: a tail that fills no vector, and more than 300 rows of a few.
_SMALL, _TIMES = ((19,), (301, 2)), 400
#: They begin at the start of a storage, and after one, two and three other elements.
_STARTS = 4

#: The same of functions that are given a shape.
_MADE: dict[str, tuple[Callable[[torch.Tensor], torch.Tensor], str]] = {
    "rand": (lambda t: torch.rand(t.shape, device=t.device), "rand"),
    "randn": (lambda t: torch.randn(t.shape, device=t.device), "randn"),
    "randint": (lambda t: torch.randint(-3, 9, t.shape, device=t.device), "randint"),
}


@cases("random.distribution", over={f"ends_{name}": (name,) for name in (*_MADE, *SHAPED)})
def ends(context: Context, name: str) -> None:
    """The first and the last element of a small tensor are distributed as documented, over many draws, and no element is
    another's copy, wherever the tensor begins."""
    draw, law = {**_MADE, **SHAPED}[name]
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
            judge(context, law, KNOWN[law][1], values[:, place].contiguous())
        # Of 0 and 1, where they are least even here, six in ten pairs are the same; eight deviations are a fifth.
        same = (values[:, 1:] == values[:, :-1]).double().mean(0)
        text = f"in four of five draws at most, an element of {shape} is the one before"
        context.check(bool((same <= 0.8).all()), text, found=round(float(same.max()), 3))
        # Two of 602 are the same in 100 draws by a chance of less than 2^-55.
        for start, part in enumerate(values.split(_TIMES // _STARTS)):
            copied = part.shape[1] - part.t().double().unique(dim=0).shape[0]
            text = f"after {start} elements, no element of {shape} is another's copy in every draw"
            context.same(copied, 0, text)


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


#: Weights and numbers past 2^14, 30,000 and 2^16, where kernels change their ways.
_MANY = (2**14 + 1, 30_011, 2**16 + 15)


@cases("random.distribution")
def permutation(context: Context) -> None:
    """randperm gives every number once, and many numbers in no order."""
    dtypes = [d for d in ("int64", "int32") if d in context.descriptor.dtypes]
    for count in (0, 1, 2, 1000, *_MANY):
        for dtype in (getattr(torch, each) for each in dtypes or ["int64"]):
            torch.manual_seed(count)
            drawn = torch.randperm(count, device=context.device, dtype=dtype)
            found = context.from_device(drawn).long()
            text = f"randperm({count}) of {dtype}"
            every = torch.equal(found.sort().values, torch.arange(count))
            context.check(every, f"{text} has every number once")
            if count in _MANY:
                judge(context, text, _uniform(0, 1), found[: count // 2].double() / count)
                # One of each is expected; more than 30 have a chance of 1e-32.
                stay = int((found == torch.arange(count)).sum())
                context.check(stay <= 30, f"{text}: few numbers stay in their place", found=stay)
                ascend = int((found.diff() == 1).sum())
                text = f"{text}: few numbers are followed by the next one"
                context.check(ascend <= 30, text, found=ascend)


@cases("random.distribution")
def many_weights(context: Context) -> None:
    """multinomial draws from long weights: evenly from even ones, none of weight 0, and none twice without replacement."""
    for count in _MANY:
        torch.manual_seed(20_250)
        even, last = torch.ones(count), torch.zeros(count)
        last[-3:] = 1.0
        text = f"of {count} weights"
        drawn = torch.multinomial(context.to_device(even), SAMPLES, True)
        numbers = (context.from_device(drawn).double() + 0.5) / count
        judge(context, f"multinomial {text}", _uniform(0, 1), numbers)
        for given, replaced in ((last, True), (last, False), (even, False)):
            draws = 3 if given is last else 1000
            found = torch.multinomial(context.to_device(given), draws, replaced)
            numbers = context.from_device(found)
            inside = int(numbers.min()) >= 0 and int(numbers.max()) < count
            context.check(inside, f"{text} only numbers of weights are drawn")
            missing = int((given[numbers.clamp(0, count - 1)] == 0).sum())
            context.same(missing, 0, f"{text} none of weight 0 is drawn")
            if not replaced:
                different = len(set(numbers.tolist()))
                context.same(different, draws, f"{text} none is drawn twice without replacement")


@cases("random.distribution")
def permutation_order(context: Context) -> None:
    """Every number comes first equally often, and every distance between the first two."""
    torch.manual_seed(20_243)
    rows = torch.stack(
        [context.from_device(torch.randperm(6, device=context.device)) for _ in range(600)]
    )
    first, apart = rows[:, 0], (rows[:, 1] - rows[:, 0]) % 6
    # Counts of 600 draws lie within 7 deviations of their means: beyond that are less than 1e-11.
    for what, values, kinds in (
        ("each number is first", first, range(6)),
        ("each distance", apart, range(1, 6)),
    ):
        share = 1 / len(kinds)
        bound = 7 * math.sqrt(600 * share * (1 - share))
        counts = [int((values == kind).sum()) for kind in kinds]
        even = all(abs(count - 600 * share) <= bound for count in counts)
        text = f"{what} equally often: {600 * share:.0f} times, within {bound:.0f}"
        context.check(even, text, found=counts)


#: Weights of seven categories: two are never drawn, and one has half of the weight.
_WEIGHTS, _ROWS = (0.0, 1.0, 2.0, 0.0, 4.0, 8.0, 1.0), 2000


def _rows_of_weights(context: Context) -> Iterator[tuple[str, torch.Tensor]]:
    """The weights in each row, on the device. A kernel that ignores their strides finds others in most rows."""
    weights = torch.tensor(_WEIGHTS)
    rows = weights.expand(_ROWS, len(weights))
    yield "of contiguous rows", context.to_device(rows.contiguous())
    held = torch.ones(rows.numel())
    held[: len(weights)] = weights
    yield "of an expanded row", context.to_device(held)[: len(weights)].expand(rows.shape)
    yield "of transposed rows", context.to_device(rows.t().contiguous()).t()
    between = torch.stack([rows, torch.ones_like(rows)], dim=-1)
    yield "of every second element", context.to_device(between)[..., 0]


@cases("random.distribution")
def without_replacement(context: Context) -> None:
    """multinomial without replacement draws no category twice, none of weight 0, and heavy ones first, whatever the strides
    of the weights; with replacement it draws them in the same shares."""
    bound = 7 * math.sqrt(0.25 / _ROWS)
    share_text = f"half of the weight is drawn first in half of the rows, within {bound:.3f}"
    for layout, rows in _rows_of_weights(context):
        for replaced in (False, True):
            torch.manual_seed(20_244)
            found = context.from_device(torch.multinomial(rows, 5, replaced))
            how = f"{layout}, {'with' if replaced else 'without'} replacement"
            context.same(tuple(found.shape), (_ROWS, 5), f"{how}: so many of each row")
            if replaced:
                drawn = sorted(set(found.reshape(-1).tolist()))
                context.same(
                    drawn, [1, 2, 4, 5, 6], f"{how}: every category with a weight is drawn"
                )
            else:
                want = torch.tensor([1, 2, 4, 5, 6]).expand(_ROWS, 5)
                text = f"{how}: each category with a weight is drawn once"
                context.equal(found.sort(dim=1).values, want, text)
            share = float((found[:, 0] == 5).double().mean())
            context.check(abs(share - 0.5) <= bound, f"{how}: {share_text}", found=share)
            rows_differ = len({tuple(row) for row in found.tolist()}) > 20
            context.check(rows_differ, f"{how}: rows are drawn independently")


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
