"""The samples and layouts that the compiled checks of operators use."""

from __future__ import annotations

import torch

from conformance.checks.ops.calls import Laid
from conformance.checks.ops.context import OpContext
from opinfo.samples import Sample

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


def lead_first(ctx: OpContext) -> list[Sample]:
    """Return the samples that are compiled. The first is the one with the most dimensions, which every plan has."""
    samples = [each for each in ctx.common if tried(each)]
    return sorted(samples, key=lambda each: (-each.rank, not each.numel, each.index))


def laid_for(ctx: OpContext, sample: Sample, *, lead: bool) -> list[Laid]:
    """Return a sample on the device in the layouts in which it is compiled: the first sample in one of each sort, the
    others in one. A plan without more cases takes one layout of the first sample, which is not contiguous if possible."""
    if lead and ctx.more:
        return list(ctx.laid_out(sample, LAYOUTS))
    wanted = {"contiguous", "channels_last" if sample.rank > 3 else "transposed"}
    if sample.rank < 2:
        wanted = {"contiguous", STEPPED}
    return list(ctx.laid_out(sample, frozenset(wanted)))[-1:]


def tried(sample: Sample) -> bool:
    """Return True if the compiled checks use the sample: all its tensors are strided, and it is small."""
    return sample.numel <= _MOST and all(each.layout == torch.strided for each in sample.tensors)


def places_of(ctx: OpContext, sample: Sample) -> tuple[int, ...]:
    """Return the inputs whose gradients are computed: the floating-point and complex tensors that the call does not
    write to, if torch's database declares a gradient for the op and dtype."""
    if ctx.dtype not in ctx.subject.gradient_dtypes:
        return ()
    written = ctx.mutable_inputs(sample)
    return tuple(
        place
        for place, each in enumerate(sample.tensors)
        if (each.is_floating_point() or each.is_complex()) and place not in written
    )
