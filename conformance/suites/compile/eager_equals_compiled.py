"""The checks of compile.eager_equals_compiled: each op is compiled, and its results and gradients are compared with those
of eager execution on the same device."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from functools import partial
from typing import Any

import torch

from conformance.checks.behaviour.compiler import AOT_EAGER
from conformance.checks.cases.cases import one_op_in
from conformance.checks.cells import CellRecord
from conformance.checks.ops.call_reference import Reference
from conformance.checks.ops.calls import Laid
from conformance.checks.ops.context import OpContext
from conformance.checks.ops.failures import failed
from conformance.checks.ops.modes import Mode
from conformance.suites.compile.compiled_calls import compared, compared_in_turn, compiled
from conformance.suites.compile.compiled_judge import judge_compiled
from conformance.suites.compile.compiled_samples import (
    COMPILER,
    STEPPED,
    draws,
    laid_for,
    lead_first,
    places_of,
)
from conformance.suites.compile.together import Outcome, Part, compile_together
from opinfo.layouts import CONTIGUOUS
from opinfo.reference import value_answer
from opinfo.samples import Sample, Traits

CLAUSE = "compile.eager_equals_compiled"
#: The variant of a cell that is compiled for shapes that may change.
DYNAMIC = "dynamic"
#: The dtypes in which an op is compiled: the first one that it takes. What a compiler does hardly depends on the dtype.
_DTYPES = ("float32", "complex64", "int64", "bool")
_SHARED = "compile.shared_elements"
_UNTRACED_IN_PLACE = "compile.untraced.inplace"
_UNROLLED = "compile.unrolled"
#: Whether the variant ``dynamic`` calls the op of this name in another layout and with another rank too. The op is traced
#: once more for each, which takes two thirds of the cell's time, and when a compiler traces again hardly depends on the op.
_is_retraced = one_op_in(8)
_PLAIN = "contiguous"
#: Layouts of the in-place variant's inputs.
_IN_PLACE = frozenset({_PLAIN, "transposed"})
_IN_PLACE_QUICK = frozenset({_PLAIN})


def applies(t: Traits) -> bool:
    """Return True for ops that return strided tensors whose shapes do not depend on values, and whose dtype is that of
    the cell. Views are also compiled for complex dtypes, because a view may be lazily conjugated."""
    dtypes = t.subject.dtypes
    wanted = t.dtype == next((each for each in _DTYPES if each in dtypes), "")
    if t.dtype == "complex64" and t.subject.declares_view:
        wanted = True
    return wanted and t.returns_strided and t.dense and not t.subject.unsafe_in_graphs


#: Whether the plan ``quick`` compiles the op of this name. It compiles one op in eight: most compiler bugs do not depend on
#: the op.
in_quick = one_op_in(8)
_is_dynamic_in_core = one_op_in(2)


def in_core(op: str, clauses: Collection[str]) -> bool:
    """Return True if the plan ``core`` has the variant ``dynamic`` of the op: that of one op in two. Symbolic shapes make
    tracing an op twice as dear, and most of what may be wrong with them is the compiler's and not the op's."""
    return _is_dynamic_in_core(op)


def every_op(op: str, clauses: Collection[str]) -> bool:
    """Return True: the plan ``core`` has the variant ``layouts`` of every op."""
    return True


def check(ctx: OpContext) -> None:
    """Compile the op: one call and its in-place form. The variant ``layouts`` compiles calls of a few samples in
    several layouts and forms, in one graph. The variant ``dynamic`` compiles one function and calls it with several
    sizes and layouts. The variant ``compiler`` is ``layouts`` with the compiler that the device brings."""
    with ctx.running(CLAUSE) as record:
        if ctx.variant == DYNAMIC:
            _dynamic(ctx, AOT_EAGER)
        elif ctx.variant != COMPILER:
            _static(ctx, record, AOT_EAGER)
        elif ctx.device.descriptor.compiler is None:
            record.pass_over("the descriptor does not declare a compiler")
        else:
            _static(ctx, record, ctx.device.descriptor.compiler)


def _static(ctx: OpContext, record: CellRecord, backend: str) -> None:
    _compile(ctx, record, backend, list(_parts(ctx)))
    if not ctx.variant:  # the op may take contiguous inputs only, or refuse the first sample
        for sample in lead_first(ctx):
            if record.checks:
                break
            laid = ctx.laid_contiguous(sample)
            part = Part(_PLAIN, ctx.subject.function, laid, places_of(ctx, sample))
            _compile(ctx, record, backend, [part])


def _compile(ctx: OpContext, record: CellRecord, backend: str, parts: list[Part]) -> None:
    """Compile the calls ``parts`` together in one graph, which takes a fraction of the time of compiling each. If
    that graph fails or gives a wrong result, compile each call alone. Record the outcome in ``record``."""
    outcome = Outcome(parts)
    if len(parts) > 1 and not draws(ctx.traits.families):  # one seed for all of them
        reference = partial(_reference, ctx, backend=backend)
        outcome = compile_together(ctx, record, parts, backend, judge_compiled, reference)
    before, mode = record.failed, Mode("compiled", compiled, {"backend": backend})
    for part in outcome.alone:
        ctx.judge(
            {CLAUSE: judge_compiled},
            compared,
            (backend, part.places, bool(part.laid.inputs)),
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
    """Yield the calls that are compiled: the first sample in its layouts and in place, each other sample in one
    layout."""
    function, inplace = ctx.subject.function, ctx.subject.inplace
    if ctx.subject.restrides_in_place or _UNTRACED_IN_PLACE in ctx.traits.families:
        inplace = None
    samples = lead_first(ctx)
    for number, sample in enumerate(samples if ctx.variant else samples[:1]):
        places = places_of(ctx, sample)
        if not sample.tensors:
            yield Part(_PLAIN, function, ctx.laid_contiguous(sample), places)
            continue
        lays = laid_for(ctx, sample, lead=not number)
        if number and draws(ctx.traits.families):  # numbers are compared in this layout only
            lays = [ctx.laid_contiguous(sample)]
        for laid in lays:
            shares = laid.expands and _SHARED in ctx.traits.families
            yield Part(laid.case.id, function, laid, () if shares else places)
        if inplace is not None and not number:
            for laid in ctx.laid_out(sample, _IN_PLACE if ctx.variant else _IN_PLACE_QUICK):
                yield Part(f"inplace={laid.case.id}", inplace, laid, ())


def _dynamic(ctx: OpContext, backend: str) -> None:
    mode = Mode("compiled", compiled, {"backend": backend, "dynamic": True})
    samples = [each for each in lead_first(ctx) if each.tensors]
    if not samples:
        return
    sample = samples[0]
    laid = ctx.laid_contiguous(sample)
    others = grown(ctx, sample)
    if _is_retraced(ctx.traits.op) and _UNROLLED not in ctx.traits.families:
        if not draws(ctx.traits.families):  # which element gets which number depends on the layout
            laid_otherwise = ctx.laid_out(sample, frozenset({"transposed", STEPPED}))
            others = [*[_call(each) for each in laid_otherwise][:1], *others]
        others += [_call(ctx.laid_contiguous(each)) for each in unlike(sample, samples)[:1]]
    given = (backend, places_of(ctx, sample), tuple(others))
    reference = _reference(ctx, laid, backend)
    ctx.judge(
        {CLAUSE: judge_compiled}, compared_in_turn, given, reference, layout="contiguous", mode=mode
    )


def _call(laid: Laid) -> tuple[Any, ...]:
    call = laid.sample.call
    return call.args, call.kwargs, laid.geometries


def grown(ctx: OpContext, sample: Sample) -> list[tuple[Any, ...]]:
    """Return a list with one call: that of the sample with the same arguments and larger tensors. It is a tuple of
    positional arguments, keyword arguments and the tensors' strides and offsets. The list is empty if the CPU
    accepts none of the calls that were tried. All tensors whose first dimension is as long as that of the first
    tensor are enlarged in this dimension or, if the CPU refuses the result, in the last dimension."""
    for dim in (0, -1):
        sizes = [each.shape[dim] for each in sample.tensors if each.dim()]
        if not sizes or sizes[0] < 2:
            continue
        tensors = [
            torch.cat([each, each], dim) if each.dim() and each.shape[dim] == sizes[0] else each
            for each in sample.tensors
        ]
        args, kwargs = sample.call.bind(tensors)
        if (
            value_answer(ctx.subject.reference, sample.call.on, tensors, mutates=True).raises
            is None
        ):
            return [(args, kwargs, tuple(CONTIGUOUS.geometry(each.shape) for each in tensors))]
    return []


def unlike(sample: Sample, samples: list[Sample]) -> list[Sample]:
    """Return the samples whose shapes differ from those of ``sample``; samples with another number of dimensions come
    first."""
    shapes = [each.shape for each in sample.tensors]
    others = [each for each in samples if [t.shape for t in each.tensors] != shapes]
    return sorted(others, key=lambda each: (not each.numel, each.rank == sample.rank, each.index))


def _reference(ctx: OpContext, laid: Laid, backend: str = AOT_EAGER) -> Reference:
    families = ctx.traits.families
    # Which elements get which random numbers depends on the order of the elements in memory.
    drawn = draws(families) and (backend != AOT_EAGER or laid.case.id != _PLAIN)
    return Reference(
        ctx,
        laid,
        unspecified=drawn or "values.uninitialized" in families,
        cloned="compile.cloned" in families,
    )
