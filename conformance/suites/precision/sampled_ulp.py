"""Checks of ops that are not elementwise for the clause precision.ulp: results on samples are compared with the CPU's
result in float64."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TypeVar

import torch

from conformance.checks.ops.call_reference import Part, Reference
from conformance.checks.ops.calls import Found, Laid, ReferenceParts
from conformance.checks.ops.context import OpContext
from conformance.checks.ops.evidence import Evidence, called
from conformance.checks.ops.roundings import doubled
from conformance.suites.precision.bounds import on_samples
from conformance.suites.precision.elementwise import ULP, variants
from conformance.suites.precision.ulps import FORMATS
from opinfo.compare import Wrong, in_order_of, raised, tensors_of
from opinfo.samples import ORDINARY, Sample, choose

#: Number of samples that are compared for each op and dtype.
_SAMPLES = 4


_WIDE = (torch.float64, torch.complex128)


def on_samples_too(ctx: OpContext) -> None:
    """Check that the results on up to four samples are within the op's bound of the CPU's results in float64.
    Elementwise functions are skipped, because :func:`~conformance.suites.precision.elementwise.elementwise` checks
    them."""
    if variants(ctx):
        return
    bound = on_samples(ctx.subject.id, ctx.dtype)
    with ctx.running(ULP) as record:
        for laid, wide in mixed(_with_result(ctx), _SAMPLES // 2):
            reference = Reference(ctx, laid, wide=wide, dtype=ctx.dtype, bound=bound)
            ctx.judge({ULP: judge_rounded}, called, (), reference, layout="precise")
            if len(record.samples) == _SAMPLES:
                break


def _with_result(ctx: OpContext) -> Iterator[tuple[tuple[Laid, Part], bool]]:
    """Yield a tuple ((sample in contiguous layout, float64 result), True if the result has several elements) for each
    sample for which the CPU computes a result both in its own dtype and in float64."""
    for sample in differing(ctx.common, _SAMPLES):
        laid = ctx.laid_contiguous(sample)
        wide = ctx.answer_for(sample, doubled, mutates=True)
        answer = wide.value()
        if answer.raises is not None or ctx.expected(laid).raises is not None:
            continue
        sizes = [each.numel() for each in tensors_of(answer.result) if each.dtype in _WIDE]
        if any(sizes):
            yield (laid, wide), max(sizes) > 1


def differing(samples: list[Sample], count: int) -> list[Sample]:
    """Return the samples in a new order: first the ``count`` samples that differ most from each other, then all other
    samples. Within both groups, larger samples come first, except that very large samples come last."""
    first = {sample.index for sample in choose(samples, count)}
    return sorted(samples, key=lambda s: (s.index not in first, s.numel > ORDINARY, -s.numel))


_T = TypeVar("_T")


def mixed(found: Iterable[tuple[_T, bool]], single: int) -> Iterator[_T]:
    """Yield the items of ``found`` (each with a flag: its result has several elements) in a new order: those whose
    result has several elements, ``single`` of those whose result has one element, and then all remaining items.

    A result of one element cannot show that elements are in the wrong position, and most of a reduction's first
    samples have such results.
    """
    later = []
    for each, several in found:
        if several or single > 0:
            single -= not several
            yield each
        else:
            later.append(each)
    yield from later


def judge_rounded(evidence: Evidence, reference: ReferenceParts) -> Found:
    """Check that each floating-point output differs from the float64 result by at most the op's bound, in ulps of the
    output's largest element."""
    if evidence.raised is not None:
        if isinstance(evidence.raised, NotImplementedError):
            yield raised(evidence.raised)
        return  # layout.values judges other exceptions
    if evidence.unjudged is not None:
        return
    wants, process = tensors_of(reference.wide.result), reference.process
    gots = tensors_of(evidence.read)
    if process is not None:
        wants, gots = tensors_of(process(reference.wide.result)), tensors_of(process(evidence.read))
    if reference.unordered:
        gots = in_order_of(gots, wants)
    for place, (got, want) in enumerate(zip(gots, wants)):
        if not want.numel() or not (want.is_floating_point() or want.is_complex()):
            continue
        if got.shape != want.shape or got.layout != torch.strided:
            continue  # layout.values judges the shapes
        yield off_by(got, want, reference.dtype, reference.bound, f"output {place}")


def off_by(
    got: torch.Tensor, want: torch.Tensor, dtype: str, bound: float, subject: str
) -> Wrong | None:
    """Return a failure if elements of ``got`` differ from ``want`` by more than ``bound`` ulps of the largest finite
    element, otherwise None. Elements whose exact value is not finite, or too large for the dtype, are skipped, because
    layout.values judges them."""
    digits, lowest, highest = FORMATS[dtype]
    wide = want.to(torch.complex128) if want.is_complex() else want.double()
    mask = wide.isfinite() & (wide.abs() < 2.0**highest)
    if not mask.any():
        return None
    sizes = wide.abs()[mask]
    unit = max(float(sizes.max()), 2.0**lowest) * 2.0 ** (1 - digits)
    errors = (got.to(wide.dtype) - wide).abs().nan_to_num(nan=torch.inf) / unit
    errors.masked_fill_(~mask, 0.0)
    worst = float(errors.max())
    if worst <= bound:
        return None
    first = tuple((errors == errors.max()).nonzero()[0].tolist())
    return Wrong(
        "precision",
        f"{wide[first].item()!r} within {bound:g} ulps of the largest element",
        f"{got[first].item()!r}, off by {worst:.4g} ulps",
        subject,
        count=int((errors > bound).sum()),
        total=errors.numel(),
        first=first,
    )
