"""Checks of the clause autograd.saved_strides: the gradients of each op, while saved-tensor hooks give backward the saved
tensors with other strides.

Otherwise backward gets the saved tensors as the device's own forward made them, which is nearly always contiguous. Hooks
that store tensors elsewhere (``save_on_cpu``) and compilers, which choose the memory format of what they save, change
the strides."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from conformance.checks.ops.calls import Judge
from conformance.checks.ops.context import OpContext
from conformance.suites.autograd import first_order
from conformance.suites.autograd.first_order import PLAIN, lays_of, of_inputs
from conformance.suites.autograd.gradient_judge import judge_gradients, judge_gradients_of_kernels
from conformance.suites.autograd.gradients import Gradients, differentiated_with_saved
from conformance.suites.autograd.samples import few_of_torch, known_of, usable_of_torch
from opinfo.samples import Sample, Traits

SAVED = "autograd.saved_strides"
#: The layouts of saved tensors that are tried (see ``restrided``).
MEMORY = ("contiguous+step_inner+offset", "reversed", "channels_last")
#: The number of samples of an op.
_SAMPLES = 6
_NOTHING_SAVED = (
    "backward needs no saved tensor that could have other strides, or its gradients are zero"
)
#: The family of ops whose shared formula reads the strides of a saved tensor: gradients that eager CPU computes too pass.
_BY_FORMULA = "gradients.of_saved_strides"


def applies(t: Traits) -> bool:
    """Return True if the op and dtype have a gradient, except for ops that address the storage of their input, such as
    as_strided: strides are their arguments."""
    return first_order.applies(t) and "gradients.of_storage" not in t.families


def saved_strides(ctx: OpContext) -> None:
    """Check the gradients of a few samples in contiguous layout, with the saved tensors in each of the layouts ``MEMORY``.
    If no saved tensor can have such a layout, or if all gradients of a sample are zero, the gradients are not judged:
    ``autograd.first`` judges them."""
    procedure: Callable[..., Gradients] = differentiated_with_saved
    shared = _BY_FORMULA in ctx.traits.families
    judges: dict[str, Judge] = {SAVED: judge_gradients if shared else judge_gradients_of_kernels}
    with ctx.running(SAVED) as record:
        for sample in _samples(ctx):
            known, laid = known_of(ctx, sample), lays_of(ctx, sample, {PLAIN}).get(PLAIN)
            if laid is None or not (
                known.places and known.strided and known.returns(laid.geometries)
            ):
                continue
            if not known.shown[0]:  # zeros are right whatever backward reads
                continue
            cotangents = known.cotangents(PLAIN, laid.geometries)
            for memory in MEMORY:
                if ctx.mutable_inputs(sample):
                    ctx.rebuild(sample)
                    laid = ctx.lay(laid.sample, laid.case, laid.geometries)
                given: tuple[Any, ...] = (known.places, cotangents, memory)
                reference = of_inputs(ctx, known, laid, procedure, given)
                name = f"saved={memory}"
                ctx.judge(judges, procedure, given, reference, layout=name, check="gradient")
            ctx.rebuild(sample)
        record.pass_over_unless_checked(_NOTHING_SAVED)


def _samples(ctx: OpContext) -> list[Sample]:
    """Return a few of torch's samples whose tensors have several elements. The first is the most telling one, each of the
    others the one that differs most from those before it, in its tensors or else in its other arguments: a loss without weights
    saves fewer tensors, and batch norm saves other statistics in eval mode."""
    first = [each.index for each in few_of_torch(ctx, 2)[:1]]
    usable = [s for s in usable_of_torch(ctx) if any(t.numel() > 1 for t in s.tensors)]
    rest = sorted(usable, key=lambda each: each.index not in first)
    found: list[Sample] = []
    seen: set[object] = set()
    while rest and len(found) < _SAMPLES:
        best = max(rest, key=lambda s: (len(_tensors(s) - seen), s.call.form not in seen))
        found.append(best)
        rest.remove(best)
        seen |= {*_tensors(best), best.call.form}
    return found


def _tensors(sample: Sample) -> set[object]:
    """Return the number of the tensors, their dtypes and their ranks."""
    dtypes, ranks = zip(*((each.dtype, each.dim()) for each in sample.tensors))
    return {len(sample.tensors), dtypes, ranks}
