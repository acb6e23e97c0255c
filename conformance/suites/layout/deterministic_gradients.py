"""Checks of the clause layout.determinism for gradients: if deterministic algorithms are switched on, two equal calls
have bit-equal gradients, or both raise.

Gradients of ops that read elements through an index add several terms to one element of memory. On many devices the
order of these additions changes from call to call, unless a deterministic algorithm is used.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice

import torch

from conformance.checks.ops.call_reference import Reference
from conformance.checks.ops.calls import Found, Invocation, Judge, ReferenceParts, Unjudged, views
from conformance.checks.ops.context import OpContext
from conformance.checks.ops.evidence import Evidence, copied
from conformance.suites.layout.determinism import DETERMINISM, deterministic, judge_same_bits
from opinfo.axes.shapes import EXTENT
from opinfo.axes.values import INDICES
from opinfo.compare import tensors_of
from opinfo.memory import fresh_memory
from opinfo.samples import Sample

#: Dtypes of the gradients. The order of additions does not depend on the dtype.
_DTYPES = frozenset({"float32"})
#: The most samples of an op: one with a repeated index, one with a long dimension, and one of torch's.
_OF_AN_AXIS = (INDICES.name, EXTENT.name, "")


def deterministic_gradients(ctx: OpContext) -> None:
    """Compute the gradients of a few samples twice, with deterministic algorithms switched on."""
    traits = ctx.traits
    if (
        traits.dtype not in _DTYPES
        or traits.dtype not in ctx.subject.gradient_dtypes
        or not traits.gradient_is_unique
        or not traits.dense
    ):
        return
    with ctx.running(DETERMINISM), deterministic():
        for sample in _chosen(ctx):
            laid = ctx.laid_contiguous(sample)
            reference = Reference(ctx, laid)
            ctx.judge(_SAME_BITS, differentiated_again, (), reference, check="gradient")
            ctx.release(sample)


def _chosen(ctx: OpContext) -> list[Sample]:
    found: list[Sample] = []
    for axis in _OF_AN_AXIS:
        of_axis = (s for s in ctx.samples if s.axis == axis and _usable(ctx, s))
        if axis == INDICES.name:
            of_axis = (s for s in of_axis if _repeats_an_index(s))
        found += islice(of_axis, 1)
    return found


def _usable(ctx: OpContext, sample: Sample) -> bool:
    strided = all(each.layout == torch.strided for each in sample.tensors)
    return strided and sample.numel > 1 and not ctx.mutable_inputs(sample)


def _repeats_an_index(sample: Sample) -> bool:
    return any(
        t.dtype in (torch.int64, torch.int32) and t.numel() > t.unique().numel()
        for t in sample.tensors
    )


def differentiated_again(call: Invocation) -> list[Evidence]:
    """Make the call twice and compute the gradients of all floating-point inputs for a cotangent of ones. On the CPU,
    newly allocated memory is filled with different bytes for the two calls."""
    return [_gradients_of(call, byte) for byte in (0, 1)]


def _gradients_of(call: Invocation, byte: int) -> Evidence:
    leaves = [t.detach().requires_grad_(t.is_floating_point()) for t in views(call.inputs)]
    starts = [leaf for leaf in leaves if leaf.requires_grad]
    with deterministic(), fresh_memory(call.device, byte), torch.enable_grad():
        try:
            args, kwargs = call.arguments(leaves, call.device)
            outputs = [t for t in tensors_of(call.function(*args, **kwargs)) if t.requires_grad]
        except Exception as error:  # layout.values judges the forward call
            return Evidence(unjudged=error)
        try:
            ones = [torch.ones_like(each) for each in outputs]
            found = torch.autograd.grad(outputs, starts, ones, allow_unused=True) if outputs else ()
            read = [call.back(each.to_dense()) for each in found if each is not None]
        except Exception as error:  # autograd.first judges what backward raises
            return Evidence(raised=error)
    return Evidence(read=copied(read))


def judge_same_gradients(evidence: Sequence[Evidence], reference: ReferenceParts) -> Found:
    """Check that the gradients of two equal calls have the same bits, or that both backward passes raised."""
    if not any(tensors_of(each.read) for each in evidence) and not any(e.raised for e in evidence):
        error = next((each.unjudged for each in evidence if each.unjudged is not None), None)
        if error is not None:
            yield Unjudged(error)
        return  # no input has a gradient
    yield from judge_same_bits(evidence, reference)


_SAME_BITS: dict[str, Judge] = {DETERMINISM: judge_same_gradients}
