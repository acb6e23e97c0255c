"""optim.steps: gradients are clipped by their norm and by value, over dtypes, layouts and indices."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch.nn.utils import clip_grad_norm_, clip_grad_value_

from conformance.checks.cases.cases import Cases
from conformance.checks.cases.context import Context
from conformance.suites.optim.lists import compare
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
    placed,
)
from devices.failure import Kind

cases = Cases(Kind.VALUES)

LISTS: dict[str, tuple[Parameter, ...]] = {
    "alike": ALIKE,
    "large": LARGE,
    "many": MANY,
    "dtypes": tuple(each for each in DTYPES if each.dtype != "float64"),
    "others": tuple(each for each in OTHERS if each.grad != "expanded"),
}
CLIPPED = "gradients are clipped to what they are on the CPU"
NORM = "the norm of all gradients is what it is on the CPU"


def _given(
    context: Context, which: str, indices: Sequence[int] = (0,)
) -> tuple[Placed, list[torch.Tensor]]:
    """Parameters on the device with gradients, and copies of the gradients on the CPU."""
    parameters = LISTS[which]
    if which == "dtypes":
        declared = context.descriptor.dtypes
        parameters = tuple(each for each in parameters if each.dtype in declared)
    found = placed(context, parameters, indices)
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
def norm(context: Context, which: str, way: str) -> None:
    """clip_grad_norm_ returns the norm of all gradients, and multiplies them by the same factor as the CPU does."""
    must_be_taken(context, way)
    for kind in (2.0, 1.0, float("inf"), 3.0):
        if kind == float("inf") and which == "many":
            continue  # a tensor without elements has no largest one
        for limit in (0.5, 1e6):
            given, host = _given(context, which)
            at = f"norm {kind}, at most {limit}, {which}, {way}"
            want = _norm_of(host, kind)
            total = clip_grad_norm_(given.tensors, limit, kind, foreach=way == "foreach")
            context.same(tuple(total.shape), (), NORM, Kind.SHAPE, at)
            _near(context, total, want, at, 0.01 if which == "dtypes" else 2e-4)
            factor = min(1.0, limit / (float(total) + 1e-6))
            scaled = [(each.double() * factor).to(each.dtype) for each in host]
            compare(context, _found(given), scaled, CLIPPED, at)


def _near(context: Context, found: torch.Tensor, want: torch.Tensor, at: str, part: float) -> None:
    """In float32 the sum of 65,600 powers, one after another, loses a ten-thousandth."""
    near = abs(float(found) - float(want)) <= part * float(want)
    context.check(near, NORM, expected=float(want), found=float(found), at=at)


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
def value(context: Context, which: str, way: str) -> None:
    """clip_grad_value_ leaves no element of a gradient beyond the value."""
    must_be_taken(context, way)
    given, host = _given(context, which)
    clip_grad_value_(given.tensors, 0.75, foreach=way == "foreach")
    compare(
        context,
        _found(given),
        [each.clamp(-0.75, 0.75) for each in host],
        CLIPPED,
        f"{which}, {way}",
    )


@cases(
    "optim.steps",
    requires={"multi_device"},
    indices=2,
    over={f"clip_norm_indices_{way}": (way,) for way in ("single", "foreach")},
)
def indices(context: Context, way: str) -> None:
    """Gradients of several indices have one norm."""
    must_be_taken(context, way)
    given, host = _given(context, "alike", (0, 1))
    want = _norm_of(host, 2.0)
    total = clip_grad_norm_(given.tensors, 0.5, foreach=way == "foreach")
    _near(context, total, want, way, 1e-5)
    factor = 0.5 / (float(total) + 1e-6)
    compare(context, _found(given), [each.float() * factor for each in host], CLIPPED, way)


@cases("optim.steps", over={f"clip_norm_not_finite_{way}": (way,) for way in ("single", "foreach")})
def not_finite(context: Context, way: str) -> None:
    """A norm that is NaN or infinite is returned; it is an error where the caller asks for one."""
    must_be_taken(context, way)
    for bad in (float("nan"), float("inf")):
        given, _ = _given(context, "alike")
        _found(given)[-1].view(-1)[-1] = bad
        options: dict[str, Any] = {"foreach": way == "foreach", "error_if_nonfinite": True}
        text = "a norm that is not finite is an error where one is asked for"
        context.raises(RuntimeError, clip_grad_norm_, given.tensors, 1.0, text=text, **options)
        total = float(clip_grad_norm_(given.tensors, 1.0, foreach=way == "foreach"))
        context.check(total != total or total == bad, NORM, expected=bad, found=total, at=way)


@cases("optim.steps")
def no_gradients(context: Context) -> None:
    """Without gradients the norm is 0, and none are made."""
    given = placed(context, ALIKE)
    context.same(float(clip_grad_norm_(given.tensors, 1.0)), 0.0, NORM)
    context.check(not _found(given), "clipping makes no gradients", kind=Kind.STATE)
