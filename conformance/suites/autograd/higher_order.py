"""Checks of the clauses autograd.second, autograd.forward_ad and layout.grad: second gradients, forward-mode
derivatives, gradients for a batch of cotangents, and gradients that backward accumulates into leaves."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

from conformance.checks.ops.call_reference import Reference
from conformance.checks.ops.calls import Found, Judge, Laid, ReferenceParts
from conformance.checks.ops.context import OpContext
from conformance.suites.autograd.cpu_gradients import (
    Compute,
    gradients_in_batch,
    second_gradients,
    tangents_of,
    tangents_of_gradients,
)
from conformance.suites.autograd.first_order import (
    PLAIN,
    applies,
    lays_of,
    of_inputs,
    reads_storage,
)
from conformance.suites.autograd.gradient_judge import judge_gradients
from conformance.suites.autograd.gradients import (
    Cotangents,
    Gradients,
    Held,
    accumulated,
    differentiated_twice,
    pulled_back_in_batch,
    pushed_forward,
    pushed_forward_in_place,
    pushed_through_backward,
)
from conformance.suites.autograd.samples import SUM, Known, chosen, is_long, known_of
from opinfo.axes.points import POINTS
from opinfo.compare import SUM_ROUNDINGS, Wrong, tensor_difference
from opinfo.reference import significant
from opinfo.samples import Sample, Traits

SECOND, FORWARD, GRAD = "autograd.second", "autograd.forward_ad", "layout.grad"

#: Number of samples per op and dtype; pairs of (layout of the inputs, layout of cotangents or tangents).
SAMPLES = 2
_PAIRS = (
    (PLAIN, PLAIN),
    ("transposed", PLAIN),
    (PLAIN, SUM),
    (PLAIN, "transposed"),
    ("contiguous+step_inner+offset", "contiguous+expand_first"),
)
_FEW = 1
_ACCUMULATED = (
    (PLAIN, PLAIN),
    (PLAIN, "transposed"),
    ("transposed", PLAIN),
    ("channels_last", "channels_last"),
    ("channels_last", SUM),
    ("contiguous+step_inner+offset", PLAIN),
    ("contiguous+expand_first", PLAIN),
    ("free:order=2.0.1,steps=3,offset=4", "transposed"),
)


def has_second(t: Traits) -> bool:
    return applies(t) and t.subject.has_second_gradient


def has_forward(t: Traits) -> bool:
    return applies(t) and t.subject.has_forward_gradient


def laid_out_samples(
    ctx: OpContext,
    pairs: Sequence[tuple[str, str]],
    samples: int,
    among: Sequence[Sample] | None = None,
) -> Iterator[tuple[Known, Laid, str, str]]:
    """Yield a tuple (reference gradients of a sample, inputs on the device in a layout, layout of the cotangents,
    name of the check) for each combination to check. The first sample is combined with all ``pairs`` of layouts (of
    inputs and of cotangents), each other sample only with the first pair. ``samples`` is the number of samples, which are
    taken from ``among``; None: from the samples of autograd.first."""
    found = chosen(ctx) if among is None else among
    given = [each for each in found if all(t.numel() for t in each.tensors)]
    # At the values of the axis of points, higher derivatives are not defined.
    given = [each for each in given if not is_long(each) and each.axis != POINTS.name][:samples]
    for number, sample in enumerate(given):
        known = known_of(ctx, sample)
        if not known.places:
            continue
        lays = lays_of(ctx, sample, {case for case, _ in pairs})
        for case, layout in pairs if not number else pairs[:_FEW]:
            laid = lays.get(case)
            if laid is None or not (layout == SUM or ctx.device.takes(layout)):
                continue
            if layout != PLAIN and reads_storage(ctx):
                continue
            if ctx.mutable_inputs(sample):
                ctx.rebuild(sample)
                laid = ctx.lay(sample, laid.case, laid.geometries)
            if known.returns(laid.geometries):
                name = case if layout == PLAIN else f"grad={layout}"
                yield known, laid, layout, f"both={case}" if case == layout != PLAIN else name
        ctx.rebuild(sample)


def second(ctx: OpContext) -> None:
    """Check the second gradients with respect to the inputs and to the cotangents."""
    with ctx.running(SECOND):
        for known, laid, layout, name in laid_out_samples(ctx, _PAIRS, SAMPLES):
            cotangents = known.cotangents(layout, laid.geometries)
            given = (known.places, cotangents)
            of = [f"the second gradient with respect to input {place}" for place in known.places]
            sent = [each for each in cotangents if each is not None]
            of += [f"the second gradient with respect to cotangent {n}" for n in range(len(sent))]
            kinds = [laid.sample.tensors[p].dtype for p in known.places]
            kinds += [each.dtype for each in sent]
            _judged(
                ctx,
                SECOND,
                known,
                laid,
                differentiated_twice,
                given,
                second_gradients,
                of,
                kinds,
                name,
            )


def forward(ctx: OpContext) -> None:
    """Check gradients for a batch of two cotangents and, on devices that declare ``storage``, forward-mode derivatives
    of the outputs and of the gradients, for tangents and cotangents in several layouts."""
    # make_dual reads the storage of its tensors. On torch's lazy device, which has none, it ends the process;
    # autograd.function::forward_mode reports that.
    stored = "storage" in ctx.device.descriptor.capabilities
    with ctx.running(FORWARD):
        for known, laid, layout, name in laid_out_samples(ctx, _PAIRS, SAMPLES):
            tensors, outputs = laid.sample.tensors, known.outputs(laid.geometries)
            given = (known.places, tangents(known, laid, layout))
            of = [f"the forward-mode derivative of output {n}" for n in range(len(outputs))]
            kinds = known.kinds(laid.geometries)
            if stored:
                _judged(
                    ctx, FORWARD, known, laid, pushed_forward, given, tangents_of, of, kinds, name
                )
            if name != PLAIN:
                continue
            if stored and has_second(ctx.traits):
                _judge_tangents_of_gradients(ctx, known, laid)
            if stored:
                _judge_tangents_in_place(ctx, laid)
            cotangents = known.cotangents(layout, laid.geometries)
            of = [
                f"the gradients of input {place} for a batch of cotangents"
                for place in known.places
            ]
            kinds = [tensors[place].dtype for place in known.places]
            about = ((known.places, cotangents), gradients_in_batch, of, kinds, "batched")
            _judged(ctx, FORWARD, known, laid, pulled_back_in_batch, *about)


def _judge_tangents_of_gradients(ctx: OpContext, known: Known, laid: Laid) -> None:
    sent = (*tangents(known, laid, PLAIN), *known.cotangents(PLAIN, laid.geometries))
    of = [f"the forward-mode derivative of the gradient of input {n}" for n in known.places]
    kinds = [laid.sample.tensors[place].dtype for place in known.places]
    about = ((known.places, sent), tangents_of_gradients, of, kinds, "through backward")
    _judged(ctx, FORWARD, known, laid, pushed_through_backward, *about)


def _judge_tangents_in_place(ctx: OpContext, laid: Laid) -> None:
    """Check the forward-mode derivative of a tensor to whose second half the in-place variant of the op writes."""
    function = ctx.subject.inplace
    if function is None or ctx.subject.restrides_in_place or not laid.sample.tensors[0].dim():
        return
    known = Known(ctx, laid.sample, function, "in place, sliced")
    if not known.places or not known.returns(laid.geometries):
        return
    given = (known.places, tangents(known, laid, PLAIN), True)
    of, kinds = ["the forward-mode derivative"], known.kinds(laid.geometries)
    about = (tangents_of, of, kinds, "inplace_slice")
    _judged(ctx, FORWARD, known, laid, pushed_forward_in_place, given, *about)


def tangents(known: Known, laid: Laid, layout: str) -> Cotangents:
    """Return a tangent for each input that has a gradient. Different inputs get tangents with different values."""
    tensors = laid.sample.tensors
    return tuple(
        known.laid(tensors[place], tensors[place].dtype, layout, turn=place)
        for place in known.places
    )


def _judged(
    ctx: OpContext,
    clause: str,
    known: Known,
    laid: Laid,
    procedure: Callable[..., Gradients],
    given: tuple[Any, ...],
    compute: Compute,
    subjects: Sequence[str],
    kinds: Sequence[torch.dtype],
    name: str,
) -> None:
    parts = known.parts(laid, procedure, given, compute)
    try:
        parts["wants"].value()
    except RuntimeError:  # the CPU has no such derivative: nothing to compare with
        return
    reference = Reference(ctx, laid, **parts, kinds=list(kinds), subjects=list(subjects))
    judges: dict[str, Judge] = {clause: judge_gradients}
    function = ctx.subject.inplace if known.form else None
    ctx.judge(judges, procedure, given, reference, function=function, layout=name, check="gradient")


def grad(ctx: OpContext) -> None:
    """Check the strides and values of the gradients that backward accumulates into leaves."""
    with ctx.running(GRAD):
        for known, laid, layout, name in laid_out_samples(ctx, _ACCUMULATED, 2):
            cotangents = known.cotangents(layout, laid.geometries)
            given = (known.places, cotangents)
            reference = of_inputs(ctx, known, laid, accumulated, given)
            judges: dict[str, Judge] = {GRAD: judge_accumulated}
            ctx.judge(judges, accumulated, given, reference, layout=name, check="gradient")


def judge_accumulated(evidence: Gradients, reference: ReferenceParts) -> Found:
    """Check the gradients that three backward passes accumulate into a leaf. The first gradient must have the leaf's
    strides if the leaf is dense and non-overlapping, otherwise it must be row-major. The second pass must add its
    gradient to the first one in place. The third pass runs with create_graph=True and must store the sum in a new
    tensor."""
    steps = evidence.before or ((), (), ())
    for place, leaf, one, two, three in zip(reference.places, evidence.leaves, *steps):
        if one is None or two is None or three is None:
            continue
        shape, stride = leaf
        wrong = misplaced(shape, stride, one.stride)
        wrong = wrong or unkept(one, two, three, reference.gradient_tolerances)
        yield wrong.about(f"the gradient of input {place}") if wrong is not None else None
    yield from judge_gradients(evidence, reference)


def misplaced(shape: Sequence[int], stride: Sequence[int], found: Sequence[int]) -> Wrong | None:
    """Return a failure if the strides of a leaf's first gradient are wrong, otherwise None. The leaf's
    strides are expected if the leaf is dense, otherwise row-major strides."""
    told, wanted, step = "the strides of the leaf", list(stride), 1
    for place in sorted((d for d in range(len(shape)) if shape[d] > 1), key=lambda d: stride[d]):
        if stride[place] != step:
            told, wanted = "row-major, because the leaf is not dense", row_major(shape)
            break
        step *= shape[place]
    if significant(shape, wanted) == significant(shape, found):
        return None
    return Wrong("strides", f"{tuple(wanted)}, {told}", tuple(found))


def row_major(shape: Sequence[int]) -> list[int]:
    found, step = [], 1
    for size in reversed(shape):
        found.append(step)
        step *= max(size, 1)
    return found[::-1]


def unkept(one: Held, two: Held, three: Held, tolerances: Any) -> Wrong | None:
    """Return a failure if the gradient of a leaf is wrong after the second or the third backward pass, otherwise None.
    The second pass must add to the gradient in place. The third pass, with create_graph=True, must store the sum in a
    new tensor."""
    if not two.kept:
        return Wrong(
            "not_aliased",
            "addition to the existing gradient",
            "a different tensor or a different address",
        )
    total = two.values + one.values
    for now, want, told in (
        (two, one.values * 2, "after the second backward pass"),
        (three, total, "after a backward pass with create_graph=True"),
    ):
        wrong = tensor_difference(now.values, want, tolerances, SUM_ROUNDINGS)
        if wrong is not None:
            return wrong.about(told)
    if three.kept or three.old is None:
        return Wrong("alias", "a new tensor, because create_graph=True", "the previous tensor")
    return tensor_difference(three.old, two.values, tolerances, 0.0)
