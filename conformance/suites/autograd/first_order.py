"""Checks of the clause autograd.first: the first gradients of each op, for many layouts of the inputs and of the
cotangents."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import combinations
from typing import Any, NamedTuple

import torch

from conformance.checks.ops.call_reference import Reference
from conformance.checks.ops.calls import Judge, Laid
from conformance.checks.ops.context import OpContext
from conformance.suites.autograd.gradient_judge import judge_gradients
from conformance.suites.autograd.gradients import Gradients, differentiated, differentiated_in_place
from conformance.suites.autograd.samples import (
    CONJ,
    INPUTS,
    SUM,
    Known,
    chosen,
    known_of,
    of_a_mode,
)
from opinfo.axes.bounds import BOUNDS
from opinfo.axes.points import POINTS
from opinfo.axes.shapes import EXTENT, LONG, SIZE, has_pixels
from opinfo.layouts import RECORDED, covering_set, parse_layout
from opinfo.samples import Sample, Traits

FIRST = "autograd.first"
DTYPES = frozenset({"float32", "complex64"})

#: Number of samples that are tried in every layout; other samples are tried in a few.
_WHOLE = 1
PLAIN = "contiguous"
_STEPPED = "contiguous+step_inner+offset"
_IN_PLACE = (PLAIN, "transposed")
#: With up to this number of inputs, the gradients of each subset of the inputs are computed; with more, of each input alone.
_SUBSETS = 3
_LARGE = 2.0**10


class Few(NamedTuple):
    """The gradient computations for every sample except the first: the layouts of the inputs and of the cotangents.
    If ``alone`` is true, the gradient of each single input is computed too."""

    inputs: tuple[str, ...]
    cotangents: tuple[str, ...] = ()
    alone: bool = False


#: Samples take these in turn, so that calls with different arguments also have different layouts. One layout is not
#: enough: `stft`, for example, copies its input in some of them.
_IN_TURN = (
    Few((PLAIN, "contiguous+expand_first"), (SUM, "transposed"), alone=True),
    Few((PLAIN, _STEPPED), ("transposed", _STEPPED), alone=True),
    Few((PLAIN, "transposed"), (SUM, _STEPPED), alone=True),
    Few((PLAIN, "channels_last"), (SUM, "transposed"), alone=True),
)
#: For images of one pixel; for samples that an axis added because of their size or values.
_PIXELS = Few((PLAIN, "channels_last"), ("channels_last",), alone=True)
#: For samples that differ from others in a mode of the op.
_MODE = Few((PLAIN,))
_FEW_OF = {
    LONG.name: Few((PLAIN,)),
    EXTENT.name: Few((PLAIN, "transposed"), ("transposed",)),
    SIZE.name: Few((PLAIN, "transposed"), ("transposed",)),
    BOUNDS.name: Few((PLAIN, "transposed")),
    POINTS.name: Few((PLAIN, "transposed")),
}


def applies(t: Traits) -> bool:
    """Return True if torch's op database declares a gradient for the op and dtype, and the gradient is unique."""
    return (
        t.gradient_is_unique
        and t.dense
        and t.dtype in DTYPES
        and t.dtype in t.subject.gradient_dtypes
    )


@dataclass(frozen=True, slots=True)
class Ask:
    """One gradient computation: the gradients of the inputs at ``places``, for inputs in the layout ``case`` and
    cotangents in the layout ``cotangent``, multiplied by ``scale``. If ``only`` is set, just the output of that index
    has a cotangent."""

    name: str
    case: str
    cotangent: str
    places: tuple[int, ...]
    only: int | None = None
    scale: float = 1.0


def check_first_order(ctx: OpContext) -> None:
    if not applies(ctx.traits):  # a decomposition: decompositions.py
        return
    with ctx.running(FIRST):
        for number, sample in enumerate(chosen(ctx)):
            known = known_of(ctx, sample)
            if known.places:
                whole = number < _WHOLE
                turn = _IN_TURN[(number - _WHOLE) % len(_IN_TURN)]
                few = None if whole else _FEW_OF.get(sample.axis, turn)
                if not whole and has_pixels(sample):
                    few = _PIXELS
                if not whole and of_a_mode(ctx, sample):
                    few = _MODE
                lays = lays_of(ctx, sample, few.inputs if few else INPUTS)
                for ask in _asks(ctx, known, lays, few):
                    _asked(ctx, known, lays[ask.case], ask)
                if whole:
                    _in_place(ctx, sample)
            ctx.rebuild(sample)


def reads_storage(ctx: OpContext) -> bool:
    """Return True if the op addresses the storage of its input, as as_strided does, so the result depends on the
    input's layout."""
    return "gradients.of_storage" in ctx.traits.families


def lays_of(ctx: OpContext, sample: Sample, layouts: Iterable[str]) -> dict[str, Laid]:
    """Return the sample on the device in each of the given layouts, by the name of the layout. For an op that
    addresses the storage of its input, only the contiguous layout is returned. A recorded call is also returned in
    its recorded layout."""
    wanted = {PLAIN} if reads_storage(ctx) else {*layouts, RECORDED.id}
    return {laid.case.id: laid for laid in ctx.laid_out(sample, frozenset(wanted))}


def _asks(ctx: OpContext, known: Known, lays: Mapping[str, Laid], few: Few | None) -> Iterator[Ask]:
    """Yield the gradient computations for a sample: those that ``few`` lists, or all if ``few`` is None. If ``few`` is
    given, a non-contiguous input is combined with a non-contiguous cotangent if possible, because the first sample
    already covers a non-contiguous input with a contiguous cotangent, and the reverse."""
    every = known.places
    strided = few.cotangents[-1] if few and few.cotangents else PLAIN
    strided = strided if ctx.device.takes(strided) else PLAIN
    for case in lays:
        yield Ask(case, case, PLAIN if case == PLAIN else strided, every)
    if reads_storage(ctx) or PLAIN not in lays:  # the plain call may have ended the process
        return
    outputs = [each for each in known.outputs(lays[PLAIN].geometries) if each.requires_grad]
    seen = {shapes(PLAIN, outputs)}
    for layout in few.cotangents if few else covering_set().cotangents:
        if layout == CONJ and not any(each.is_complex() for each in outputs):
            continue
        if layout not in (SUM, CONJ) and not ctx.device.takes(layout):
            continue
        if (found := shapes(layout, outputs)) not in seen:
            seen.add(found)
            yield Ask(f"grad={layout}", PLAIN, layout, every)
            if few is None and layout in lays:
                yield Ask(f"both={layout}", layout, layout, every)
    if few is not None:
        # One input at a time, with a non-contiguous cotangent; the first sample has tried contiguous ones.
        alone = few.alone and len(every) > 1 and ctx.device.takes(_STEPPED)
        for number, place in enumerate(every if alone else ()):
            yield Ask(f"input={min(number, 3)}", PLAIN, _STEPPED, (place,))
        return
    yield Ask("grad=large", PLAIN, PLAIN, every, scale=_LARGE)
    for place in range(len(outputs)) if len(outputs) > 1 else ():
        yield Ask(f"output={min(place, 3)}", PLAIN, PLAIN, every, only=place)
    # The names count only the inputs that have a gradient.
    numbers = range(len(every))
    subsets: list[tuple[int, ...]] = [(each,) for each in numbers]
    if len(every) <= _SUBSETS:
        subsets = [some for size in range(1, len(every)) for some in combinations(numbers, size)]
    for some in subsets:
        name = "+".join(str(min(each, 3)) for each in some)
        yield Ask(f"input={name}", PLAIN, PLAIN, tuple(every[each] for each in some))


def shapes(layout: str, outputs: Iterable[torch.Tensor]) -> tuple[Any, ...]:
    """Return a key for the cotangents that a layout gives the outputs: two layouts with equal keys give the same
    cotangents."""
    if layout in (SUM, CONJ):
        return (layout, any(each.numel() > 1 for each in outputs))
    parsed = parse_layout(layout)
    return tuple(parsed.geometry(each.shape) for each in outputs)


def _asked(ctx: OpContext, known: Known, laid: Laid, ask: Ask) -> None:
    if ctx.mutable_inputs(laid.sample):
        ctx.rebuild(laid.sample)
        laid = ctx.lay(laid.sample, laid.case, laid.geometries)
    if not known.returns(laid.geometries):
        return
    cotangents = known.cotangents(ask.cotangent, laid.geometries, ask.only, ask.scale)
    given = (ask.places, cotangents)
    reference = of_inputs(ctx, known, laid, differentiated, given)
    ctx.judge(_JUDGES, differentiated, given, reference, layout=ask.name, check="gradient")


def of_inputs(
    ctx: OpContext,
    known: Known,
    laid: Laid,
    procedure: Callable[..., Gradients],
    given: tuple[Any, ...],
) -> Reference:
    """Return the reference for a procedure that computes gradients; ``given[0]`` lists the inputs whose gradients the
    procedure returns."""
    places = given[0]
    return Reference(
        ctx,
        laid,
        **known.parts(laid, procedure, given),
        places=tuple(places),
        kinds=[laid.sample.tensors[place].dtype for place in places],
        subjects=[f"the gradient of input {place}" for place in places],
    )


def _in_place(ctx: OpContext, sample: Sample) -> None:
    """Check the gradients of the in-place variant, called on the whole first input and on a slice of a larger
    tensor."""
    if ctx.subject.inplace is None or ctx.subject.restrides_in_place:
        return
    for sliced, name in ((False, "inplace"), (True, "inplace_slice")):
        if sliced and not sample.tensors[0].dim():
            continue
        form = "in place, sliced" if sliced else "in place"
        known = Known(ctx, sample, ctx.subject.inplace, form)
        for laid in lays_of(ctx, sample, _IN_PLACE).values() if known.places else ():
            if not known.returns(laid.geometries):
                continue
            cotangents = known.cotangents(PLAIN, laid.geometries)
            given = (known.places, cotangents, sliced)
            ctx.judge(
                _JUDGES,
                differentiated_in_place,
                given,
                of_inputs(ctx, known, laid, differentiated_in_place, given),
                function=ctx.subject.inplace,
                layout=f"{name}={laid.case.id}",
                check="gradient",
            )


_JUDGES: dict[str, Judge] = {FIRST: judge_gradients}
