"""Checks of the clause precision.budget: the errors of elementwise functions must not exceed the errors recorded in the
device's folder."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from conformance.checks.ops import standalone_checks
from conformance.checks.ops.context import OpContext
from conformance.suites.precision.bounds import is_exact, limit_of, operands_of
from conformance.suites.precision.elementwise import correctly_rounded, variants
from conformance.suites.precision.ulps import FORMATS
from devices.descriptor import Descriptor
from devices.precision import record_of
from opinfo.compare import Measured, Wrong
from opinfo.samples import Traits

BUDGET = "precision.budget"


def applies(traits: Traits) -> bool:
    """Return True if the op is an elementwise function whose results are rounded, and the dtype is float32, bfloat16 or
    float16. Only such functions have a recorded maximum error."""
    measured = operands_of(traits.op, traits.ufunc) and not is_exact(traits.op)
    return traits.dtype in FORMATS and bool(measured)


def not_on_record(descriptor: Descriptor, op: str, source: object = None) -> str:
    """Return the reason why no maximum error is recorded for an op on a device; an empty string if one is recorded."""
    if op in record_of(descriptor.folder).ops:
        return ""
    return "by declaration: no error is recorded for the op; to record it, run conform precision update"


def budget(ctx: OpContext) -> None:
    """Measure the largest error of the function under test and compare it with the recorded maximum. If no maximum is
    recorded for the dtype, the bound of precision.ulp is used instead."""
    kept = record_of(ctx.device.descriptor.folder).of(ctx.subject.id, ctx.dtype)
    limit = limit_of(ctx.subject.id, ctx.dtype)
    if ctx.dtype in ctx.device.descriptor.flushes_subnormals:
        limit["flushes"] = True
    operands = operands_of(ctx.subject.id, ctx.traits.ufunc)
    with ctx.running(BUDGET):
        for number, (args, kwargs) in enumerate(variants(ctx)):
            given: dict[str, Any] = {"args": args, "kwargs": kwargs, "operands": operands}
            given |= {"limit": limit, "kept": limit["ulps"] if kept is None else kept}
            standalone_checks.run(ctx, BUDGET, "", as_on_record, number, dtype=ctx.dtype, **given)


def as_on_record(
    op: Callable[..., Any], move: Any, back: Any, *, kept: float, **given: Any
) -> Measured:
    """Check that the largest error does not exceed ``kept``, the recorded maximum in ulps. An error beyond the bound of
    precision.ulp is not reported again, because precision.ulp reports it."""
    found = correctly_rounded(op, move, back, **given)
    if found.wrong is not None or found.ulps <= kept + 1e-3:
        return Measured(found.ulps, found.at)
    expected = f"an error of at most {kept:g} ulps, the recorded maximum"
    return Measured(
        found.ulps,
        found.at,
        Wrong("precision", expected, f"{found.ulps:.4f} ulps", f"at {found.at}"),
    )
