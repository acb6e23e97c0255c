"""Checks of ``out=`` tensors that do not fit the result: empty, of a wrong shape, of an unsafe dtype, on another device, or
with a gradient."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch

from conformance.checks.ops.call_reference import Reference
from conformance.checks.ops.calls import (
    Found,
    Invocation,
    Laid,
    ReferenceParts,
    copies,
)
from conformance.checks.ops.context import OpContext
from conformance.checks.ops.evidence import (
    Evidence,
    called_into,
)
from conformance.suites.layout.writes import form_of, takes_no_out, wanted_outputs, written
from opinfo.compare import Wrong, outputs_of, raised
from opinfo.guarded import Guarded, identity

OUT_RESIZE = "layout.out_resize"


def out_resize(ctx: OpContext) -> None:
    with ctx.running(OUT_RESIZE):
        for number, sample in enumerate(ctx.common):
            laid = ctx.laid_contiguous(sample)
            wanted = wanted_outputs(Reference(ctx, laid))
            if wanted is None:
                continue
            evidence = _unfit(ctx, laid, "empty")
            error = evidence.raised if evidence is not None else None
            if error is not None and takes_no_out(error):
                continue
            _unfit(ctx, laid, "wrong_shape")
            if all(each.numel() > 1 for each in wanted):
                _unfit(ctx, laid, "smaller")
            # A factory function without a dtype argument takes the dtype of out=. bool casts safely to every dtype.
            factory = ctx.subject.is_factory and sample.call.kwargs.get("dtype") is None
            dtypes = [unsafe_dtype(each.dtype) for each in wanted]
            if not factory and None not in dtypes and _must_refuse(ctx, laid, "wrong_dtype"):
                _unfit(ctx, laid, "wrong_dtype")
            numbers = all(each.is_floating_point() or each.is_complex() for each in wanted)
            how = "requires_grad"  # autograd refuses it, of ops that it knows
            if not number and numbers and _cpu_into_unfit(ctx, laid, how).raised is not None:
                _unfit(ctx, laid, how)
            # On the CPU there is no second reference, and no documented rule about a wrong device.
            if not ctx.device.fake_only and _must_refuse(ctx, laid, "wrong_device"):
                _unfit(ctx, laid, "wrong_device")


def _unfit(ctx: OpContext, laid: Laid, how: str) -> Evidence | None:
    reference = Reference(ctx, laid, how=how, warns=partial(_cpu_warns, ctx, laid, how))
    given = (*specs_and_form(ctx.expected(laid).result), how)
    judges = {OUT_RESIZE: judge_unfit}
    evidence: Evidence | None = ctx.judge(
        judges, called_into_unfit, given, reference, layout=f"out={how}", refusable=False
    )
    return evidence


def specs_and_form(result: Any) -> tuple[list[tuple[tuple[int, ...], torch.dtype]], str]:
    """Return a list of the (shape, dtype) of each ``out=`` tensor that a result needs, and the form in which
    ``out=`` takes them: one tensor, a tuple or a list."""
    outputs = outputs_of(result) or ()
    return [(tuple(each.shape), each.dtype) for each in outputs], form_of(result)


def unsafe_dtype(dtype: torch.dtype) -> torch.dtype | None:
    """Return a dtype to which ``torch.can_cast`` forbids casting the given dtype; None for bool, which can be cast to
    every dtype."""
    if dtype.is_complex:
        return torch.float32
    if dtype.is_floating_point:
        return torch.int64
    return None if dtype == torch.bool else torch.bool


def unfit_target(shape: tuple[int, ...], dtype: torch.dtype, how: str, call: Invocation) -> Any:
    """Return a target that does not fit a result of the given shape and dtype. ``how`` names the misfit: "empty",
    "smaller", "wrong_shape", "wrong_dtype", "wrong_device" or "requires_grad"."""
    if how == "empty":
        return call.move(torch.empty((0,), dtype=dtype))
    if how == "smaller":  # not empty, and smaller than the result
        return call.move(torch.zeros((1,), dtype=dtype))
    if how == "wrong_shape":
        count = torch.Size(shape).numel()
        size = (min(count + 2, 2 * count),) if count else (2, 3)
        return call.move(torch.zeros(size, dtype=dtype))
    if how == "requires_grad":
        return call.move(torch.zeros(shape, dtype=dtype)).detach().requires_grad_()
    if how == "wrong_dtype":
        return call.move(torch.zeros(shape, dtype=unsafe_dtype(dtype)))
    elsewhere = "meta" if call.device.type == "cpu" else "cpu"
    return torch.zeros(shape, dtype=dtype, device=torch.device(elsewhere))


def called_into_unfit(
    call: Invocation, specs: Sequence[tuple[tuple[int, ...], torch.dtype]], form: str, how: str
) -> Evidence:
    targets = [unfit_target(shape, dtype, how, call) for shape, dtype in specs]
    with torch.set_grad_enabled(how == "requires_grad" or torch.is_grad_enabled()):
        return called_and_warned(call, targets, form)


def called_and_warned(
    call: Invocation, targets: Sequence[Guarded | torch.Tensor], form: str = ""
) -> Evidence:
    """Make the call and record its warnings. If ``form`` is not empty, the targets are passed as ``out=`` in that form:
    "tensor", "list" or "tuple"."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        found = called_into(call, targets, form)
    return replace(found, warnings=tuple(str(each.message) for each in caught))


def judge_unfit(evidence: Evidence, reference: ReferenceParts) -> Found:
    """Check the treatment of an ``out=`` tensor that does not fit. An empty tensor must be resized without a
    warning. A non-empty tensor of a wrong shape must be resized with a warning (ATen/native/Resize.h) or refused. A
    tensor of a dtype to which the result cannot be cast (torch.can_cast), on a different device, or that requires a gradient
    must be refused."""
    how, error = reference.how, evidence.raised
    if how in ("wrong_dtype", "wrong_device", "requires_grad"):
        if error is None:
            kinds = ", ".join(f"{t.dtype} on {t.device}" for t in evidence.targets)
            also = " that requires a gradient" if how == "requires_grad" else ""
            yield Wrong("not_raised", f"an exception for out= of {kinds}{also}", "no exception")
        elif isinstance(error, (RuntimeError, TypeError)):
            yield None  # NotImplementedError is a RuntimeError: any refusal is correct
        else:
            yield raised(error, "RuntimeError or TypeError")
        return
    if error is not None:
        if how != "empty" and isinstance(error, (RuntimeError, TypeError, ValueError)):
            yield None  # the deprecation warning says that a later version will refuse
        elif how != "empty" or not takes_no_out(error):
            yield raised(error)
        return
    for place, (target, want) in enumerate(zip(evidence.targets, wanted_outputs(reference) or [])):
        if target.shape != tuple(want.shape):
            wrong = Wrong("shape", f"shape {tuple(want.shape)}", target.shape)
            yield wrong.about(f"out {place}")
            return
    other = None if reference.free else written(evidence, reference)
    if other is not None:
        yield other
        return
    warned = how == "empty" or any("resized" in text for text in evidence.warnings)
    if not warned and reference.warns:
        yield Wrong("not_warned", "a warning when a non-empty out= is resized", "no warning")
        return
    yield None


def on_cpu(ctx: OpContext, laid: Laid) -> Invocation:
    cpu = torch.device("cpu")
    call = replace(ctx.call(laid), device=cpu, move=identity, back=identity, settle=lambda _: None)
    return replace(call, inputs=copies(call))


def _cpu_into_unfit(ctx: OpContext, laid: Laid, how: str) -> Evidence:
    return called_into_unfit(on_cpu(ctx, laid), *specs_and_form(ctx.expected(laid).result), how)


def _cpu_warns(ctx: OpContext, laid: Laid, how: str) -> bool:
    """Return True if the CPU warns that it resizes the target. If the device under test is the CPU, return True,
    because the documented rule demands the warning."""
    if ctx.device.fake_only:
        return True
    evidence = _cpu_into_unfit(ctx, laid, how)
    return evidence.raised is None and any("resized" in text for text in evidence.warnings)


def _must_refuse(ctx: OpContext, laid: Laid, how: str) -> bool:
    """Return True if the CPU refuses a target with the misfit ``how``. If the device under test is the CPU, return
    True, because the documented rule demands the refusal."""
    return ctx.device.fake_only or _cpu_into_unfit(ctx, laid, how).raised is not None
