"""What is drawn does not depend on the dtype of the tensor that is filled, on where that lies, nor on what it held."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from functools import partial

import torch

from conformance.checks.cases.cases import Cases
from conformance.checks.cases.context import Context
from conformance.suites.random.distribution import KNOWN, SAMPLES, SHAPED, Law, judge
from devices.failure import Kind

cases = Cases(Kind.VALUES)

_FLOATS = ("float32", "float64", "float16", "bfloat16")
_COMPLEX = ("complex64",)
_INTEGERS = ("int64", "int32", "int16", "int8", "uint8")

Draw = Callable[[torch.Tensor], torch.Tensor]

#: Ways to draw for each element of a tensor, those that are given its shape and dtype among them, and their laws.
WAYS: dict[str, tuple[Draw, str]] = {
    **SHAPED,
    "rand": (lambda t: torch.rand(t.shape, dtype=t.dtype, device=t.device), "rand"),
    "randn": (lambda t: torch.randn(t.shape, dtype=t.dtype, device=t.device), "randn"),
    "randint": (
        lambda t: torch.randint(-3, 9, t.shape, dtype=t.dtype, device=t.device),
        "randint",
    ),
}

#: The dtypes that each takes on the CPU.
DTYPES: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(WAYS, _FLOATS),
    **dict.fromkeys(
        ("rand", "rand_like", "randn", "randn_like", "normal_of_means", "uniform_", "normal_"),
        _FLOATS + _COMPLEX,
    ),
    **dict.fromkeys(("randint", "randint_like"), _FLOATS + _INTEGERS[:-1]),  # from -3 on
    "binomial": _FLOATS[:2],
    "geometric_": _FLOATS + _INTEGERS,
    "bernoulli_": (*_FLOATS, *_INTEGERS, "bool"),
    "random_": _FLOATS + _INTEGERS,
}


def _of_parts(mean: float, std: float) -> Law:
    """Of the real and of the imaginary part: each has half of the variance."""
    return Law(lambda x: 0.5 * (1 + torch.erf((x - mean) / std)))


#: The law of the real part, where it is not that of real numbers.
_OF_COMPLEX = {
    "randn": _of_parts(0, 1),
    "randn_like": _of_parts(0, 1),
    "normal_of_means": _of_parts(1, 2.5),
    "normal_": _of_parts(1, 2.5),
}

#: Draws of one form: 0 and 1, where they are least even here, are the same in all by a chance of 0.7^96.
_TIMES = 96
#: What a tensor holds before: in a form each dtype has another one of these.
_HELD = (-7.0, 0.0, 1.0, math.nan, -math.inf, 300.0)


#: Elements of the tensor of which each form is a part.
_ROOM = 1000

#: Where a tensor lies. None fills whole vectors; numbers of elements and of dimensions differ.
FORMS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "as it is": lambda held: held[:399].view(21, 19),
    "after an element": lambda held: held[1:404],
    "every second element": lambda held: held[:630].view(7, 9, 5, 2)[..., 0],
    "every third element": lambda held: held[:993:3],
    "transposed": lambda held: held[:391].view(23, 17).mT,
    "columns of wider rows": lambda held: held[:525].view(5, 7, 15)[..., 3:-1],
}


def _dtypes(context: Context, name: str) -> Iterator[tuple[int, torch.dtype]]:
    """What the way to draw takes and the device declares, each with its number."""
    declared = [each for each in DTYPES[name] if each in context.descriptor.dtypes]
    return ((number, getattr(torch, each)) for number, each in enumerate(declared))


def _draws(
    context: Context, name: str, number: int, dtype: torch.dtype
) -> Iterator[tuple[str, Callable[[], torch.Tensor]]]:
    """What draws a tensor of each form, and its text. What the tensor holds before turns with the dtype."""
    draw, in_place = WAYS[name][0], name.endswith("_")
    for turn, (lies, form) in enumerate(FORMS.items()):
        value = _HELD[(turn + number) % len(_HELD)]
        if not (dtype.is_floating_point or dtype.is_complex):
            value = value % (2 if dtype == torch.bool else 120) if math.isfinite(value) else 1.0
        made = partial(_made, context, form, value, dtype)
        given = made()
        # What is filled is made anew for each draw: it holds what was drawn last.
        again = partial(_filled, draw, made) if in_place else partial(draw, given)
        yield f"{name} of {dtype}, {tuple(given.shape)} {lies}", again


def _made(
    context: Context, form: Callable[[torch.Tensor], torch.Tensor], value: float, dtype: torch.dtype
) -> torch.Tensor:
    return form(torch.full((_ROOM,), value, dtype=dtype, device=context.device))


def _filled(fill: Draw, made: Callable[[], torch.Tensor]) -> torch.Tensor:
    return fill(made())


def _real(drawn: torch.Tensor) -> torch.Tensor:
    return drawn.real if drawn.is_complex() else drawn


@cases("random.distribution", over={f"forms_{name}": (name,) for name in WAYS})
def of_each_form(context: Context, name: str) -> None:
    """In each dtype, the first and the last element of a tensor are distributed as documented, each element varies, and
    none is another's copy, wherever the tensor lies and whatever it held."""
    draw, known = WAYS[name]
    torch.manual_seed(20_251)
    for number, dtype in _dtypes(context, name):
        law = KNOWN[known][1]
        if dtype.is_complex:
            law = _OF_COMPLEX.get(name, law)
        many = draw(torch.full((SAMPLES,), 1, device=context.device).to(dtype))
        judge(context, f"{name} of {dtype}", law, _real(context.from_device(many)))
        ends = []
        for text, again in _draws(context, name, number, dtype):
            drawn = torch.stack([again().reshape(-1).clone() for _ in range(_TIMES)])
            values = context.from_device(drawn)
            stuck = int((values == values[:1]).all(0).sum())
            context.same(stuck, 0, f"{text}: no element is the same in each of {_TIMES} draws")
            as_bytes = values.t().contiguous().view(torch.uint8)
            copied = values.shape[1] - as_bytes.unique(dim=0).shape[0]
            context.same(copied, 0, f"{text}: no element is another's copy in every draw")
            ends.append(_real(values)[:, [0, -1]])
            for place in (0, -1):
                judge(context, text, law, _real(values)[:, place].contiguous())
        for place in (0, -1):
            judge(context, f"{name} of {dtype}", law, torch.cat(ends)[:, place].contiguous())


@cases("random.reproducible", over={f"forms_{name}": (name,) for name in WAYS})
def one_seed(context: Context, name: str) -> None:
    """In each dtype, a seed gives the same values again, wherever the tensor lies and whatever it held."""
    for number, dtype in _dtypes(context, name):
        for text, again in _draws(context, name, number, dtype):
            drawn = []
            for _ in range(2):
                torch.manual_seed(57)
                drawn.append(context.from_device(again()).clone())
            context.equal(drawn[1], drawn[0], f"{text}: one seed, the same values")
            differ = not torch.equal(context.from_device(again()), drawn[0])
            context.check(differ, f"{text}: drawn again, other values")
