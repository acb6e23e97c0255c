"""autograd.second, autograd.forward_ad and layout.grad: gradients of gradients, forward-mode products, gradients for several
cotangents at once, and what is accumulated into leaves."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

from conformance.checks.ops.calls import Call, Found, Judge, Laid
from conformance.checks.ops.context import ItemContext, Reference
from conformance.suites.autograd.first import PLAIN, applies, lays_of, of_inputs, reads_storage
from conformance.suites.autograd.gradients import (
    Compute,
    Cotangents,
    Gradients,
    Held,
    accumulated,
    differentiated_twice,
    gradients_in_batch,
    judge_gradients,
    pulled_back_in_batch,
    pushed_forward,
    second_gradients,
    tangents_of,
)
from conformance.suites.autograd.samples import SUM, Known, chosen, is_long, known_of
from opinfo.catalog import catalogue
from opinfo.compare import SUM_ROUNDINGS, Wrong, tensor_difference
from opinfo.device import Guarded
from opinfo.reference import significant
from opinfo.samples import Traits

SECOND, FORWARD, GRAD = "autograd.second", "autograd.forward_ad", "layout.grad"

#: Samples that each is asked of, and the layouts of inputs and of cotangents or tangents.
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
    return applies(t) and catalogue()[t.op].has_second_gradient


def has_forward(t: Traits) -> bool:
    return applies(t) and catalogue()[t.op].has_forward_gradient


def asked(
    ctx: ItemContext, pairs: Sequence[tuple[str, str]], samples: int
) -> Iterator[tuple[Known, Laid, str, str]]:
    """Samples, each laid out, with the layout of cotangents and a name: the first in all pairs of layouts, others in a few."""
    given = [each for each in chosen(ctx) if all(t.numel() for t in each.tensors)]
    given = [each for each in given if not is_long(each)][:samples]
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


def second(ctx: ItemContext) -> None:
    """Gradients of gradients, by the inputs and by the cotangents."""
    with ctx.running(SECOND):
        for known, laid, layout, name in asked(ctx, _PAIRS, SAMPLES):
            cotangents = known.cotangents(layout, laid.geometries)
            given = (known.places, cotangents)
            of = [f"the second gradient by input {place}" for place in known.places]
            sent = [each for each in cotangents if each is not None]
            of += [f"the second gradient by cotangent {n}" for n in range(len(sent))]
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


def forward(ctx: ItemContext) -> None:
    """Forward-mode products with tangents in layouts of their own, where tensors have a storage; and gradients for two
    cotangents at once."""
    with ctx.running(FORWARD):
        for known, laid, layout, name in asked(ctx, _PAIRS, SAMPLES):
            tensors, outputs = laid.sample.tensors, known.outputs(laid.geometries)
            given = (known.places, tangents(known, laid, layout))
            of = [f"the forward-mode product of output {n}" for n in range(len(outputs))]
            kinds = known.kinds(laid.geometries)
            # make_dual reads the storage of its tensors: where torch's lazy ones have none, it ends the process, as
            # autograd.function::forward_mode tells.
            if "storage" in ctx.device.descriptor.capabilities:
                _judged(
                    ctx, FORWARD, known, laid, pushed_forward, given, tangents_of, of, kinds, name
                )
            if name == PLAIN:
                cotangents = known.cotangents(layout, laid.geometries)
                of = [f"the gradients of input {place} in a batch" for place in known.places]
                kinds = [tensors[place].dtype for place in known.places]
                about = ((known.places, cotangents), gradients_in_batch, of, kinds, "batched")
                _judged(ctx, FORWARD, known, laid, pulled_back_in_batch, *about)


def tangents(known: Known, laid: Laid, layout: str) -> Cotangents:
    """A tangent of each input that has a gradient, no two alike."""
    tensors = laid.sample.tensors
    return tuple(
        known.laid(tensors[place], tensors[place].dtype, layout, turn=place)
        for place in known.places
    )


def _judged(
    ctx: ItemContext,
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
    ctx.judge(judges, procedure, given, reference, layout=name, check="gradient")


def grad(ctx: ItemContext) -> None:
    """What backward accumulates into leaves."""
    with ctx.running(GRAD):
        for known, laid, layout, name in asked(ctx, _ACCUMULATED, 2):
            cotangents = known.cotangents(layout, laid.geometries)
            given = (known.places, cotangents)
            reference = of_inputs(ctx, known, laid, accumulated, given)
            judges: dict[str, Judge] = {GRAD: judge_accumulated}
            ctx.judge(judges, accumulated, given, reference, layout=name, check="gradient")


def judge_accumulated(call: Call, answer: Gradients, reference: Any) -> Found:
    """The first gradient has the strides of its leaf if that is dense and does not overlap, else it is row-major; the next
    is added to it in place, the one with create_graph=True into a new tensor."""
    begun, again, anew = answer.before or ((), (), ())
    for place, one, two, three in zip(reference.places, begun, again, anew):
        if one is None or two is None or three is None:
            continue
        given = call.inputs[place]
        leaf = given.view if isinstance(given, Guarded) else given
        wrong = misplaced(tuple(leaf.shape), tuple(leaf.stride()), one.stride)
        wrong = wrong or unkept(one, two, three, reference.gradient_tolerances)
        yield wrong.about(f"the gradient of input {place}") if wrong is not None else None
    yield from judge_gradients(call, answer, reference)


def misplaced(shape: Sequence[int], stride: Sequence[int], found: Sequence[int]) -> Wrong | None:
    """Whether the strides of a first gradient are not the leaf's, or not row-major where that is not dense."""
    told, wanted, step = "those of the leaf", list(stride), 1
    for place in sorted((d for d in range(len(shape)) if shape[d] > 1), key=lambda d: stride[d]):
        if stride[place] != step:
            told, wanted = "row-major, as the leaf is not dense", row_major(shape)
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
    """What is wrong with gradients that are accumulated into one that is there."""
    if not two.kept:
        return Wrong("not_aliased", "added in place, at its address", "another tensor or address")
    total = two.values + one.values
    for now, want, told in (
        (two, one.values * 2, "accumulated twice"),
        (three, total, "accumulated with create_graph=True"),
    ):
        wrong = tensor_difference(now.values, want, tolerances, SUM_ROUNDINGS)
        if wrong is not None:
            return wrong.about(told)
    if three.kept or three.old is None:
        return Wrong("alias", "with create_graph=True a new tensor", "the one that was there")
    return tensor_difference(three.old, two.values, tolerances, 0.0)
