"""Checks of writes to overlapping memory: the call must raise or warn if the reference raises or warns.

If the device under test is not the CPU, the reference is the CPU. If the device is the CPU, the reference for
elementwise ops is TensorIterator's documented rule (``check_mem_overlap`` in ``ATen/TensorIterator.h``): internal
overlap of an output, and partial overlap of an output with an input, are errors, and an op that skips the check must
still give the functional result. For other ops, the reference is FakeTensor. A call that need not raise is checked too:
it must leave the memory outside the target unchanged.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import product
from typing import Any, NamedTuple

import torch

from conformance.checks.ops.call_reference import Reference
from conformance.checks.ops.calls import (
    Found,
    Invocation,
    ReferenceParts,
    container,
    copies,
    differs,
)
from conformance.checks.ops.context import OpContext
from conformance.checks.ops.evidence import Evidence
from conformance.suites.layout.unfit_targets import called_and_warned, on_cpu
from conformance.suites.layout.writes import form_of
from opinfo.compare import Wrong, outputs_of
from opinfo.layouts import CONTIGUOUS, Geometry, Layout
from opinfo.samples import Sample

OVERLAP = "layout.overlap_raises"

_EXPANDED = Layout("contiguous", expand="first")

#: Samples for each attempt. Three are enough, because the overlap check does not depend on the values.
_ENOUGH = 3


class _Attempt(NamedTuple):
    """A call that writes to overlapping memory. ``given`` holds the arguments of ``procedure``, which makes the call.
    ``inputs`` and ``targets`` are the sizes and strides with which FakeTensor makes the same call. ``expanded`` is the
    dimension in which the first input has stride 0, or None."""

    procedure: Callable[..., Evidence]
    given: tuple[Any, ...] = ()
    inputs: Sequence[Geometry] = ()
    targets: Sequence[tuple[torch.dtype, Geometry]] = ()
    expanded: int | None = None


def overlap(ctx: OpContext) -> None:
    """Make the op write to an expanded ``self``, to an expanded ``out=`` tensor, and to an ``out=`` tensor that
    starts one element after the input in the same storage. The call must raise or warn if the reference does."""
    attempts: dict[str, Callable[[OpContext, Sample], _Attempt | None]] = {}
    if ctx.subject.inplace is not None:
        attempts["self=expanded"] = _expanded_self
    if ctx.subject.has_out:
        attempts |= {"out=expanded": _expanded_out, "out=partial_overlap": _partial_overlap}
    done = Counter[str]()
    with ctx.running(OVERLAP):
        for sample, (name, attempt) in product(ctx.common, attempts.items()):
            if done[name] < _ENOUGH and (made := attempt(ctx, sample)) is not None:
                done[name] += 1
                _overlapping(ctx, sample, name, made)


def _expanded_self(ctx: OpContext, sample: Sample) -> _Attempt | None:
    first = sample.call.args[0]
    if not isinstance(first, torch.Tensor) or first.layout != torch.strided:
        return None
    geometry = _EXPANDED.geometry(first.shape)
    if geometry.expanded is None or first.numel() == 0:
        return None
    inputs = [geometry, *(CONTIGUOUS.geometry(each.shape) for each in sample.tensors[1:])]
    return _Attempt(called_on_expanded, (geometry,), inputs, expanded=geometry.expanded)


def called_on_expanded(call: Invocation, geometry: Geometry) -> Evidence:
    """Call the in-place variant on a ``self`` with the given geometry, which has a dimension of stride 0, and return
    the evidence."""
    target = call.guarded(call.values[0], geometry, call.move)
    return called_and_warned(replace(call, inputs=[target, *copies(call)[1:]]), [target])


def _expanded_out(ctx: OpContext, sample: Sample) -> _Attempt | None:
    result = _functional(ctx, sample)
    outputs = outputs_of(result) or ()
    geometries = [_EXPANDED.geometry(each.shape) for each in outputs]
    if not outputs or geometries[0].expanded is None or outputs[0].numel() == 0:
        return None
    specs = [(t.dtype, g) for t, g in zip(outputs, geometries, strict=True)]
    plain = [CONTIGUOUS.geometry(each.shape) for each in sample.tensors]
    return _Attempt(called_into_expanded, (specs, form_of(result)), plain, specs)


def called_into_expanded(
    call: Invocation, specs: Sequence[tuple[torch.dtype, Geometry]], form: str
) -> Evidence:
    targets = [call.guarded(torch.zeros(g.shape, dtype=d), g, call.move) for d, g in specs]
    return called_and_warned(replace(call, inputs=copies(call)), targets, form)


def _partial_overlap(ctx: OpContext, sample: Sample) -> _Attempt | None:
    """Return a call whose ``out=`` tensor starts one element after the input in the same storage. Returns None if the
    op is neither unary nor binary, or does not have a single output of the input's dtype and shape."""
    if ctx.traits.ufunc not in ("unary", "binary"):
        return None
    outputs, first = outputs_of(_functional(ctx, sample)), sample.call.args[0]
    if outputs is None or len(outputs) > 1 or not isinstance(first, torch.Tensor):
        return None
    out = outputs[0]
    fits = out.dtype == first.dtype and out.shape == first.shape and out.numel() > 1
    return _Attempt(called_into_its_input) if fits else None


def called_into_its_input(call: Invocation) -> Evidence:
    """Make the call with an ``out=`` tensor that starts one element after the first input in the same storage, and
    return the evidence."""
    first = call.values[0]
    count, shape = first.numel() + 1, tuple(first.shape)
    both = call.guarded(
        torch.zeros(count, dtype=first.dtype), Geometry((count,), (1,), 0, count), call.move
    )
    view = both.view[:-1].view(shape)
    view.copy_(call.move(first))
    both.remember(call.back)
    both.view = both.view[1:].view(
        shape
    )  # judge only the target; the storage around it stays guarded
    both.geometry = Geometry(shape, tuple(both.view.stride()), 1, count)
    inputs = [view, *copies(call)[1:]]
    return called_and_warned(replace(call, inputs=inputs), [both], "tensor")


def is_refused(evidence: Evidence) -> bool:
    """Return True if the call raised an exception or gave a warning that mentions memory."""
    return evidence.raised is not None or any("memory" in text for text in evidence.warnings)


def judge_overlap(evidence: Evidence, reference: ReferenceParts) -> Found:
    """Check that a call on overlapping memory raises or warns if the reference does, and that it changes no memory
    outside the target."""
    if (
        reference.must
        and not is_refused(evidence)
        and not (reference.idempotent and holds_result(evidence, reference))
    ):
        expected = "an exception or a warning for overlapping memory"
        yield Wrong("not_raised", expected, "no exception and no warning")
    elif not all(each.outside_intact for each in evidence.targets):
        yield Wrong("bytes", "unchanged bytes outside the overlapping target", "changed bytes")
    else:
        yield None


def holds_result(evidence: Evidence, reference: ReferenceParts) -> bool:
    """Return True if the targets contain the functional result although their elements overlap."""
    want = reference.functional
    wanted = outputs_of(want.result) if want.raises is None else None
    targets = evidence.targets
    if wanted is None or len(targets) != len(wanted):
        return False
    return all(
        t.values is not None
        and t.shape == tuple(w.shape)
        and differs(t.values, w.to(t.dtype), reference) is None
        for t, w in zip(targets, wanted)
    )


def first_repeated(values: Sequence[torch.Tensor], dim: int | None) -> list[torch.Tensor]:
    """Return the tensors, with the first one replaced by its first slice along ``dim``, expanded to the original shape.
    If ``dim`` is None, all tensors are unchanged."""
    if dim is None:
        return list(values)
    return [values[0].narrow(dim, 0, 1).expand(values[0].shape), *values[1:]]


def _overlapping(ctx: OpContext, sample: Sample, name: str, made: _Attempt) -> None:
    rule = ctx.traits.ufunc in ("unary", "binary")
    laid = ctx.laid_first(sample)
    in_place = ctx.subject.inplace if name == "self=expanded" else None
    function = in_place or ctx.subject.function

    def must() -> bool:
        if ctx.device.fake_only:
            return rule or _fake_raises(ctx, sample, function, made)
        call = replace(on_cpu(ctx, laid), function=function)
        return is_refused(made.procedure(call, *made.given))

    functional = ctx.answer_for(sample, first_repeated, made.expanded, mutates=ctx.mutates)
    idempotent = rule and ctx.device.fake_only
    reference = Reference(ctx, laid, must=must, idempotent=idempotent, functional=functional)
    how: dict[str, Any] = {"function": function, "layout": name, "refusable": False}
    ctx.judge({OVERLAP: judge_overlap}, made.procedure, made.given, reference, **how)


def _functional(ctx: OpContext, sample: Sample) -> Any:
    """Return the result of the functional call on the CPU; None if the CPU raises."""
    return ctx.expected(ctx.laid_first(sample)).result


def _fake_raises(
    ctx: OpContext, sample: Sample, function: Callable[..., Any], made: _Attempt
) -> bool:
    """Return True if FakeTensor raises for the call ``made``, repeated on fake tensors of the same sizes and
    strides."""
    call, outs = sample.call, [torch.empty(0, dtype=dtype) for dtype, _ in made.targets]
    if outs:
        given = {**call.kwargs, "out": container(form_of(_functional(ctx, sample)), outs)}
        call = type(call)(call.args, given)
    geometries = [*made.inputs, *(geometry for _, geometry in made.targets)]
    name = f"{ctx.subject.id}{'@out' if outs else '@inplace'}"
    answer = ctx.strides.answer(name, function, call, geometries)
    return answer.outputs is None
