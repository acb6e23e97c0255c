"""Cases about dtypes and layouts: the distribution of samples does not depend on the dtype, the layout or the
previous contents of the tensor that is filled."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from functools import partial

import torch

from conformance.checks.cases.cases import Cases
from conformance.checks.cases.context import CaseContext
from conformance.suites.random.distributions import SAMPLES, Law, judge, judge_each
from conformance.suites.random.samplers import KNOWN, WAYS
from devices.failure import Kind

cases = Cases(Kind.VALUES)

_FLOATS = ("float32", "float64", "float16", "bfloat16")
_COMPLEX = ("complex64",)
_INTEGERS = ("int64", "int32", "int16", "int8", "uint8")

Draw = Callable[[torch.Tensor], torch.Tensor]

#: The dtypes that each function accepts on the CPU.
DTYPES: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(WAYS, _FLOATS),
    **dict.fromkeys(
        ("rand", "rand_like", "randn", "randn_like", "normal_of_means", "uniform_", "normal_"),
        _FLOATS + _COMPLEX,
    ),
    # Without uint8, because the samples begin at -3.
    **dict.fromkeys(("randint", "randint_like"), _FLOATS + _INTEGERS[:-1]),
    "binomial": _FLOATS[:2],
    "geometric_": _FLOATS + _INTEGERS,
    "bernoulli_": (*_FLOATS, *_INTEGERS, "bool"),
    "random_": _FLOATS + _INTEGERS,
}


def _of_parts(mean: float, std: float) -> Law:
    """Returns the distribution of the real part, or of the imaginary part, of complex normal samples. Each part
    has half of the variance."""
    return Law(lambda x: 0.5 * (1 + torch.erf((x - mean) / std)))


#: The distributions of the real and of the imaginary part, for functions whose parts are not distributed like
#: real samples.
_OF_COMPLEX = {
    "randn": (_of_parts(0, 1), _of_parts(0, 1)),
    "randn_like": (_of_parts(0, 1), _of_parts(0, 1)),
    "normal_of_means": (_of_parts(1, 2.5), _of_parts(0, 2.5)),  # the means are real
    # Both parts have the mean, see aten/src/ATen/native/DistributionTemplates.h.
    "normal_": (_of_parts(1, 2.5), _of_parts(1, 2.5)),
}

#: The number of draws for each form. Results of 0 and 1, with the least even shares used here, are the same
#: in all of them with a probability of 0.7^96.
_TIMES = 96
#: The number of elements of the base that each form is cut from.
_ROOM = 1000

#: Layouts of the tensor that is filled. None fills whole vectors; the numbers of elements and of dimensions
#: differ.
FORMS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "contiguous": lambda held: held[:399].view(21, 19),
    "at storage offset 1": lambda held: held[1:404].view(13, 1, 31),
    "every second element": lambda held: held[:630].view(7, 9, 5, 2)[..., 0],
    "every third element": lambda held: held[:993:3],
    "transposed": lambda held: held[:391].view(23, 17).mT,
    "columns of wider rows": lambda held: held[:525].view(5, 7, 15)[..., 3:-1],
    "channels last": lambda held: held[:350].view(2, 5, 7, 5).permute(0, 3, 1, 2),
    "with permuted dimensions": lambda held: held[:378].view(2, 9, 7, 3, 1).permute(3, 0, 1, 2, 4),
    "one element": lambda held: held[7],
}
#: Layouts of a tensor that is only read.
_READ: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "expanded in the middle": lambda held: held[:133].view(19, 1, 7).expand(19, 3, 7),
}
#: Lazily conjugated or negated views of a complex tensor.
_LAZY: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "lazily conjugated": lambda held: held[:397].conj(),
    "lazily negated": lambda held: held[:397].conj().imag,
}


def _contents(dtype: torch.dtype) -> list[list[float]]:
    """Returns lists of values with which a tensor is filled before samples are drawn into it. Each list is
    repeated to fill the tensor."""
    special: list[float]
    if dtype.is_floating_point or dtype.is_complex:
        least = torch.finfo(dtype).tiny / 2
        ascending = [each / 8 for each in range(_ROOM)]
        special = [math.nan, math.inf, -math.inf, -0.0, 0.5, -1.5, least, 300.0, 2.0**30]
        return [[-7.0], [0.0], [1.0], [math.nan], [-math.inf], [300.0], special, ascending]
    if dtype == torch.bool:
        return [[0], [1], [1, 0, 0]]
    about = torch.iinfo(dtype)
    special = [0, 1, -3 if about.min else 3, about.max, about.min]
    return [[1], [0], [113], [about.min + 3], special, [each // 8 for each in range(_ROOM)]]


def _dtypes(context: CaseContext, name: str) -> Iterator[tuple[int, torch.dtype]]:
    """Yields a tuple (index, dtype) for each dtype that the named function accepts and the device declares. The index
    counts these dtypes from 0."""
    declared = [each for each in DTYPES[name] if each in context.descriptor.dtypes]
    return ((number, getattr(torch, each)) for number, each in enumerate(declared))


def _forms(context: CaseContext, name: str, dtype: torch.dtype) -> Iterator[str]:
    """Yields the names of the layouts to use with a function and a dtype. Layouts with overlapping elements are
    left out for functions that fill a tensor in place."""
    yield from FORMS
    if not name.endswith("_"):
        yield from _READ
    if dtype == torch.complex64:
        yield "lazily conjugated"
    if dtype == torch.float32 and "complex64" in context.descriptor.dtypes:
        yield "lazily negated"


def _draws(
    context: CaseContext, name: str, number: int, dtype: torch.dtype
) -> Iterator[tuple[str, Callable[[], torch.Tensor]]]:
    """Yields, for each layout, a description and a function that draws a tensor of that layout. The previous
    contents of the tensor vary with the layout and the dtype."""
    draw, contents = WAYS[name][0], _contents(dtype)
    wide = torch.float64 if dtype.is_floating_point or dtype.is_complex else torch.int64
    for turn, form in enumerate(_forms(context, name, dtype)):
        held = torch.tensor(contents[(turn + number) % len(contents)], dtype=wide).to(dtype)
        base = held.repeat(math.ceil(_ROOM / len(held)))[:_ROOM]
        if form == "lazily negated":
            base = base.to(torch.complex64)
        there = context.to_device(base)
        laid = {**FORMS, **_READ, **_LAZY}[form]
        # A tensor that is filled in place keeps the last samples, so each draw copies it.
        again = partial(_drawn, draw, there, laid, name.endswith("_"))
        yield f"{name} of {dtype}, shape {tuple(laid(there).shape)}, layout {form!r}", again


def _drawn(
    draw: Draw,
    there: torch.Tensor,
    laid: Callable[[torch.Tensor], torch.Tensor],
    in_place: bool,
) -> torch.Tensor:
    return draw(laid(there.clone() if in_place else there))


@cases("random.distribution", over={f"forms_{name}": (name,) for name in WAYS})
def of_each_form(context: CaseContext, name: str) -> None:
    """Samples are drawn many times in each dtype and layout, with different previous contents of the tensor.
    Each element is distributed as documented over the draws, and no element is a copy of another element."""
    draw, known = WAYS[name]
    torch.manual_seed(20_251)
    for number, dtype in _dtypes(context, name):
        law = KNOWN[known][1]
        laws = _OF_COMPLEX.get(name, (law, law)) if dtype.is_complex else (law,)
        made = draw(torch.full((SAMPLES,), 1, device=context.device).to(dtype))
        many = _parts(context.from_device(made))
        for (part, samples), law in zip(many.items(), laws):
            judge(context, f"{part}{name} of {dtype}", law, samples)
        for text, again in _draws(context, name, number, dtype):
            drawn = torch.stack([again().reshape(-1).clone() for _ in range(_TIMES)])
            parts = _parts(context.from_device(drawn))
            for (part, samples), law in zip(parts.items(), laws):
                judge_each(context, f"{part}{text}", law, samples, many[part])


def _parts(values: torch.Tensor) -> dict[str, torch.Tensor]:
    """Returns the samples by the name of their part: complex samples are split into a real and an imaginary
    part."""
    if not values.is_complex():
        return {"": values}
    return {"real part of ": values.real, "imaginary part of ": values.imag}


#: Tensors with more elements than this must differ between two draws. Results of 0 and 1 are the same in all
#: of 100 elements with a probability of 0.58^100.
_FEW = 100


@cases("random.reproducible", over={f"forms_{name}": (name,) for name in WAYS})
def one_seed(context: CaseContext, name: str) -> None:
    """In each dtype and layout, and with different previous contents of the tensor, the same seed gives the
    same values."""
    for number, dtype in _dtypes(context, name):
        for text, again in _draws(context, name, number, dtype):
            drawn = []
            for _ in range(2):
                torch.manual_seed(57)
                drawn.append(context.from_device(again()).clone())
            context.equal(drawn[1], drawn[0], f"{text}: the same seed gave different values")
            if drawn[0].numel() > _FEW:
                differ = not torch.equal(context.from_device(again()), drawn[0])
                context.check(differ, f"{text}: a second draw gave the same values")
