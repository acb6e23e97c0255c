"""A comparison of the variants of an op (method, operator, in-place and ``out=``) with its function on contiguous inputs. The
other clauses check layouts."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import lru_cache, partial
from typing import Any

import torch

from conformance.checks.call_hooks import FUNCTION
from conformance.checks.cells import VARIANTS
from conformance.checks.ops.call_reference import Part, Reference
from conformance.checks.ops.calls import (
    Found,
    Invocation,
    Laid,
    ReferenceParts,
    copies,
    differs,
)
from conformance.checks.ops.context import OpContext
from conformance.checks.ops.evidence import (
    Evidence,
    called,
    called_into,
)
from conformance.suites.layout.unfit_targets import on_cpu, specs_and_form
from conformance.suites.layout.writes import prefill, refuses_in_place, takes_no_out
from opinfo.axes.values import SPECIAL
from opinfo.compare import Wrong, fits_in, outputs_of, raised, tensors_of
from opinfo.reference import value_answer
from opinfo.samples import Sample


def variants(ctx: OpContext) -> None:
    """Compare every variant of the op (method, operator, in-place, ``out=``) with its function, on copies of the same
    inputs.

    A sample marked ``reads_only`` is passed only to the variants that write (``out=``, in-place), which may have
    separate kernels, and only if the sample contains special values or is the first sample of its axis, the property
    that the sample was made to vary. If the function refuses such a sample, the writing variants must refuse the sample
    too.
    """
    writes = ctx.subject.has_out or ctx.subject.inplace
    with ctx.running(VARIANTS) as record:
        seen: set[str] = set()
        for sample in ctx.samples:
            if sample.reads_only:
                if not writes or sample.axis in seen - {SPECIAL.name}:
                    continue
                seen.add(sample.axis)
            laid = ctx.laid_contiguous(sample)
            how: dict[str, Any] = {"layout": FUNCTION, "refusable": False}
            nothing = {VARIANTS: judged_elsewhere}
            plain = ctx.judge(nothing, called_on_copies, (), Reference(ctx, laid), **how)
            if plain is None and ctx.makes:
                continue
            plain = plain or Evidence(read=ctx.expected(laid).result)
            if isinstance(plain.raised, NotImplementedError):
                record.refuse(plain.raised)
                continue
            if plain.unjudged is not None:
                continue
            result = plain.read
            if plain.raised is not None:  # layout.values judges whether the function may raise here
                expected = ctx.expected(laid)
                if expected.raises is not None:
                    if sample.reads_only:
                        _refused_by_variants(ctx, laid, plain)
                    continue
                result = expected.result
            function = _as_called(plain)
            lazy = {
                "raises_in_place": partial(refuses_in_place, ctx, laid),
                "has_no_out": partial(_cpu_has_no_out, ctx, laid),
            }
            for name, variant, procedure, given in _others(ctx, sample, result):
                kind = sample.tensors[0].dtype if sample.tensors else None
                reference = Reference(
                    ctx, laid, variant=name, function=function, self_dtype=kind, **lazy
                )
                judges = {VARIANTS: judge_variant}
                ctx.judge(judges, procedure, given, reference, function=variant, layout=name)
            ctx.release(sample)


def _as_called(plain: Evidence) -> Part:
    """Return the result of the function as a part of a reference, together with the code by which a repro script
    computes the result again."""
    code = "called_on_copies(replace_call(call, op))"
    return Part(plain, code, (called_on_copies, replace_call))


def _refused_by_variants(ctx: OpContext, laid: Laid, plain: Evidence) -> None:
    """Check that each writing variant raises for a call that the function refuses. Variants that accept the
    call on the CPU are skipped."""
    base = next(iter(ctx.common), laid.sample)
    usual = value_answer(
        ctx.subject.reference, base.call.on, base.tensors, mutates=ctx.mutates
    ).result
    function = _as_called(plain)
    for name, variant, procedure, given in _others(ctx, laid.sample, usual, refused=True):
        if procedure(replace_call(on_cpu(ctx, laid), variant), *given).raised is None:
            continue
        reference = Reference(ctx, laid, variant=name, function=function, self_dtype=None)
        judges = {VARIANTS: judge_variant}
        ctx.judge(judges, procedure, given, reference, function=variant, layout=name)


def _others(
    ctx: OpContext, sample: Sample, result: Any, *, refused: bool = False
) -> Iterator[tuple[str, Callable[..., Any], Callable[..., Evidence], tuple[Any, ...]]]:
    """Yield a tuple (name, function, procedure that calls the function, arguments of the procedure) for each variant
    that can be called for a sample whose function returns ``result``. If the call is ``refused``, ``result`` comes from
    another sample of the op."""
    op, first = ctx.subject, sample.call.args[0]
    both = not sample.reads_only
    plain = len(sample.call.args) == 2 and not sample.call.kwargs
    if isinstance(first, torch.Tensor):
        fits = refused or op.restrides_in_place or fits_in(first, result)
        for name, variant, possible in (
            ("method", op.method, both),
            ("operator", op.operator, both and plain),
            ("inplace", op.inplace, fits),
            ("inplace_operator", op.inplace_operator, both and fits and plain),
        ):
            if variant is not None and possible:
                yield name, variant, called_on_copies, ()
    if op.has_out and not tensors_of(sample.call.kwargs) and outputs_of(result) is not None:
        yield "out", op.function, called_into_prefilled, specs_and_form(result)
        # https://docs.pytorch.org/docs/stable/notes/broadcasting.html#in-place-semantics: each element is read before
        # it is written.
        if both and (op.ufunc in ("unary", "binary") or op.pointwise):
            fitting = (
                place
                for place, each in enumerate(sample.tensors)
                if fits_in(each, result) and result.dtype == each.dtype
            )
            if (place := next(fitting, None)) is not None:
                yield "out_self", op.function, called_into_operand, (place,)


def _cpu_has_no_out(ctx: OpContext, laid: Laid) -> bool:
    """Return True if the CPU also refuses the call with ``out=``, or if the device under test is the CPU."""
    if ctx.device.fake_only:
        return True
    given = specs_and_form(ctx.expected(laid).result)
    return called_into_prefilled(on_cpu(ctx, laid), *given).raised is not None


def judged_elsewhere(evidence: Evidence, reference: ReferenceParts) -> Found:
    """Yield no verdict on the result of the function, because layout.values judges it."""
    yield from ()


def replace_call(call: Invocation, function: Callable[..., Any]) -> Invocation:
    return replace(call, function=function)


def called_on_copies(call: Invocation) -> Evidence:
    return called(replace(call, inputs=copies(call)))


def old_values(shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    """Return a tensor of the given shape that repeats the values of :func:`values_of_each_sort`. A target is filled
    with them before the call."""
    values, count = values_of_each_sort(dtype), torch.Size(shape).numel()
    return values.repeat(count // len(values) + 1)[:count].reshape(shape)


@lru_cache(maxsize=32)
def values_of_each_sort(dtype: torch.dtype) -> torch.Tensor:
    among = [prefill(dtype), 0, 1, 5]
    if dtype.is_floating_point or dtype.is_complex:
        among += [-1.5, 101.5, float("inf"), -0.0, torch.finfo(dtype).tiny / 4]
    elif dtype.is_signed:
        among += [-7]
    return torch.stack([torch.full((), each, dtype=dtype) for each in among])


def called_into_operand(call: Invocation, place: int) -> Evidence:
    """Make the call on copies of the inputs, with the copy of input ``place`` as ``out=``, and return the evidence."""
    inputs = copies(call)
    given = replace(call, inputs=inputs)
    return called_into(given, inputs[place : place + 1], "tensor", read=True)


def called_into_prefilled(
    call: Invocation, specs: Sequence[tuple[tuple[int, ...], torch.dtype]], form: str
) -> Evidence:
    """Make the call on copies of the inputs, with ``out=`` tensors that contain known values. Uninitialised memory
    could contain the right result by chance."""
    targets = [call.move(old_values(shape, dtype)) for shape, dtype in specs]
    return called_into(replace(call, inputs=copies(call)), targets, form, read=True)


def judge_variant(evidence: Evidence, reference: ReferenceParts) -> Found:
    """Check that a variant gives the same result as the function. If the function raised, the variant must raise
    too."""
    function, name, error = reference.function, reference.variant, evidence.raised
    if evidence.unjudged is not None or function.unjudged is not None:
        return
    variant = "out= that is also an operand" if name == "out_self" else f"the {name} variant"
    if function.raised is not None:
        expected = f"an exception, because the function raised {raised(function.raised).found}"
        yield None if error is not None else Wrong("not_raised", expected, "no exception", variant)
        return
    what = f"{variant} compared with the function"
    if error is None:
        want = function.read
        if name.startswith("inplace") and isinstance(want, torch.Tensor):
            want = want.to(reference.self_dtype)  # an in-place result has self's dtype
        wrong = differs(evidence.read, want, reference)
        yield wrong.about(what) if wrong is not None else None
        return
    if name.startswith("out"):
        if takes_no_out(error) and reference.has_no_out:
            return
    elif isinstance(error, TypeError):
        # Operators and methods do not accept every argument of the function.
        if "unexpected keyword" in str(error) or name in ("operator", "inplace_operator"):
            return
    elif (
        name.startswith("inplace")
        and not isinstance(error, NotImplementedError)
        and reference.raises_in_place
    ):
        return
    yield raised(error).about(what)
