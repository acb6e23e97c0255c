"""The checks of compile.eager_equals_compiled: each op is compiled, and its results and gradients are compared with those
of eager execution on the same device."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

from conformance.checks.cells import CellRecord
from conformance.checks.ops.call_reference import Reference
from conformance.checks.ops.calls import Laid
from conformance.checks.ops.context import OpContext
from conformance.checks.ops.failures import failed
from conformance.checks.ops.modes import Mode
from conformance.suites.compile.calls import STEPPED, laid_for, lead_first, places_of
from conformance.suites.compile.compiled_calls import compared, compared_in_turn, compiled_afresh
from conformance.suites.compile.compiled_judge import judge_compiled
from conformance.suites.compile.together import Outcome, Part, compile_together
from opinfo.samples import Sample, Traits

CLAUSE = "compile.eager_equals_compiled"
#: The variants of a cell: compiled for shapes that may change, and by the device's own compiler.
DYNAMIC, INDUCTOR = "dynamic", "inductor"
#: The backend that changes nothing but what the compiler itself does: it executes the traced graphs eagerly.
_EAGER_BACKEND = "aot_eager"

DTYPES = frozenset({"float32", "complex64"})
#: Ops with one of these families have no values, or other values each time.
_DRAWN = frozenset({"values.free", "values.drawn"})
_PLAIN = "contiguous"
#: Layouts of the in-place variant's inputs.
_IN_PLACE = frozenset({_PLAIN, "transposed"})
_IN_PLACE_QUICK = frozenset({_PLAIN})


def applies(t: Traits) -> bool:
    """Return True for ops that return strided tensors whose shapes do not depend on values, and that the compiler can
    trace."""
    dtypes = t.subject.dtypes
    wanted = t.dtype in DTYPES or (t.dtype == "int64" and "float32" not in dtypes)
    return (
        wanted
        and t.returns_strided
        and t.dense
        and not t.subject.unsafe_in_graphs
        and not any(each.startswith("compile.untraced") for each in t.families)
    )


def check(ctx: OpContext) -> None:
    """Compile the op: calls of a few samples in several layouts and forms in one graph or, in the variant ``dynamic``,
    one after another by one function."""
    backend = INDUCTOR if ctx.variant == INDUCTOR else _EAGER_BACKEND
    with ctx.running(CLAUSE) as record:
        if backend not in (_EAGER_BACKEND, *ctx.device.descriptor.capabilities):
            record.pass_over(f"the descriptor does not declare {backend}")
        elif ctx.variant == DYNAMIC:
            _dynamic(ctx, backend)
        else:
            _static(ctx, record, backend)


def _static(ctx: OpContext, record: CellRecord, backend: str) -> None:
    parts = list(_parts(ctx))
    outcome = Outcome(parts)
    if len(parts) > 1 and not ctx.traits.families & _DRAWN:  # one seed for all of them
        reference = partial(_reference, ctx, backend=backend)
        outcome = compile_together(ctx, record, parts, backend, judge_compiled, reference)
    before, mode = record.failed, Mode("compiled", compiled_afresh, {"backend": backend})
    for part in outcome.alone:
        ctx.judge(
            {CLAUSE: judge_compiled},
            compared,
            (part.places, bool(part.laid.inputs)),
            _reference(ctx, part.laid, backend),
            function=part.function,
            layout=part.name,
            check="inputs",
            mode=mode,
        )
    if outcome.wrong is not None and record.failed == before:
        wrong = outcome.wrong.about("several calls in one graph")
        record.fail(failed(wrong, outcome.at or parts[0].name, parts[0].laid.sample.numel, None))


def _parts(ctx: OpContext) -> Iterator[Part]:
    """Yield the calls that are compiled: the first sample in its layouts, and in place; the others in one layout."""
    function, inplace = ctx.subject.function, ctx.subject.inplace
    for number, sample in enumerate(lead_first(ctx)[: None if ctx.more else 1]):
        places = places_of(ctx, sample)
        if not sample.tensors:
            yield Part(_PLAIN, function, ctx.laid_contiguous(sample), places)
            continue
        for laid in laid_for(ctx, sample, lead=not number):
            yield Part(laid.case.id, function, laid, places)
        if inplace is not None and not number and not ctx.subject.restrides_in_place:
            for laid in ctx.laid_out(sample, _IN_PLACE if ctx.more else _IN_PLACE_QUICK):
                yield Part(f"inplace={laid.case.id}", inplace, laid, ())


def _dynamic(ctx: OpContext, backend: str) -> None:
    mode = Mode("compiled", compiled_afresh, {"backend": backend, "dynamic": True})
    samples = [each for each in lead_first(ctx) if each.tensors]
    if not samples:
        return
    sample = samples[0]
    laid = ctx.laid_contiguous(sample)
    others = [_call(each) for each in ctx.laid_out(sample, frozenset({"transposed", STEPPED}))][:1]
    others += [_call(ctx.laid_contiguous(each)) for each in _alike(sample, samples)[:1]]
    given = (places_of(ctx, sample), tuple(others))
    reference = _reference(ctx, laid, backend)
    ctx.judge(
        {CLAUSE: judge_compiled}, compared_in_turn, given, reference, layout="contiguous", mode=mode
    )


def _call(laid: Laid) -> tuple[Any, ...]:
    call = laid.sample.call
    return call.args, call.kwargs, laid.geometries


def _alike(sample: Sample, samples: list[Sample]) -> list[Sample]:
    """Return the samples with other shapes, those first whose other arguments and ranks are the same."""
    shapes = [each.shape for each in sample.tensors]
    ranks = [each.dim() for each in sample.tensors]
    others = [each for each in samples if [t.shape for t in each.tensors] != shapes]
    return sorted(
        others,
        key=lambda each: (
            [t.dim() for t in each.tensors] != ranks,
            each.call.form != sample.call.form,
            not each.numel,
            each.index,
        ),
    )


def _reference(ctx: OpContext, laid: Laid, backend: str = _EAGER_BACKEND) -> Reference:
    families = ctx.traits.families
    drawn = bool(families & _DRAWN) and backend != _EAGER_BACKEND
    return Reference(ctx, laid, unspecified=drawn or "values.uninitialized" in families)
