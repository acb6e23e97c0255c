"""Checks of the clause precision.exact_sums: sums of small integers, which are exact in any order of addition."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import islice

import torch

from conformance.checks.ops.call_reference import Reference
from conformance.checks.ops.calls import Found, ReferenceParts
from conformance.checks.ops.context import OpContext
from conformance.checks.ops.evidence import Evidence, called
from conformance.checks.ops.roundings import doubled
from conformance.suites.precision.bounds import on_samples
from conformance.suites.precision.sampled_ulp import differing, mixed, off_by
from conformance.suites.precision.ulps import FORMATS, ulps
from opinfo.axes.axis_context import Basis
from opinfo.axes.shapes import EXTENT
from opinfo.compare import Wrong, raised, tensors_of
from opinfo.reference import value_answer
from opinfo.samples import Sample

EXACT = "precision.exact_sums"

#: No partial sum exceeds this number. bfloat16 represents every integer up to 256.
LARGEST = 128

#: Per op and dtype: number of torch's samples that are filled, number of samples with a long dimension, and their layouts.
_SAMPLES = 4
_LONG = 3
#: Largest number of elements of a sample that is filled.
_MOST = 2**17
_LAYOUTS = frozenset({"contiguous", "transposed"})
#: First index of the filled samples, which keeps them apart from other samples: buffers are kept by index.
_NUMBERS = 1_000_000
_LONG_NUMBERS, _MORE_NUMBERS, _SUM_NUMBERS = 2_000_000, 3_000_000, 6_000_000
#: Dtypes with so few digits that a sum of some thousand terms shows in which dtype it was accumulated; the number of
#: such samples per op; and how many times larger than the last integer that the dtype counts their results are.
_NARROW = frozenset({"bfloat16", "float16"})
_ACCUMULATED = 2
_TIMES = 2


def exact_sums(ctx: OpContext) -> None:
    """Call the op on samples filled with small integers. The results must be the exact sums."""
    transformed = ctx.subject.id in ctx.device.descriptor.transformed_sums
    bound = on_samples(ctx.subject.id, ctx.dtype) if transformed else 0.0
    with ctx.running(EXACT):
        several: list[Sample] = []
        single: list[Sample] = []
        for filled in islice(mixed(_ordinary(ctx, single, several), _SAMPLES // 2), _SAMPLES):
            _judged(ctx, filled, bound)
        for filled in islice(_long(ctx, _LONG_NUMBERS, ctx.common), _LONG):
            _judged(ctx, filled, bound)
        if single and several:
            for filled in islice(_long(ctx, _MORE_NUMBERS, several), 1):
                _judged(ctx, filled, bound)
        if ctx.dtype in _NARROW:
            for filled in islice(_accumulated(ctx), _ACCUMULATED):
                _judged(ctx, filled, on_samples(ctx.subject.id, ctx.dtype))


def _judged(ctx: OpContext, filled: Sample, bound: float) -> None:
    wide = ctx.answer_for(filled, doubled, mutates=True)
    for laid in ctx.laid_out(filled, _LAYOUTS):
        reference = Reference(ctx, laid, wide=wide, dtype=ctx.dtype, bound=bound)
        ctx.judge({EXACT: judge_exact}, called, (), reference)
    ctx.rebuild(filled)


def _ordinary(
    ctx: OpContext, single: list[Sample], several: list[Sample]
) -> Iterator[tuple[Sample, bool]]:
    """Yield a tuple (sample filled with small integers, True if its result has several elements) for each sample that
    can be filled. The original sample is appended to ``several`` or, if the result is one number, to ``single``."""
    for sample in differing(ctx.common, _SAMPLES):
        found = integers(ctx, sample) if sample.numel <= _MOST else None
        if found is not None:
            filled, largest = found
            (several if largest > 1 else single).append(sample)
            yield filled, largest > 1


def _long(ctx: OpContext, first: int, drawn: list[Sample]) -> Iterator[Sample]:
    """Yield filled samples in which one dimension is longer than 32, than 256, than 1,024 and so on, derived from the
    samples ``drawn``. The indices of the yielded samples start at ``first``."""
    basis = Basis(ctx.subject, ctx.dtype, drawn, ctx.traits.families)
    if EXTENT.applies(basis):
        basis.for_axis(EXTENT.name)
        for number, (base, call) in enumerate(islice(EXTENT.vary(basis), EXTENT.budget)):
            sample = replace(base, index=first + number, call=call, axis=EXTENT.name)
            found = integers(ctx, sample) if sample.numel <= _MOST else None
            if found is not None:
                yield found[0]


def _accumulated(ctx: OpContext) -> Iterator[Sample]:
    """Yield samples filled with integers from 1 to 8 whose sums are larger than any integer that the dtype counts. A
    kernel that accumulates in the dtype stops adding at 256 (bfloat16) or 2,048 (float16)."""
    basis = Basis(ctx.subject, ctx.dtype, ctx.common, ctx.traits.families)
    if not EXTENT.applies(basis):
        return
    basis.for_axis(EXTENT.name)
    for number, (base, call) in enumerate(islice(EXTENT.vary(basis), EXTENT.budget)):
        sample = replace(base, index=_SUM_NUMBERS + number, call=call, axis=EXTENT.name)
        found = counting(ctx, sample) if sample.numel <= _MOST else None
        if found is not None:
            yield found


def counting(ctx: OpContext, sample: Sample) -> Sample | None:
    """Return the sample with its tensors of the cell's dtype filled with random integers from 1 to 8. Returns None
    if the op refuses them, if its results are not integers, or if no result is so large that a kernel that
    accumulates in the dtype would be far off. A call with an index is not used either: ``index_add`` and its like add
    each term to memory, in the dtype of the tensor."""
    kind, (digits, _, highest) = getattr(torch, ctx.dtype), FORMATS[ctx.dtype]
    if any(each.dtype != kind or each.layout != torch.strided for each in sample.tensors):
        return None
    source = torch.Generator().manual_seed(sample.index)
    fills = [torch.randint(1, 9, t.shape, generator=source).to(kind) for t in sample.tensors]
    call = sample.call
    answer = value_answer(ctx.subject.reference, call.on, doubled(fills), mutates=True)
    outputs = [t for t in tensors_of(answer.result) if t.is_floating_point() and t.numel()]
    if answer.raises is not None or not outputs:
        return None
    largest = max(float(each.abs().max()) for each in outputs)
    counted = all(torch.equal(each, each.round()) for each in outputs)
    if not counted or not _TIMES * 2.0**digits < largest < 2.0**highest:
        return None
    args, kwargs = call.bind(fills)
    return Sample(sample.index, type(call)(args, dict(kwargs)), None)


def integers(ctx: OpContext, sample: Sample) -> tuple[Sample, int] | None:
    """Return the sample with its floating-point tensors filled with random integers from -2 to 2, and the number of
    elements of the op's largest output.

    The integers are replaced by 0 step by step until no output exceeds LARGEST when the op is called on their absolute
    values; then no partial sum exceeds LARGEST either. Keyword arguments that are floats are set to 2. Returns None if
    the op refuses the values, if an output stays larger, or if the results are not integers.
    """
    kind, divided = getattr(torch, ctx.dtype), "sums.divided" in ctx.traits.families
    factors = {k: 2 for k, v in sample.call.kwargs.items() if type(v) is float}
    call = type(sample.call)(sample.call.args, {**sample.call.kwargs, **factors})
    for density in (1.0, 0.3, 0.1, 0.03, 0.01, 0.003):
        source = torch.Generator().manual_seed(sample.index)
        fills = []
        for each in sample.tensors:
            if each.dtype == kind and each.layout == torch.strided:
                drawn = torch.randint(-2, 3, each.shape, generator=source)
                kept = torch.rand(each.shape, generator=source) <= density
                each = (drawn * kept).to(kind)
            fills.append(each)
        sizes = [t.abs() if t.dtype == kind else t for t in fills]
        answer = value_answer(ctx.subject.reference, call.on, doubled(sizes), mutates=True)
        outputs = [t for t in tensors_of(answer.result) if t.is_floating_point() and t.numel()]
        if answer.raises is not None or not outputs:
            return None
        largest = max(float(each.abs().max()) for each in outputs)
        if largest == 0 or largest != largest:
            return None
        if not divided and not all(torch.equal(each, each.round()) for each in outputs):
            return None
        if largest <= LARGEST:
            args, kwargs = call.bind(fills)
            filled = Sample(_NUMBERS + sample.index, type(call)(args, dict(kwargs)), None)
            return filled, max(each.numel() for each in outputs)
    return None


def judge_exact(evidence: Evidence, reference: ReferenceParts) -> Found:
    """Check that each output equals the exact sum. If the exact result is not an integer (a mean), an error below 1.5
    ulps is accepted. On a device that declares transformed sums, the error may reach ``reference.bound`` ulps of
    the output's largest element."""
    if evidence.raised is not None:
        if isinstance(evidence.raised, NotImplementedError):
            yield raised(evidence.raised)
        return  # layout.values judges other exceptions
    wants = tensors_of(reference.wide.result)
    for place, (got, want) in enumerate(zip(tensors_of(evidence.read), wants)):
        if got.shape != want.shape or want.dtype != torch.float64 or not want.numel():
            continue  # layout.values judges the shapes
        dtype, subject = reference.dtype, f"output {place}"
        if reference.bound:
            yield off_by(got, want, dtype, reference.bound, subject)
        else:
            yield not_exact(got, want, dtype, subject)


def not_exact(got: torch.Tensor, want: torch.Tensor, dtype: str, subject: str) -> Wrong | None:
    """Return a failure if elements differ from the exact sums, otherwise None."""
    wrong = ulps(got, want, dtype) > torch.where(want == want.round(), 0.0, 1.5)
    if not wrong.any():
        return None
    first = tuple(wrong.nonzero()[0].tolist())
    return Wrong(
        "precision",
        f"{want[first].item()!r}, the sum of small integers",
        repr(got[first].item()),
        subject,
        count=int(wrong.sum()),
        total=wrong.numel(),
        first=first,
    )
