"""Checks of the clause layout.fp32_precision: float32 matrix products must be computed in the precision that
``torch.set_float32_matmul_precision`` asks for, not in that of a shorter internal format."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from conformance.checks.ops.call_reference import Reference
from conformance.checks.ops.calls import Found, Invocation, Judge, ReferenceParts
from conformance.checks.ops.context import OpContext
from conformance.checks.ops.evidence import Evidence, called
from conformance.checks.ops.roundings import doubled
from opinfo.compare import Wrong, raised, tensors_of

PRECISION = "layout.fp32_precision"

#: Largest accepted relative error (Frobenius norm) at "highest". float32 arithmetic gives about 1e-7, TF32 3e-4, bfloat16 3e-3.
FLOAT32_LEVEL = 1e-5

#: The largest relative error of a product of two float32 numbers whose last 13 bits are cut off, as in TF32.
TF32_PRODUCT = 2.0**-9


def precision(ctx: OpContext) -> None:
    """Compare the result of each sample with the CPU's result in float64: at matmul precision "highest", at "high", and
    at "highest" after a call at "high"."""
    asked: tuple[tuple[str, Callable[[Invocation], Evidence], Judge], ...] = (
        ("highest", called, judge_precision),
        ("high", called_at_high, judge_high_precision),
        ("highest again", called_after_high, judge_precision),
    )
    with ctx.running(PRECISION):
        for sample in ctx.common:
            laid = ctx.laid_contiguous(sample)
            wide = ctx.answer_for(sample, doubled, mutates=True)
            if wide.value().raises is not None or ctx.expected(laid).raises is not None:
                continue
            sizes = ctx.answer_for(sample, magnitudes, mutates=True)
            chain = "fp32_precision.chains" in ctx.traits.families
            factors = max(1, len(sample.tensors) - 1) if chain else 1
            reference = Reference(ctx, laid, wide=wide, sizes=sizes, factors=factors)
            for name, procedure, judge in asked:
                found = ctx.judge({PRECISION: judge}, procedure, (), reference, layout=name)
                if found is not None and found.raised is not None:
                    break


def magnitudes(values: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Return the given tensors, with floating-point ones converted to float64 and without their signs."""
    return [each.double().abs() if each.is_floating_point() else each for each in values]


def called_at_high(call: Invocation) -> Evidence:
    """Make the call at float32 matmul precision "high"."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high")
    try:
        return called(call)
    finally:
        torch.set_float32_matmul_precision(before)


def called_after_high(call: Invocation) -> Evidence:
    """Make the call at float32 matmul precision "high", and then at the precision that was set before. Return the
    evidence of the second call."""
    called_at_high(call)
    return called(call)


def judge_precision(evidence: Evidence, reference: ReferenceParts) -> Found:
    """Check that the relative error of each floating-point output is at most ``FLOAT32_LEVEL``. The reference is the
    result in float64."""
    if evidence.raised is not None:
        if isinstance(evidence.raised, NotImplementedError):
            yield raised(evidence.raised)
        return  # layout.values judges other exceptions
    for got, want in zip(tensors_of(evidence.read), tensors_of(reference.wide.result)):
        if not want.is_floating_point() or not want.isfinite().all():
            continue  # layout.values judges what is not finite
        if got.shape != want.shape:
            continue  # layout.values judges that, too
        norm = float(want.norm())
        error = float((got.double() - want).norm()) / norm if norm else float(got.double().norm())
        if error <= FLOAT32_LEVEL:
            yield None
            continue
        expected = f"a relative error of at most {FLOAT32_LEVEL:g} against float64"
        yield Wrong("precision", expected, f"{error:.3g}", error=error)


def judge_high_precision(evidence: Evidence, reference: ReferenceParts) -> Found:
    """Check that each element of the output is as close to the result in float64 as with operands that are cut off to
    TF32: a product of two numbers may be off by ``TF32_PRODUCT`` of its size, and one of more numbers by
    ``reference.factors`` times as much. ``reference.sizes`` holds the sums of the sizes of the products, which are the result
    for operands without signs."""
    if evidence.raised is not None:
        yield raised(evidence.raised, 'a result, because the call has one at "highest"')
        return
    outputs = zip(*map(tensors_of, (evidence.read, reference.wide.result, reference.sizes.result)))
    for got, want, size in outputs:
        if not want.is_floating_point() or not (want.isfinite() & size.isfinite()).all():
            continue  # layout.values judges what is not finite
        if got.shape != want.shape:
            yield Wrong("shape", f"shape {tuple(want.shape)}", tuple(got.shape))
            continue
        error = (got.double() - want).abs()
        accepted = error <= TF32_PRODUCT * reference.factors * size  # False for NaN
        if bool(accepted.all()):
            yield None
            continue
        share = torch.where(accepted, 0.0, (error / (TF32_PRODUCT * size)).nan_to_num(torch.inf))
        place, worst = share.argmax(), float(share.max())
        expected = f"{want.flatten()[place]:.9g}, to the precision of TF32"
        found = f"{got.flatten()[place]:.9g}, which is off by {worst:.3g} times the error of TF32"
        yield Wrong("precision", expected, found, error=worst)
