"""Checks of the clause precision.gradients: gradients in the 16-bit dtypes are compared with the CPU's gradients in
float64, in units in the last place."""

from __future__ import annotations

from itertools import islice

import torch

from conformance.checks.half_precision import FACTOR, ROUNDINGS, ULPS
from conformance.checks.ops.call_reference import Reference
from conformance.checks.ops.calls import Found, Judge, ReferenceParts
from conformance.checks.ops.context import OpContext
from conformance.suites.autograd.first_order import PLAIN
from conformance.suites.autograd.gradient_judge import slack_of, summed
from conformance.suites.autograd.gradients import Gradients, differentiated
from conformance.suites.autograd.higher_order import laid_out_samples
from conformance.suites.autograd.samples import SUM, few_of_torch, written
from opinfo.compare import Wrong, raised
from opinfo.samples import Traits

GRADIENTS = "precision.gradients"

DTYPES = frozenset({"bfloat16", "float16"})
#: The ops that plan quick checks, and the dtype; larger plans check these in it as well.
QUICK = {
    "bmm": "bfloat16",
    "cumsum": "bfloat16",
    "index_select": "float16",
    "mean": "float16",
    "mul": "float16",
    "nn.functional.batch_norm": "float16",
    "nn.functional.conv2d": "bfloat16",
    "nn.functional.embedding": "bfloat16",
    "nn.functional.layer_norm": "bfloat16",
    "nn.functional.scaled_dot_product_attention": "float16",
    "nn.functional.softplus": "bfloat16",
    "softmax": "bfloat16",
}

#: Number of samples per op and dtype; pairs of (layout of the inputs, layout of the cotangents).
_SAMPLES = 2
#: Number of handwritten samples besides.
_WRITTEN = 2
_PAIRS = (
    (PLAIN, PLAIN),
    ("contiguous+step_inner+offset", "transposed"),
    ("channels_last", "channels_last"),
    (PLAIN, SUM),
)


def applies(t: Traits) -> bool:
    """Return True if torch's op database declares a gradient for the op in this 16-bit dtype, and the gradient is
    unique."""
    return (
        t.gradient_is_unique
        and t.dense
        and t.dtype in DTYPES
        and t.dtype in t.subject.gradient_dtypes
    )


def half_precision(ctx: OpContext) -> None:
    """Check the gradients of a few samples, in several layouts of inputs and cotangents. Handwritten samples are among them:
    libraries have kernels of their own for their sizes."""
    with ctx.running(GRADIENTS):
        samples = few_of_torch(ctx, _SAMPLES)
        samples += islice(written(ctx), _WRITTEN)
        for known, laid, layout, name in laid_out_samples(ctx, _PAIRS, len(samples), samples):
            places = known.places
            given = (places, known.cotangents(layout, laid.geometries))
            parts = known.parts(laid, differentiated, given)
            parts["slack"] = known.bound(laid, given, ROUNDINGS[ctx.dtype], FACTOR)
            reference = Reference(
                ctx,
                laid,
                **parts,
                places=tuple(places),
                kinds=[laid.sample.tensors[place].dtype for place in places],
                subjects=[f"the gradient of input {place}" for place in places],
                dtype=ctx.dtype,
                bound=ULPS[ctx.dtype],
            )
            judges: dict[str, Judge] = {GRADIENTS: judge_rounded_gradients}
            ctx.judge(judges, differentiated, given, reference, layout=name, check="gradient")


def judge_rounded_gradients(evidence: Gradients, reference: ReferenceParts) -> Found:
    """Check that each gradient differs from the gradient in float64 by at most the bound, in units in the last place of
    the largest element, or by at most the change that roundings of inputs and cotangents make. A gradient that eager
    CPU computes with the same error is torch's fault, and not the device's."""
    if evidence.unjudged is not None:
        return
    alike = reference.alike
    if evidence.raised is not None:
        refused = alike is not None and alike.raised is not None
        expected = "gradients, because the CPU computes gradients for the same call"
        yield None if refused else raised(evidence.raised, expected)
        return
    for place, (got, want) in enumerate(zip(evidence.read, reference.wants)):
        if got is None or want is None:
            yield _of_none(got, want, reference, place)
            continue
        along = reference.shared.get(place)
        got, want = summed(got, along), summed(want.to_dense(), along)
        assert got is not None
        assert want is not None
        subject, dtype = reference.subjects[place], reference.kinds[place]
        if got.shape != want.shape:
            yield Wrong("shape", tuple(want.shape), tuple(got.shape), subject)
            continue
        if got.dtype != dtype:
            yield Wrong("dtype", dtype, got.dtype, subject)
            continue
        wrong = off_by_roundings(got, want, reference, place)
        if wrong is not None and alike is not None and alike.read:
            same = summed(alike.read[place], along)
            if same is not None and off_by_roundings(same, want, reference, place) is not None:
                wrong = wrong if _further(got, same, want, reference.dtype) else None
        yield wrong.about(subject) if wrong is not None else None


def _of_none(
    got: torch.Tensor | None, want: torch.Tensor | None, reference: ReferenceParts, place: int
) -> Wrong | None:
    """Return a failure if one of two gradients is None and the other is not zero."""
    other = want if got is None else got
    if other is None or not bool(other.to_dense().any()):
        return None
    none, given = "None, which is zeros", "elements that are not 0"
    expected, found = (given, none) if got is None else (none, given)
    return Wrong("values", expected, found, reference.subjects[place])


def unit_of(want: torch.Tensor, dtype: str) -> float:
    """Return the unit in the last place of the largest finite element of a gradient that the dtype can hold."""
    form = torch.finfo(getattr(torch, dtype))
    sizes = want.abs()[want.isfinite() & (want.abs() <= form.max)]
    return max(float(sizes.max()) if sizes.numel() else 0.0, form.tiny) * form.eps


def off_by_roundings(
    got: torch.Tensor, want: torch.Tensor, reference: ReferenceParts, place: int
) -> Wrong | None:
    """Return a failure if elements of ``got`` differ from ``want`` (float64) by more than the bound. Elements that are not
    finite in float64, or too large for the dtype, are skipped."""
    form = torch.finfo(getattr(torch, reference.dtype))
    unit = unit_of(want, reference.dtype)
    judged = want.isfinite() & (want.abs() < form.max / 2)
    # A narrower input may have a wider gradient, and the reverse: parameters in float32 of a call in 16 bits.
    off = (got.to(want.dtype) - want).abs().nan_to_num(nan=torch.inf).masked_fill(~judged, 0.0)
    if not off.numel() or float(off.max()) <= reference.bound * unit:
        return None
    slack = slack_of(reference, place)
    allowed = torch.full_like(off, reference.bound * unit)
    if slack is not None:
        allowed = allowed + slack.nan_to_num(0.0, 0.0, 0.0)
    if bool((off <= allowed).all()):
        return None
    excess = off - allowed
    first = tuple((excess == excess.max()).nonzero()[0].tolist())
    return Wrong(
        "precision",
        f"{want[first].item()!r} within {float(allowed[first]) / unit:.3g} ulps of the largest element",
        f"{got[first].item()!r}, off by {float(off[first]) / unit:.4g} ulps",
        count=int((off > allowed).sum()),
        total=off.numel(),
        first=first,
    )


def _further(got: torch.Tensor, same: torch.Tensor, want: torch.Tensor, dtype: str) -> bool:
    """Return True if elements of ``got`` are further from ``want`` than those of the CPU's gradient ``same``, by more than
    one unit in the last place of the largest element."""
    unit = unit_of(want, dtype)
    mine, cpus = (
        (each.to(want.dtype) - want).abs().nan_to_num(0.0, 0.0, 0.0) for each in (got, same)
    )
    lost = ~got.isfinite() & same.isfinite() & want.isfinite()
    return bool((mine > cpus + unit).any() or lost.any())
