"""Cases about dtypes and layouts: the distribution of samples does not depend on the dtype, the layout or the
previous contents of the tensor that is filled."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from functools import partial

import torch

from conformance.checks.cases.cases import Cases
from conformance.checks.cases.context import CaseContext
from conformance.suites.random.distributions import SAMPLES, judge, judge_each
from conformance.suites.random.samplers import (
    PER_TENSOR_OR_SHAPE,
    SAMPLERS,
    Form,
    Sampler,
    asking,
    repeated,
)
from devices.failure import Kind

cases = Cases(Kind.VALUES)

View = Callable[[torch.Tensor], torch.Tensor]

#: The number of draws for each form. Results of 0 and 1, with the least even shares used here, are the same
#: in all of them with a probability of 0.7^96.
_TIMES = 96
#: The number of elements of the base that each form is cut from.
_ROOM = 1000

#: Layouts of the tensor that is filled. None fills whole vectors; the numbers of elements and of dimensions
#: differ.
FORMS: dict[str, View] = {
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
_READ: dict[str, View] = {
    "expanded in the middle": lambda held: held[:133].view(19, 1, 7).expand(19, 3, 7),
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


def _usable_layouts(context: CaseContext, sampler: Sampler, dtype: torch.dtype) -> dict[str, View]:
    """Returns the layouts to use with a function and a dtype. Layouts with overlapping elements are left out for
    functions that fill a tensor in place."""
    forms = FORMS | ({} if sampler.form is Form.FILL else _READ)
    if dtype == torch.complex64:
        forms["lazily conjugated"] = lambda held: held[:397].conj()
    if dtype == torch.float32 and "complex64" in context.descriptor.dtypes:
        forms["lazily negated"] = lambda held: held[:397].conj().imag
    return forms


def _draws(
    context: CaseContext, sampler: Sampler, number: int, dtype: torch.dtype
) -> Iterator[tuple[str, Callable[[], torch.Tensor]]]:
    """Yields, for each layout, a description and a function that draws a tensor of that layout. The previous
    contents of the tensor vary with the layout and with ``number``, the index of the dtype."""
    contents = _contents(dtype)
    wide = torch.float64 if dtype.is_floating_point or dtype.is_complex else torch.int64
    for turn, (form, view) in enumerate(_usable_layouts(context, sampler, dtype).items()):
        held = torch.tensor(contents[(turn + number) % len(contents)], dtype=wide).to(dtype)
        base = held.repeat(math.ceil(_ROOM / len(held)))[:_ROOM]
        if form == "lazily negated":
            base = base.to(torch.complex64)
        there = context.to_device(base)
        shape = tuple(view(there).shape)
        text = f"{sampler.name} of {dtype}, shape {shape}, layout {form!r}"
        yield text, partial(_drawn, sampler, there, view)


def _drawn(sampler: Sampler, there: torch.Tensor, view: View) -> torch.Tensor:
    # A tensor that is filled in place keeps the last samples, so each draw copies it.
    return sampler.like(view(there.clone() if sampler.form is Form.FILL else there))


@cases("random.distribution", over=asking(PER_TENSOR_OR_SHAPE, "forms_"))
def of_each_form(context: CaseContext, name: str) -> None:
    """Samples are drawn many times in each dtype and layout, with different previous contents of the tensor.
    Each element is distributed as documented over the draws, and no element is a copy of another element."""
    sampler = SAMPLERS[name]
    torch.manual_seed(20_251)
    for number, dtype in enumerate(sampler.dtypes_on(context.descriptor)):
        laws = sampler.laws(dtype)
        made = sampler.like(torch.full((SAMPLES,), 1, device=context.device).to(dtype))
        many = _parts(context.from_device(made))
        for (part, samples), law in zip(many.items(), laws):
            judge(context, f"{part}{name} of {dtype}", law, samples)
        for text, draw in _draws(context, sampler, number, dtype):
            drawn = torch.stack([draw().reshape(-1).clone() for _ in range(_TIMES)])
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


@cases("random.reproducible", over=asking(PER_TENSOR_OR_SHAPE, "forms_"))
def one_seed(context: CaseContext, name: str) -> None:
    """In each dtype and layout, and with different previous contents of the tensor, the same seed gives the
    same values."""
    sampler = SAMPLERS[name]
    for number, dtype in enumerate(sampler.dtypes_on(context.descriptor)):
        for text, draw in _draws(context, sampler, number, dtype):
            same = f"{text}: the same seed gave different values"
            drawn = repeated(context, same, draw, seed=57)
            if drawn.numel() > _FEW:
                differ = not torch.equal(context.from_device(draw()), drawn)
                context.check(differ, f"{text}: a second draw gave the same values")
