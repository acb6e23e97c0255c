"""The samples and layouts that the compiled checks of operators use."""

from __future__ import annotations

import zlib

import torch

from conformance.checks.ops.calls import Laid
from conformance.checks.ops.context import OpContext
from opinfo.samples import Sample, choose

#: The variant of a cell in which an op is tried on several samples and in several layouts. The cell without a variant has
#: one call.
WHOLE = "layouts"
STEPPED = "contiguous+step_inner+offset"
#: Layouts of the covering set, one of each sort: the compiler decides by strides, offsets and stride 0.
LAYOUTS = frozenset(
    {
        "contiguous",
        "transposed",
        "channels_last",
        STEPPED,
        "contiguous+expand_first",
    }
)
#: The most elements of a sample. What a compiler does depends on shapes, not on how much there is to compute.
_MOST = 2**16
#: Samples with more elements than this are less telling than smaller ones.
_LARGE = 2**12
#: How many samples are compiled besides the first, in cells with a variant.
_FURTHER = 2
#: The same for ops that draw random numbers: many calls of dropout draw none.
_FURTHER_DRAWN = 8
#: The families of ops that have no values, or other values each time.
DRAWN = frozenset({"values.free", "values.drawn"})


def lead_first(ctx: OpContext) -> list[Sample]:
    """Return the samples that are compiled, starting with the best one: a sample that has elements and, if possible,
    four dimensions, because layouts differ most in four dimensions. A cell without a variant uses only the first of
    these samples that the device accepts."""
    usable = [each for each in ctx.common if tried(each)]
    if not usable:
        return []
    lead = min(usable, key=_least_telling)
    count = _FURTHER_DRAWN if ctx.traits.families & DRAWN else _FURTHER
    return [lead, *choose([each for each in usable if each is not lead], count)]


def _least_telling(sample: Sample) -> tuple[bool, bool, bool, int, bool, int]:
    large, some = sample.numel > _LARGE, sample.layouts is not None  # run in some layouts only
    return not sample.numel, large, some, abs(sample.rank - 4), bool(sample.axis), sample.index


def laid_for(ctx: OpContext, sample: Sample, *, lead: bool) -> list[Laid]:
    """Return copies of a sample on the device, one in each layout in which the sample is compiled. With ``lead``,
    which marks the first sample, there is one layout of each kind; otherwise one layout in all. A cell without a
    variant uses one layout of the first sample, which is not contiguous if possible."""
    if lead and ctx.variant:
        return list(ctx.laid_out(sample, LAYOUTS))
    wanted = {"contiguous", "channels_last" if sample.rank > 3 else "transposed"}
    if sample.rank < 2:
        wanted = {"contiguous", STEPPED}
    return list(ctx.laid_out(sample, frozenset(wanted)))[-1:]


def sampled(op: str, one_in: int) -> bool:
    """Return True for about one op in ``one_in``. A hash of the op's name decides."""
    return zlib.crc32(op.encode()) % one_in == 1


def tried(sample: Sample) -> bool:
    """Return True if the compiled checks use the sample: all its tensors are strided and it is small."""
    return sample.numel <= _MOST and all(each.layout == torch.strided for each in sample.tensors)


def places_of(ctx: OpContext, sample: Sample) -> tuple[int, ...]:
    """Return the positions of the inputs whose gradients are computed: the floating-point and complex tensors that the
    call does not write to. If the CPU cannot differentiate the call with respect to all of them, only the first is
    returned. If torch's op database declares no gradient for the op and dtype, the result is empty."""
    key = ("differentiated", sample.index)
    if key not in ctx.kept:
        ctx.kept[key] = _places(ctx, sample) if ctx.dtype in ctx.subject.gradient_dtypes else ()
    found: tuple[int, ...] = ctx.kept[key]
    return found


def _places(ctx: OpContext, sample: Sample) -> tuple[int, ...]:
    written = ctx.mutable_inputs(sample)
    places = tuple(
        place
        for place, each in enumerate(sample.tensors)
        if (each.is_floating_point() or each.is_complex()) and place not in written
    )
    tensors = [each.clone().requires_grad_(n in places) for n, each in enumerate(sample.tensors)]
    args, kwargs = sample.call.bind(tensors)
    try:
        with torch.enable_grad():
            ctx.subject.reference(*args, **kwargs)
    except Exception:  # no gradient with respect to one of the inputs, such as a target
        return places[:1]
    return places
