"""Checks of unary and binary functions for the clause precision.ulp. The functions are called on every value of a
16-bit dtype, or on 2^16 values of float32, and compared with the CPU's result in float64."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from conformance.checks.ops import standalone_checks
from conformance.checks.ops.context import OpContext
from conformance.checks.ops.script import NotApplicable, NotReturned
from conformance.suites.precision.bounds import is_exact, limit_of, operands_of
from conformance.suites.precision.ulps import (
    FORMATS,
    allowed,
    flushed,
    inputs,
    of_the_cpu,
    operand_values,
    ulps,
)
from opinfo.compare import Measured, Wrong, replace_tensors, tensors_of
from opinfo.samples import Sample

ULP = "precision.ulp"

#: Largest number of calls per function. They differ in the arguments other than the operands.
_VARIANTS = 3


def elementwise(ctx: OpContext) -> None:
    """Call an elementwise function on values from the whole range of the dtype, once for each set of its other
    arguments. The error of each element must be within the function's bound."""
    found = variants(ctx)
    if not found:
        return
    more = {}
    if ctx.dtype in ctx.device.descriptor.flushes_subnormals:
        more["flushes"] = True
    if ctx.subject.as_precise_as_cpu:
        more["as_cpu"] = True
    operands = operands_of(ctx.subject.id, ctx.traits.ufunc)
    check = same_bits if is_exact(ctx.subject.id) else correctly_rounded
    with ctx.running(ULP):
        for number, (args, kwargs) in enumerate(found):
            limit = limit_of(ctx.subject.id, ctx.dtype, alone=not args and not kwargs) | more
            given: dict[str, Any] = {"args": args, "kwargs": kwargs, "operands": operands}
            standalone_checks.run(
                ctx, ULP, "", check, number, dtype=ctx.dtype, limit=limit, **given
            )


def variants(ctx: OpContext) -> list[tuple[tuple[Any, ...], dict[str, Any]]]:
    """Return up to three different (args, kwargs) that follow the operands in the op's samples. A sample is used
    only if all its tensors are operands and have the dtype, so the list is empty for an op that is not elementwise."""
    count = operands_of(ctx.subject.id, ctx.traits.ufunc) if ctx.dtype in FORMATS else 0
    found = {repr(more): more for each in ctx.common if (more := _others(each, count, ctx.dtype))}
    return list(found.values())[:_VARIANTS]


def _others(
    sample: Sample, count: int, dtype: str
) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
    call = sample.call
    alone = count and len(call.tensors) == count
    if alone and all(
        isinstance(t, torch.Tensor) and t.dtype == getattr(torch, dtype) for t in call.args[:count]
    ):
        return call.args[count:], call.kwargs
    return None


def correctly_rounded(
    op: Callable[..., Any],
    move: Any,
    back: Any,
    *,
    dtype: str,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    operands: int,
    limit: dict[str, Any],
) -> Measured:
    """Measure the largest error against the CPU's result in float64, and check that the error of each element is within
    its bound. A result whose dtype differs from the operands' (a comparison, a conversion) is not rounded and must
    equal the CPU's."""
    given = operand_values(dtype, operands, limit.get("within"))
    alike = cpu_result(op, given, args, kwargs)
    got = answered(op, move, back, given, args, kwargs)
    if not isinstance(alike, torch.Tensor) or alike.dtype != given[0].dtype:
        return equal(given, alike, got, dtype, limit)
    want = cpu_result(op, [each.double() for each in given], args, kwargs)
    if want.dtype != torch.float64:
        return equal(given, alike, got, dtype, limit)
    if (wrong := of_another_form(got, alike)) is not None:
        return Measured(0.0, "", wrong)
    errors = ulps(got, want, dtype)
    if limit.get("flushes"):
        zeroed = cpu_result(op, [flushed(each, dtype).double() for each in given], args, kwargs)
        for other in (flushed(want, dtype), zeroed, flushed(zeroed, dtype)):
            errors = torch.minimum(errors, ulps(got, other, dtype))
    errors = errors.masked_fill(~judged(given, limit), 0.0)
    bound = allowed(want, given, dtype, limit)
    if limit.get("as_cpu"):
        bound = of_the_cpu(alike, got, want, given, dtype, bound)
    return beyond(errors, bound, given, got, want, dtype, bound - limit["ulps"])


def same_bits(
    op: Callable[..., Any],
    move: Any,
    back: Any,
    *,
    dtype: str,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    operands: int,
    limit: dict[str, Any],
) -> Measured:
    """Check that each element equals the CPU's result in the same dtype. The function under test rounds nothing."""
    given = [inputs(dtype, seed, limit.get("within")) for seed in range(operands)]
    want = cpu_result(op, given, args, kwargs)
    return equal(given, want, answered(op, move, back, given, args, kwargs), dtype, limit)


def equal(
    given: list[torch.Tensor], want: Any, got: Any, dtype: str, limit: dict[str, Any]
) -> Measured:
    """Check that the outputs ``got`` equal the CPU's outputs ``want``. NaN counts as equal to NaN, and -0.0 as equal
    to 0.0."""
    mask = judged(given, limit)
    for each in given if limit.get("flushes") else []:
        mask &= flushed(each, dtype) == each
    for one, other in zip(tensors_of(got), tensors_of(want)):
        if (wrong := of_another_form(one, other)) is not None:
            return Measured(0.0, "", wrong)
        if one.is_complex():
            one, other = torch.view_as_real(one), torch.view_as_real(other)
        differ = (one != other) & ~(one.isnan() & other.isnan())
        differ = differ.flatten(1).any(1) if differ.dim() > 1 else differ
        errors = torch.where(differ & mask, torch.inf, 0.0).double()
        if errors.any():
            return beyond(errors, 0.0, given, one, other, dtype)
    return Measured(0.0, "")


def of_another_form(got: torch.Tensor, want: torch.Tensor) -> Wrong | None:
    """Return a failure if the dtype or shape of ``got`` differs from that of the CPU's result ``want``, otherwise
    None."""
    if got.dtype != want.dtype:
        return Wrong("dtype", want.dtype, got.dtype)
    if got.shape != want.shape:
        return Wrong("shape", f"shape {tuple(want.shape)}", tuple(got.shape))
    return None


def cpu_result(
    op: Callable[..., Any], given: list[torch.Tensor], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """Return the CPU's result for copies of the operands. Raises NotApplicable if the CPU raises."""
    try:
        return op(*(each.clone() for each in given), *args, **kwargs)
    except Exception as error:
        raise NotApplicable("the CPU raises an exception for these operands") from error


def answered(
    op: Callable[..., Any],
    move: Any,
    back: Any,
    given: list[torch.Tensor],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> Any:
    """Return the device's result, copied to the CPU. Raises NotReturned if the call raises, because other clauses judge
    exceptions."""
    tensors = [move(each.clone()) for each in given]
    try:
        return replace_tensors(op(*tensors, *args, **kwargs), back)
    except NotImplementedError:
        raise
    except Exception as error:
        raise NotReturned("the call raised an exception; other clauses check exceptions") from error


def judged(given: list[torch.Tensor], limit: dict[str, Any]) -> torch.Tensor:
    """Return a mask of the elements that are judged. Elements with an infinite or NaN operand are judged only if
    ``limit`` contains ``special``, which means that the results for such operands are documented."""
    mask = torch.ones(len(given[0]), dtype=torch.bool)
    for each in given if not limit.get("special") else []:
        mask &= each.isfinite()
    return mask


def beyond(
    errors: torch.Tensor,
    bound: torch.Tensor | float,
    given: list[torch.Tensor],
    got: torch.Tensor,
    want: torch.Tensor,
    dtype: str,
    forgiven: torch.Tensor | float = 0.0,
) -> Measured:
    """Return the largest error, in ulps, together with a failure if the error of an element exceeds ``bound``. The
    returned error does not include ``forgiven``, the part of the bound that comes from absolute errors."""

    def at(place: int) -> str:
        return ", ".join(repr(each[place].item()) for each in given)

    excess = errors - bound - 1e-3  # 1e-3 ulps allow for the error of the float64 result
    measured = (errors - forgiven).clamp(min=0.0)
    place, worst = int(excess.argmax()), int(measured.argmax())
    wrong = None
    if excess[place] > 0:
        limit = float(bound[place]) if isinstance(bound, torch.Tensor) else bound
        nearest = want[place].to(getattr(torch, dtype)).tolist()
        off = f"off by {errors[place].item():.4g} ulps" if limit else "which differs"
        wrong = Wrong(
            "precision",
            f"{nearest!r} within {limit:.4g} ulps" if limit else repr(want[place].tolist()),
            f"{got[place].tolist()!r}, {off}",
            f"at {at(place)}",
            count=int((excess > 0).sum()),
            total=len(errors),
            first=(place,),
        )
    return Measured(float(measured[worst]), at(worst), wrong)
