"""Checks of gradient clipping for the clause optim.steps: by norm and by value, for several dtypes, layouts and device
indices."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch.nn.utils import clip_grad_norm_, clip_grad_value_

from conformance.checks.cases.cases import Cases
from conformance.checks.cases.context import CaseContext
from conformance.suites.optim.parameters import (
    ALIKE,
    DTYPES,
    LARGE,
    MANY,
    OTHERS,
    Parameter,
    Placed,
    give_gradients,
    gradients,
    must_be_taken,
    place_parameters,
)
from conformance.suites.optim.tensor_lists import compare
from devices.failure import Kind

cases = Cases(Kind.VALUES)

LISTS: dict[str, tuple[Parameter, ...]] = {
    "alike": ALIKE,
    "large": LARGE,
    "many": MANY,
    "dtypes": tuple(each for each in DTYPES if each.dtype != "float64"),
    "others": tuple(each for each in OTHERS if "expand" not in each.grad),
}
CLIPPED = "a clipped gradient differs from the CPU's"
NORM = "the total norm that clip_grad_norm_ returned is wrong"


def _given(
    context: CaseContext, which: str, indices: Sequence[int] = (0,)
) -> tuple[Placed, list[torch.Tensor]]:
    """Return the parameters with their gradients on the device, and copies of the gradients on the CPU."""
    parameters = LISTS[which]
    if which == "dtypes":
        declared = context.descriptor.dtypes
        parameters = tuple(each for each in parameters if each.dtype in declared)
    found = place_parameters(context, parameters, indices)
    give_gradients(context, found, 0)
    kinds = [tensor.dtype for tensor in found.tensors]
    there = [
        grad.to(dtype)
        for grad, dtype in zip(gradients(parameters, 0), kinds, strict=True)
        if grad is not None
    ]
    return found, there


def _found(given: Placed) -> list[torch.Tensor]:
    return [each.grad for each in given.tensors if each.grad is not None]


@cases(
    "optim.steps",
    over={
        f"clip_norm_{which}_{way}": (which, way) for which in LISTS for way in ("single", "foreach")
    },
)
def norm(context: CaseContext, which: str, way: str) -> None:
    """Call clip_grad_norm_ with several norm types: the returned value must be the total norm of all gradients, and
    every gradient must be multiplied by the documented factor."""
    must_be_taken(context, way)
    for kind in (2.0, 1.0, float("inf"), 3.0):
        if kind == float("inf") and which == "many":
            continue  # a tensor without elements has no largest element
        for limit in (0.5, 1e6):
            given, host = _given(context, which)
            at = f"norm_type={kind}, max_norm={limit}, list {which!r}, {way}"
            want = _norm_of(host, kind)
            total = clip_grad_norm_(given.tensors, limit, kind, foreach=way == "foreach")
            context.same(tuple(total.shape), (), NORM, Kind.SHAPE, at)
            # A sequential float32 sum of 65,600 powers has a relative error of about 1e-4.
            rtol = 0.01 if which == "dtypes" else 2e-4
            context.assert_close(total, want, NORM, at, rtol=rtol, check_dtype=False)
            factor = min(1.0, limit / (float(total) + 1e-6))
            scaled = [(each.double() * factor).to(each.dtype) for each in host]
            compare(context, _found(given), scaled, CLIPPED, at)


def _norm_of(grads: Sequence[torch.Tensor], kind: float) -> torch.Tensor:
    every = torch.cat([each.double().flatten() for each in grads])
    norm: torch.Tensor = torch.linalg.vector_norm(every, kind)
    return norm


@cases(
    "optim.steps",
    over={
        f"clip_value_{which}_{way}": (which, way)
        for which in LISTS
        for way in ("single", "foreach")
    },
)
def value(context: CaseContext, which: str, way: str) -> None:
    """Call clip_grad_value_: every gradient must be clamped to the given value, in both directions."""
    must_be_taken(context, way)
    given, host = _given(context, which)
    clip_grad_value_(given.tensors, 0.75, foreach=way == "foreach")
    compare(
        context,
        _found(given),
        [each.clamp(-0.75, 0.75) for each in host],
        CLIPPED,
        f"list {which!r}, {way}",
    )


@cases(
    "optim.steps",
    requires={"multi_device"},
    indices=2,
    over={f"clip_norm_indices_{way}": (way,) for way in ("single", "foreach")},
)
def indices(context: CaseContext, way: str) -> None:
    """Call clip_grad_norm_ for gradients on two device indices: the norm must be that of all gradients, and all
    gradients must be scaled by the same factor."""
    must_be_taken(context, way)
    given, host = _given(context, "alike", (0, 1))
    want = _norm_of(host, 2.0)
    total = clip_grad_norm_(given.tensors, 0.5, foreach=way == "foreach")
    context.assert_close(total, want, NORM, way, rtol=1e-5, check_dtype=False)
    factor = 0.5 / (float(total) + 1e-6)
    compare(context, _found(given), [each.float() * factor for each in host], CLIPPED, way)


@cases("optim.steps", over={f"clip_norm_not_finite_{way}": (way,) for way in ("single", "foreach")})
def not_finite(context: CaseContext, way: str) -> None:
    """Call clip_grad_norm_ with NaN or infinity in a gradient. With error_if_nonfinite=True, RuntimeError must be
    raised; otherwise the returned norm must not be finite."""
    must_be_taken(context, way)
    for bad in (float("nan"), float("inf")):
        given, _ = _given(context, "alike")
        _found(given)[-1].view(-1)[-1] = bad
        options: dict[str, Any] = {"foreach": way == "foreach", "error_if_nonfinite": True}
        text = (
            "clip_grad_norm_ with error_if_nonfinite=True does not raise the documented exception"
        )
        context.raises(RuntimeError, clip_grad_norm_, given.tensors, 1.0, text=text, **options)
        total = float(clip_grad_norm_(given.tensors, 1.0, foreach=way == "foreach"))
        context.check(total != total or total == bad, NORM, expected=bad, found=total, at=way)


@cases("optim.steps")
def no_gradients(context: CaseContext) -> None:
    """Call clip_grad_norm_ for parameters without gradients: the norm must be 0, and no gradients may be created."""
    given = place_parameters(context, ALIKE)
    context.same(float(clip_grad_norm_(given.tensors, 1.0)), 0.0, NORM)
    context.check(not _found(given), "clip_grad_norm_ created gradients", kind=Kind.STATE)
