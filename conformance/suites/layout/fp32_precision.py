"""Checks of the clause layout.fp32_precision: float32 matrix products must be computed in the precision of float32, not
of TF32 or bfloat16."""

from __future__ import annotations

from conformance.checks.ops.call_reference import Reference
from conformance.checks.ops.calls import Found, ReferenceParts
from conformance.checks.ops.context import OpContext
from conformance.checks.ops.evidence import Evidence, called
from conformance.checks.ops.roundings import doubled
from opinfo.compare import Wrong, raised, tensors_of

PRECISION = "layout.fp32_precision"

#: Largest accepted relative error (Frobenius norm). float32 arithmetic gives about 1e-7, TF32 3e-4, bfloat16 3e-3.
FLOAT32_LEVEL = 1e-5


def precision(ctx: OpContext) -> None:
    """Compare the result of each sample with the CPU's result in float64, while
    ``torch.set_float32_matmul_precision("highest")`` is in effect."""
    with ctx.running(PRECISION):
        for sample in ctx.common:
            laid = ctx.laid_contiguous(sample)
            wide = ctx.answer_for(sample, doubled, mutates=True)
            if wide.value().raises is not None or ctx.expected(laid).raises is not None:
                continue
            reference, judges = Reference(ctx, laid, wide=wide), {PRECISION: judge_precision}
            ctx.judge(judges, called, (), reference, layout="highest")


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
        norm = float(want.norm())
        error = float((got.double() - want).norm()) / norm if norm else float(got.double().norm())
        if error <= FLOAT32_LEVEL:
            yield None
            continue
        expected = f"a relative error of at most {FLOAT32_LEVEL:g} against float64"
        yield Wrong("precision", expected, f"{error:.3g}", error=error)
