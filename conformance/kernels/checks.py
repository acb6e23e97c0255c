"""Selects the checks that are made of a kernel: the checks of ops that apply to kernels, and checks that exist only for
kernels."""

from __future__ import annotations

from collections.abc import Iterator

from conformance.checks.cases.cases import OpCheck
from conformance.checks.ops.call_reference import Reference
from conformance.checks.ops.calls import Found, Laid, ReferenceParts
from conformance.checks.ops.context import OpContext
from conformance.checks.ops.evidence import Evidence, called
from conformance.kernels.guard_pages import AfterPage, BeforePage, contiguous
from conformance.kernels.marks import Marks, Spreading
from conformance.kernels.request import Request
from conformance.suites import layout, precision
from conformance.suites.layout.reads import judge_values
from conformance.suites.precision import stale_results
from opinfo.compare import Wrong
from opinfo.exceptions import Exceptions
from opinfo.layouts import CONTIGUOUS, uniform
from opinfo.samples import Sample, Traits
from opinfo.subject import Subject

GUARD_PAGES = "kernel.guard_pages"

#: Clauses that are not judged for a kernel: it is judged in the dtypes for which it was handed in, and no error of it is
#: on record.
_LEFT_OUT = frozenset({"layout.type_promotion", "precision.budget", "layout.fp32_precision"})

#: The families of ops that write to their arguments.
WRITING = frozenset({"mutates.self", "mutates.arguments"})

#: The most samples that are laid beside inaccessible pages.
_PAGED = 12


#: Clauses that are not judged for a kernel that changes the sizes or strides of its first argument, because their checks
#: make several calls with the same tensors; and those for a kernel that writes to its arguments, because their checks make
#: calls of the op that returns its results, or give other sizes to the operands alone.
_LEFT_OUT_OF_VIEWS = frozenset({"layout.determinism"})
_LEFT_OUT_OF_WRITING = frozenset({"layout.as_strided", "precision.exact_sums"})


def checks_of(request: Request, base: Subject, marks: Marks) -> tuple[OpCheck, ...]:
    """Returns the checks that are made of the kernel of a request. ``base`` is the op or function that it replaces."""
    left_out = _LEFT_OUT | (_LEFT_OUT_OF_VIEWS if base.restrides_in_place else frozenset())
    left_out |= _LEFT_OUT_OF_WRITING if base.own_families & WRITING else frozenset()

    def check_stale_results(ctx: OpContext) -> None:
        with Spreading(marks):
            stale_results.check_stale_results(ctx)

    found = []
    for check in (*layout.SUITE.op_checks, *precision.SUITE.op_checks):
        if check.clause in left_out:
            continue
        if check.clause == "layout.output_strides" and not request.strides:
            continue
        if check.clause == stale_results.TRUST:
            check = OpCheck(check.clause, check.applies, (check_stale_results,), axes=False)
        found.append(check)
    if request.guard_pages:
        found.append(OpCheck(GUARD_PAGES, lambda t: t.reads_strided, (guard_pages,)))
    return tuple(found)


def clauses_of(
    checks: tuple[OpCheck, ...], traits: Traits, known: Exceptions, names: tuple[str, ...]
) -> Iterator[str]:
    """Yields the clauses of those checks that apply to an op with these traits and names. ``known`` has the exceptions
    of ops, looked up by ``names``."""
    for check in checks:
        excluded = (
            known.excluded(check.clause, name, traits.dtype, fake_only=False) for name in names
        )
        if check.applies(traits) and not any(excluded):
            yield check.clause


def guard_pages(ctx: OpContext) -> None:
    """Call the kernel on tensors that end right before an inaccessible page, and on tensors that begin right after such
    a page."""
    with ctx.running(GUARD_PAGES):
        for sample in _paged_samples(ctx):
            for made in (BeforePage, AfterPage):
                geometries = tuple(contiguous(tuple(t.shape)) for t in sample.tensors)
                inputs = [
                    made(tensor, geometry, ctx.place)
                    for tensor, geometry in zip(sample.tensors, geometries)
                ]
                laid = Laid(sample, uniform(CONTIGUOUS), geometries, [*inputs])
                usual, ctx.guarded = ctx.guarded, made
                try:
                    ctx.judge({GUARD_PAGES: judge_guard_pages}, called, (), Reference(ctx, laid))
                finally:
                    ctx.guarded = usual


def _paged_samples(ctx: OpContext) -> list[Sample]:
    """Returns samples whose tensors all have elements, at most one for each combination of element counts modulo 16,
    because vectorised loops treat the last elements separately."""
    fitting = [
        each
        for each in ctx.common
        if 0 < each.numel <= 2**18 and all(t.numel() for t in each.tensors)
    ]
    chosen: dict[tuple[int, ...], Sample] = {}
    for each in fitting:
        chosen.setdefault(tuple(t.numel() % 16 for t in each.tensors), each)
    return list(chosen.values())[:_PAGED]


def judge_guard_pages(evidence: Evidence, reference: ReferenceParts) -> Found:
    """Check that the call does not end the process although the memory right before or right after each tensor is
    inaccessible. Wrong values are not reported here, because layout.values reports them."""
    raised = evidence.raised
    if raised is not None and type(raised).__name__ == "CallEnded":
        yield Wrong(
            "ended",
            "no access to memory outside of the tensors",
            str(raised),
            "tensors next to an inaccessible page",
        )
        return
    for _ in judge_values(evidence, reference):
        yield None
