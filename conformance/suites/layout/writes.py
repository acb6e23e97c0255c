"""Checks of calls that write to a given tensor: ``out=`` tensors that fit the result, and in-place variants."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch

from conformance.checks.ops import standalone_checks
from conformance.checks.ops.call_reference import Reference
from conformance.checks.ops.calls import (
    Found,
    Invocation,
    Laid,
    ReferenceParts,
    address,
    differs,
    views,
)
from conformance.checks.ops.context import OpContext
from conformance.checks.ops.evidence import (
    Evidence,
    TargetAfter,
    attempt,
    called_into,
    collect_evidence,
    target_after,
)
from opinfo.axes.shapes import EQUAL
from opinfo.compare import Wrong, outputs_of, raised
from opinfo.guarded import Guarded
from opinfo.layouts import Geometry, Layout, uniform
from opinfo.samples import Sample

BOUNDS = "layout.bounds"
OUT_KEPT, IN_PLACE = "layout.out_kept", "layout.inplace"


# -- ``out=``


def wanted_outputs(reference: ReferenceParts) -> list[torch.Tensor] | None:
    """Return the CPU's outputs as a list; None if the CPU raises, or if its result is not a tensor or a sequence of
    strided tensors, so that ``out=`` cannot receive it."""
    return outputs_of(reference.value.result) if reference.value.raises is None else None


def form_of(result: Any) -> str:
    """Return what must be passed as ``out=`` to receive the given result: a "tensor", or a "list" or "tuple" of
    tensors."""
    if isinstance(result, torch.Tensor):
        return "tensor"
    return "list" if isinstance(result, list) else "tuple"


def takes_no_out(error: BaseException) -> bool:
    """Return True if torch's argument parser raised ``error`` because the call has no ``out`` argument, as in
    ``nonzero(as_tuple=True)`` or for a ``torch.ops`` overload whose targets have names other than ``out``, or because
    only overloads without ``out`` take a number in this place, as for ``where``."""
    text = str(error)
    if isinstance(error, TypeError):
        return any(each in text for each in ("'out'", "must be Tensor, not", "invalid combination"))
    return isinstance(error, RuntimeError) and "failed to match any schema" in text


def prefill(dtype: torch.dtype) -> Any:
    """Return the value with which a target is filled before the call. The value is one that results rarely contain."""
    if dtype == torch.bool:
        return True
    if dtype.is_floating_point or dtype.is_complex:
        return float("nan")
    return torch.iinfo(dtype).max


#: The layout of the inputs when the target has an offset. A kernel that uses the input's strides for the target, or the
#: target's for the input, then gives wrong values.
_STRIDED = uniform(Layout("transposed", "outer", offset=True))


#: torch's own samples differ only in their arguments, so each of them gets one in three of the target layouts, in turn.
_TURNS = 3


def out_kept(ctx: OpContext) -> None:
    """Call the op with ``out=`` tensors of the right shape in many layouts. Each tensor must keep its address and
    strides and receive the complete result."""
    if not ctx.traits.has_out or not ctx.traits.returns_tensors:
        return
    judges = {OUT_KEPT: judge_kept, BOUNDS: judge_target_bounds}
    shared = any(sample.axis for sample in ctx.common)  # samples with an axis get all targets
    with ctx.running(*judges):
        common = ctx.common
        for number, sample in enumerate((*common, *_squares(ctx))):
            plain = Reference(ctx, ctx.laid_contiguous(sample))
            wanted, strided = wanted_outputs(plain), None
            seen: set[tuple[Geometry, ...]] = set()
            targets = [each for each in ctx.targets if ctx.device.takes(each.id)]
            if number >= len(common):
                targets = [each for each in targets if each.id == _OF_SQUARES]
            elif shared and not sample.axis:
                targets = targets[number % _TURNS :: _TURNS]
            for layout in targets if wanted is not None else ():
                geometries = tuple(layout.geometry(t.shape) for t in wanted or ())
                if geometries in seen:
                    continue
                seen.add(geometries)
                specs = [(t.dtype, g) for t, g in zip(wanted or (), geometries, strict=True)]
                given, name = (specs, form_of(plain.value.result)), f"out={layout.id}"
                reference = plain
                if geometries[:1] and geometries[0].offset:
                    reference = strided = strided or _of_strided(ctx, sample) or plain
                ctx.judge(
                    judges, called_into_guarded, given, reference, layout=name, check="target"
                )
            ctx.release(sample)


#: Layouts in which ``self`` and the other operands have different strides.
_APART = ("transposed/contiguous", "contiguous/transposed")
#: The layout of an ``out=`` tensor for a sample of square matrices.
_OF_SQUARES = "transposed"


def _squares(ctx: OpContext) -> Iterator[Sample]:
    """Yield the smallest sample whose tensors are all square matrices of one size, if there is one that is not among the
    samples of every check. A kernel that takes a matrix for its transpose only where sizes are equal writes to the right
    memory, and the wrong elements."""
    squares = [each for each in ctx.samples if each.axis == EQUAL.name and _is_square(each)]
    smallest = min(squares, key=lambda each: each.tensors[0].numel(), default=None)
    if smallest is not None and smallest.reads_only:
        yield replace(smallest, layouts=_APART)


def _is_square(sample: Sample) -> bool:
    shapes = {tuple(each.shape) for each in sample.tensors}
    return len(shapes) == 1 and all(len(s) == 2 and 1 < s[0] == s[1] for s in shapes)


def _of_strided(ctx: OpContext, sample: Sample) -> Reference | None:
    """Return the reference results of the call with non-contiguous operands. Returns None if the device cannot build
    such operands or the reference raises for them."""
    if not ctx.device.takes(_STRIDED.id) or "as_strided.read" in ctx.traits.families:
        return None
    strided = Reference(ctx, ctx.laid_as(sample, _STRIDED))
    return None if strided.raises else strided


def called_into_guarded(
    call: Invocation, specs: Sequence[tuple[torch.dtype, Geometry]], form: str
) -> Evidence:
    targets = [
        call.guarded(torch.zeros(g.shape, dtype=dtype), g, call.move, fill=held_before(dtype, g))
        for dtype, g in specs
    ]
    return called_into(call, targets, form)


def held_before(dtype: torch.dtype, geometry: Geometry) -> Any:
    """Return the value with which a target is filled before the call. For a target without a storage offset, it is the
    value of :func:`prefill`; for a target with one, it is 1, or -1 if the dtype is signed and the first stride is not
    larger than the last. The result of the call must not depend on the value."""
    if not geometry.offset:
        return prefill(dtype)
    in_rows = geometry.stride[:1] > geometry.stride[-1:]
    return 1 if in_rows or not dtype.is_signed else -1


def judge_kept(evidence: Evidence, reference: ReferenceParts) -> Found:
    """Check that each ``out=`` tensor keeps its address and strides and receives the complete functional result."""
    if evidence.raised is not None:
        if not takes_no_out(evidence.raised):
            yield raised(evidence.raised)
        return
    for place, target in enumerate(evidence.targets):
        wrong = moved(target)
        if wrong is not None:
            yield wrong.about(f"out {place}")
            return
    yield None if reference.free else written(evidence, reference)


def written(evidence: Evidence, reference: ReferenceParts) -> Wrong | None:
    """Return a failure if the values of the targets differ from the CPU's result; otherwise None."""
    wanted = wanted_outputs(reference) or []
    read = [each.values for each, _ in zip(evidence.targets, wanted)]

    def exact() -> Any:
        return reference.exact.result

    if len(read) < 2:
        found = differs(read[0], wanted[0], reference, exact) if read else None
        return found.about("out 0") if found is not None else None
    found = differs(tuple(read), tuple(wanted), reference, exact)
    return replace(found, subject=found.subject.replace("output", "out")) if found else None


def moved(target: TargetAfter) -> Wrong | None:
    """Return a failure if a tensor that the call wrote to has changed its strides or its address; otherwise None. On a
    device without addresses, the written values must appear in the base of the tensor instead."""
    assert target.asked is not None
    kept, geometry = target.keeps_its_strides, target.asked
    if target.addressed:
        where = "the same address" if target.stays else "another address"
        expected = f"strides {geometry.stride} at the same address"
        found = f"strides {target.stride} at {where}"
    elif kept:
        expected, found = "the written values in its base tensor", "different values in the base"
    else:
        expected, found = f"shape {geometry.shape}", f"shape {target.shape}"
        if not target.by_values:
            expected, found = f"strides {geometry.stride}", f"strides {target.stride}"
    there = target.stays or not (kept or target.addressed)
    return None if kept and there else Wrong("moved", expected, found)


def judge_target_bounds(evidence: Evidence, reference: ReferenceParts) -> Found:
    """Check that the call changed no byte of a target's storage outside the elements of the target."""
    for place, target in enumerate(evidence.targets if evidence.raised is None else ()):
        yield from outside_changed(target, f"out {place}")


def outside_changed(target: TargetAfter, what: str) -> Found:
    """Yield a failure if the call changed bytes of the target's storage outside the target's elements; otherwise
    None."""
    if target.asked is None or not target.as_asked:
        return  # layout.out_kept or layout.inplace reports the changed strides
    where = f"strides {target.asked.stride}, storage offset {target.asked.offset}"
    expected = f"unchanged bytes outside its elements ({where})"
    yield None if target.outside_intact else Wrong("bytes", expected, "changed bytes", what)


# -- in place


def in_place(ctx: OpContext) -> None:
    """Call the in-place variant on every sample in every layout in which no dimension of ``self`` is expanded.
    ``self`` must keep its address and strides and receive the functional result."""
    variant = ctx.subject.inplace
    if variant is None or not ctx.traits.writes_self:
        return
    judges = {BOUNDS: judge_self_bounds, IN_PLACE: judge_in_place}
    with ctx.running(IN_PLACE, BOUNDS):
        squares = [s for s in _squares(ctx) if len(s.tensors) > 1]
        for sample in (*ctx.common, *squares):
            for laid in ctx.laid_out(sample):
                target = laid.inputs[0] if laid.inputs else None
                if not isinstance(target, Guarded) or target.geometry.expanded is not None:
                    continue  # layout.overlap_raises checks writes to an expanded self
                refuses = partial(refuses_in_place, ctx, laid)
                reference = Reference(
                    ctx, laid, raises_in_place=refuses, restrides=ctx.subject.restrides_in_place
                )
                how = (True,) if ctx.subject.restrides_in_place else ()
                evidence = ctx.judge(judges, called_in_place, how, reference, function=variant)
                if evidence is None:
                    continue
                target.restore(ctx.device.to_device)
                (left,) = evidence.targets
                if not (left.addressed and left.as_asked and left.stays):
                    ctx.rebuild(sample)
        if ctx.traits.ufunc == "binary":
            given: dict[str, Any] = {"inplace": True, "dtype": ctx.dtype}
            standalone_checks.run(ctx, IN_PLACE, "self=broadcast", refuses_to_grow, **given)


def refuses_in_place(ctx: OpContext, laid: Laid) -> bool:
    """Return True if FakeTensor refuses the in-place variant, as for ``float_power_`` with a float32 base."""
    return ctx.stride_answer(laid, ctx.subject.inplace, "@inplace").raises is not None


def called_in_place(call: Invocation, restrides: bool = False) -> Evidence:
    """Make the in-place call and return the evidence, in which the target is the first input. ``restrides`` is true
    for an op that may change the strides of its first input."""
    target = call.inputs[0]
    before = address(call, views([target])[0])
    _, error = attempt(call)
    found = collect_evidence(call, None, error, (0,))
    return replace(found, targets=(target_after(call, target, before, restrides),))


def judge_self_bounds(evidence: Evidence, reference: ReferenceParts) -> Found:
    """Check that the in-place call changed no byte of ``self``'s storage outside the elements of ``self``."""
    yield from outside_changed(evidence.targets[0], "self")


def judge_in_place(evidence: Evidence, reference: ReferenceParts) -> Found:
    """Check that the in-place variant keeps the address and strides of ``self`` and writes the functional result to
    ``self``. The variant must raise if that result does not fit into ``self``."""
    target, want = evidence.targets[0], reference.value
    assert target.asked is not None
    dtype, shape = target.dtype, target.asked.shape
    if want.raises is not None:
        expected = f"{type(want.raises).__name__}, as on the CPU"
        yield None if evidence.raised else Wrong("not_raised", expected, "no exception")
        return
    if not isinstance(want.result, torch.Tensor):
        yield None
        return
    unfit = None
    if not reference.restrides and want.result.shape != shape:
        unfit = "the shape of the result differs from that of self"
    elif not reference.restrides and not torch.can_cast(want.result.dtype, dtype):
        unfit = "the result cannot be cast to the dtype of self"
    if evidence.raised is not None:
        fits = unfit is None and not reference.raises_in_place
        expected = "no exception, as from the out-of-place op"
        yield raised(evidence.raised, expected) if fits else None
    elif unfit:
        yield Wrong("not_raised", f"an exception, because {unfit}", "no exception")
    else:
        wrong = None if reference.restrides else moved(target)
        if wrong is None and not reference.free:
            wanted = want.result.to(dtype)
            wrong = differs(target.values, wanted, reference, lambda: reference.exact.result)
        yield wrong.about("self") if wrong is not None else None


def refuses_to_grow(op: Any, move: Any, back: Any, dtype: Any) -> Wrong | None:
    # https://docs.pytorch.org/docs/stable/notes/broadcasting.html#in-place-semantics
    small = torch.ones(1, 4).to(getattr(torch, dtype))
    large = torch.ones(3, 4).to(getattr(torch, dtype))
    there = move(small)
    try:
        op(there, move(large))
    except NotImplementedError:
        raise
    except Exception:  # dispatch.error_inputs judges the exception's type
        return None
    expected = "an exception for self of shape (1, 4) and an operand of shape (3, 4)"
    return Wrong("not_raised", expected, f"no exception and self of shape {tuple(there.shape)}")
