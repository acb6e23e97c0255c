"""Checks of calls that write to a given tensor: ``out=`` tensors that fit the result or do not, in-place variants, and
a comparison of all variants of an op with its function."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import lru_cache, partial
from typing import Any

import torch

from conformance.checks.call_hooks import FUNCTION
from conformance.checks.cells import VARIANTS
from conformance.checks.ops import standalone_checks
from conformance.checks.ops.call_reference import Part, Reference
from conformance.checks.ops.calls import (
    Found,
    Invocation,
    Laid,
    ReferenceParts,
    address,
    copies,
    differs,
    views,
)
from conformance.checks.ops.context import OpContext
from conformance.checks.ops.evidence import (
    Evidence,
    TargetAfter,
    attempt,
    called,
    called_into,
    collect_evidence,
    target_after,
)
from opinfo.axes.shapes import EQUAL
from opinfo.axes.values import SPECIAL
from opinfo.compare import Wrong, fits_in, outputs_of, raised, tensors_of
from opinfo.guarded import Guarded, identity
from opinfo.layouts import Geometry, Layout, uniform
from opinfo.reference import value_answer
from opinfo.samples import Sample

BOUNDS = "layout.bounds"
OUT_KEPT, OUT_RESIZE, IN_PLACE = "layout.out_kept", "layout.out_resize", "layout.inplace"


# -- ``out=``


def wanted_outputs(reference: ReferenceParts) -> list[torch.Tensor] | None:
    """Return the CPU's outputs as a list; None if the CPU raises, or if its result is not a tensor or a sequence of
    strided tensors, so that ``out=`` cannot receive it."""
    return outputs_of(reference.value.result) if reference.value.raises is None else None


def form_of(result: Any) -> str:
    """Return what must be passed as ``out=`` to receive the given result: a "tensor", or a "list" or "tuple" of
    tensors."""
    if isinstance(result, torch.Tensor):
        return "tensor"
    return "list" if isinstance(result, list) else "tuple"


def takes_no_out(error: BaseException) -> bool:
    """Return True if torch's argument parser raised ``error`` because the call has no ``out`` argument, as in
    ``nonzero(as_tuple=True)`` or for a ``torch.ops`` overload whose targets have names other than ``out``, or because
    only overloads without ``out`` take a number in this place, as for ``where``."""
    text = str(error)
    if isinstance(error, TypeError):
        return any(each in text for each in ("'out'", "must be Tensor, not", "invalid combination"))
    return isinstance(error, RuntimeError) and "failed to match any schema" in text


def prefill(dtype: torch.dtype) -> Any:
    """Return the value with which a target is filled before the call. The value is one that results rarely contain."""
    if dtype == torch.bool:
        return True
    if dtype.is_floating_point or dtype.is_complex:
        return float("nan")
    return torch.iinfo(dtype).max


#: The layout of the inputs when the target has an offset. A kernel that uses the input's strides for the target, or the
#: target's for the input, then gives wrong values.
_STRIDED = uniform(Layout("transposed", "outer", offset=True))


#: torch's own samples differ only in their arguments, so each of them gets one in three of the target layouts, in turn.
_TURNS = 3


def out_kept(ctx: OpContext) -> None:
    """Call the op with ``out=`` tensors of the right shape in many layouts. Each tensor must keep its address and
    strides and receive the complete result."""
    if not ctx.traits.has_out or not ctx.traits.returns_tensors:
        return
    judges = {OUT_KEPT: judge_kept, BOUNDS: judge_target_bounds}
    shared = any(sample.axis for sample in ctx.common)  # samples with an axis get all targets
    with ctx.running(*judges):
        common = ctx.common
        for number, sample in enumerate((*common, *_squares(ctx))):
            plain = Reference(ctx, ctx.laid_contiguous(sample))
            wanted, strided = wanted_outputs(plain), None
            seen: set[tuple[Geometry, ...]] = set()
            targets = [each for each in ctx.targets if ctx.device.takes(each.id)]
            if number >= len(common):
                targets = [each for each in targets if each.id == _OF_SQUARES]
            elif shared and not sample.axis:
                targets = targets[number % _TURNS :: _TURNS]
            for layout in targets if wanted is not None else ():
                geometries = tuple(layout.geometry(t.shape) for t in wanted or ())
                if geometries in seen:
                    continue
                seen.add(geometries)
                specs = [(t.dtype, g) for t, g in zip(wanted or (), geometries, strict=True)]
                given, name = (specs, form_of(plain.value.result)), f"out={layout.id}"
                reference = plain
                if geometries[:1] and geometries[0].offset:
                    reference = strided = strided or _of_strided(ctx, sample) or plain
                ctx.judge(
                    judges, called_into_guarded, given, reference, layout=name, check="target"
                )
            ctx.release(sample)


#: Layouts in which ``self`` and the other operands have different strides.
_APART = ("transposed/contiguous", "contiguous/transposed")
#: The layout of an ``out=`` tensor for a sample of square matrices.
_OF_SQUARES = "transposed"


def _squares(ctx: OpContext) -> Iterator[Sample]:
    """Yield the smallest sample whose tensors are all square matrices of one size, if there is one. A kernel that takes a
    matrix for its transpose only where sizes are equal writes to the right memory, and the wrong elements."""
    sides = {
        sample.tensors[0].shape[0]: sample
        for sample in ctx.samples
        if sample.axis == EQUAL.name and _is_square(sample)
    }
    if (
        sides and sides[min(sides)].reads_only
    ):  # others are among the samples that every check takes
        yield replace(sides[min(sides)], layouts=_APART)


def _is_square(sample: Sample) -> bool:
    shapes = {tuple(each.shape) for each in sample.tensors}
    return len(shapes) == 1 and all(
        len(shape) == 2 and 1 < shape[0] == shape[1] for shape in shapes
    )


def _of_strided(ctx: OpContext, sample: Sample) -> Reference | None:
    """Return the reference results of the call with non-contiguous operands. Returns None if the device cannot build
    such operands or the reference raises for them."""
    if not ctx.device.takes(_STRIDED.id) or "as_strided.read" in ctx.traits.families:
        return None
    strided = Reference(ctx, ctx.laid_as(sample, _STRIDED))
    return None if strided.raises else strided


def called_into_guarded(
    call: Invocation, specs: Sequence[tuple[torch.dtype, Geometry]], form: str
) -> Evidence:
    targets = [
        call.guarded(torch.zeros(g.shape, dtype=dtype), g, call.move, fill=held_before(dtype, g))
        for dtype, g in specs
    ]
    return called_into(call, targets, form)


def held_before(dtype: torch.dtype, geometry: Geometry) -> Any:
    """Return the value with which a target is filled before the call. For a target without a storage offset, it is the
    value of :func:`prefill`; for a target with one, it is 1, or -1 if the dtype is signed and the first stride is not
    larger than the last. The result of the call must not depend on the value."""
    if not geometry.offset:
        return prefill(dtype)
    in_rows = geometry.stride[:1] > geometry.stride[-1:]
    return 1 if in_rows or not dtype.is_signed else -1


def judge_kept(evidence: Evidence, reference: ReferenceParts) -> Found:
    """Check that each ``out=`` tensor keeps its address and strides and receives the complete functional result."""
    if evidence.raised is not None:
        if not takes_no_out(evidence.raised):
            yield raised(evidence.raised)
        return
    for place, target in enumerate(evidence.targets):
        wrong = moved(target)
        if wrong is not None:
            yield wrong.about(f"out {place}")
            return
    yield None if reference.free else written(evidence, reference)


def written(evidence: Evidence, reference: ReferenceParts) -> Wrong | None:
    """Return a failure if the values of the targets differ from the CPU's result; otherwise None."""
    wanted = wanted_outputs(reference) or []
    read = [each.values for each, _ in zip(evidence.targets, wanted)]

    def exact() -> Any:
        return reference.exact.result

    if len(read) < 2:
        found = differs(read[0], wanted[0], reference, exact) if read else None
        return found.about("out 0") if found is not None else None
    found = differs(tuple(read), tuple(wanted), reference, exact)
    return replace(found, subject=found.subject.replace("output", "out")) if found else None


def moved(target: TargetAfter) -> Wrong | None:
    """Return a failure if a tensor that the call wrote to has changed its strides or its address; otherwise None. On a
    device without addresses, the written values must appear in the base of the tensor instead."""
    assert target.asked is not None
    kept, geometry = target.keeps_its_strides, target.asked
    if target.addressed:
        where = "the same address" if target.stays else "another address"
        expected = f"strides {geometry.stride} at the same address"
        found = f"strides {target.stride} at {where}"
    elif kept:
        expected, found = "the written values in its base tensor", "different values in the base"
    else:
        expected, found = f"shape {geometry.shape}", f"shape {target.shape}"
        if not target.by_values:
            expected, found = f"strides {geometry.stride}", f"strides {target.stride}"
    there = target.stays or not (kept or target.addressed)
    return None if kept and there else Wrong("moved", expected, found)


def judge_target_bounds(evidence: Evidence, reference: ReferenceParts) -> Found:
    """Check that the call changed no byte of a target's storage outside the elements of the target."""
    for place, target in enumerate(evidence.targets if evidence.raised is None else ()):
        yield from outside_changed(target, f"out {place}")


def outside_changed(target: TargetAfter, what: str) -> Found:
    """Yield a failure if the call changed bytes of the target's storage outside the target's elements; otherwise
    None."""
    if target.asked is None or not target.as_asked:
        return  # layout.out_kept or layout.inplace reports the changed strides
    where = f"strides {target.asked.stride}, storage offset {target.asked.offset}"
    expected = f"unchanged bytes outside its elements ({where})"
    yield None if target.outside_intact else Wrong("bytes", expected, "changed bytes", what)


# -- ``out=`` that does not fit: empty, of a wrong shape, of an unsafe dtype, on another device, or with a gradient


def out_resize(ctx: OpContext) -> None:
    with ctx.running(OUT_RESIZE):
        for number, sample in enumerate(ctx.common):
            laid = ctx.laid_contiguous(sample)
            wanted = wanted_outputs(Reference(ctx, laid))
            if wanted is None:
                continue
            evidence = _unfit(ctx, laid, "empty")
            error = evidence.raised if evidence is not None else None
            if error is not None and takes_no_out(error):
                continue
            _unfit(ctx, laid, "wrong_shape")
            if all(each.numel() > 1 for each in wanted):
                _unfit(ctx, laid, "smaller")
            # A factory function without a dtype argument takes the dtype of out=. bool casts safely to every dtype.
            factory = ctx.subject.is_factory and sample.call.kwargs.get("dtype") is None
            dtypes = [unsafe_dtype(each.dtype) for each in wanted]
            if not factory and None not in dtypes and _must_refuse(ctx, laid, "wrong_dtype"):
                _unfit(ctx, laid, "wrong_dtype")
            numbers = all(each.is_floating_point() or each.is_complex() for each in wanted)
            how = "requires_grad"  # autograd refuses it, of ops that it knows
            if not number and numbers and _cpu_into_unfit(ctx, laid, how).raised is not None:
                _unfit(ctx, laid, how)
            # On the CPU there is no second reference, and no documented rule about a wrong device.
            if not ctx.device.fake_only and _must_refuse(ctx, laid, "wrong_device"):
                _unfit(ctx, laid, "wrong_device")


def _unfit(ctx: OpContext, laid: Laid, how: str) -> Evidence | None:
    reference = Reference(ctx, laid, how=how, warns=partial(_cpu_warns, ctx, laid, how))
    given = (*_specs_and_form(ctx.expected(laid).result), how)
    judges = {OUT_RESIZE: judge_unfit}
    evidence: Evidence | None = ctx.judge(
        judges, called_into_unfit, given, reference, layout=f"out={how}", refusable=False
    )
    return evidence


def _specs_and_form(result: Any) -> tuple[list[tuple[tuple[int, ...], torch.dtype]], str]:
    """Return a list of the (shape, dtype) of each ``out=`` tensor that a result needs, and the form in which
    ``out=`` takes them: one tensor, a tuple or a list."""
    outputs = outputs_of(result) or ()
    return [(tuple(each.shape), each.dtype) for each in outputs], form_of(result)


def unsafe_dtype(dtype: torch.dtype) -> torch.dtype | None:
    """Return a dtype to which ``torch.can_cast`` forbids casting the given dtype; None for bool, which can be cast to
    every dtype."""
    if dtype.is_complex:
        return torch.float32
    if dtype.is_floating_point:
        return torch.int64
    return None if dtype == torch.bool else torch.bool


def unfit_target(shape: tuple[int, ...], dtype: torch.dtype, how: str, call: Invocation) -> Any:
    """Return a target that does not fit a result of the given shape and dtype. ``how`` names the misfit: "empty",
    "smaller", "wrong_shape", "wrong_dtype", "wrong_device" or "requires_grad"."""
    if how == "empty":
        return call.move(torch.empty((0,), dtype=dtype))
    if how == "smaller":  # not empty, and smaller than the result
        return call.move(torch.zeros((1,), dtype=dtype))
    if how == "wrong_shape":
        count = torch.Size(shape).numel()
        size = (min(count + 2, 2 * count),) if count else (2, 3)
        return call.move(torch.zeros(size, dtype=dtype))
    if how == "requires_grad":
        return call.move(torch.zeros(shape, dtype=dtype)).detach().requires_grad_()
    if how == "wrong_dtype":
        return call.move(torch.zeros(shape, dtype=unsafe_dtype(dtype)))
    elsewhere = "meta" if call.device.type == "cpu" else "cpu"
    return torch.zeros(shape, dtype=dtype, device=torch.device(elsewhere))


def called_into_unfit(
    call: Invocation, specs: Sequence[tuple[tuple[int, ...], torch.dtype]], form: str, how: str
) -> Evidence:
    targets = [unfit_target(shape, dtype, how, call) for shape, dtype in specs]
    with torch.set_grad_enabled(how == "requires_grad" or torch.is_grad_enabled()):
        return called_and_warned(call, targets, form)


def called_and_warned(
    call: Invocation, targets: Sequence[Guarded | torch.Tensor], form: str = ""
) -> Evidence:
    """Make the call and record its warnings. If ``form`` is not empty, the targets are passed as ``out=`` in that form:
    "tensor", "list" or "tuple"."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        found = called_into(call, targets, form)
    return replace(found, warnings=tuple(str(each.message) for each in caught))


def judge_unfit(evidence: Evidence, reference: ReferenceParts) -> Found:
    """Check the treatment of an ``out=`` tensor that does not fit. An empty tensor must be resized without a
    warning. A non-empty tensor of a wrong shape must be resized with a warning (ATen/native/Resize.h) or refused. A
    tensor of a dtype to which the result cannot be cast (torch.can_cast), on a different device, or that requires a gradient
    must be refused."""
    how, error = reference.how, evidence.raised
    if how in ("wrong_dtype", "wrong_device", "requires_grad"):
        if error is None:
            kinds = ", ".join(f"{t.dtype} on {t.device}" for t in evidence.targets)
            also = " that requires a gradient" if how == "requires_grad" else ""
            yield Wrong("not_raised", f"an exception for out= of {kinds}{also}", "no exception")
        elif isinstance(error, (RuntimeError, TypeError)):
            yield None  # NotImplementedError is a RuntimeError: any refusal is correct
        else:
            yield raised(error, "RuntimeError or TypeError")
        return
    if error is not None:
        if how != "empty" and isinstance(error, (RuntimeError, TypeError, ValueError)):
            yield None  # the deprecation warning says that a later version will refuse
        elif how != "empty" or not takes_no_out(error):
            yield raised(error)
        return
    for place, (target, want) in enumerate(zip(evidence.targets, wanted_outputs(reference) or [])):
        if target.shape != tuple(want.shape):
            wrong = Wrong("shape", f"shape {tuple(want.shape)}", target.shape)
            yield wrong.about(f"out {place}")
            return
    other = None if reference.free else written(evidence, reference)
    if other is not None:
        yield other
        return
    warned = how == "empty" or any("resized" in text for text in evidence.warnings)
    if not warned and reference.warns:
        yield Wrong("not_warned", "a warning when a non-empty out= is resized", "no warning")
        return
    yield None


def on_cpu(ctx: OpContext, laid: Laid) -> Invocation:
    cpu = torch.device("cpu")
    call = replace(ctx.call(laid), device=cpu, move=identity, back=identity, settle=lambda _: None)
    return replace(call, inputs=copies(call))


def _cpu_has_no_out(ctx: OpContext, laid: Laid) -> bool:
    """Return True if the CPU also refuses the call with ``out=``, or if the device under test is the CPU."""
    if ctx.device.fake_only:
        return True
    given = _specs_and_form(ctx.expected(laid).result)
    return called_into_prefilled(on_cpu(ctx, laid), *given).raised is not None


def _cpu_into_unfit(ctx: OpContext, laid: Laid, how: str) -> Evidence:
    return called_into_unfit(on_cpu(ctx, laid), *_specs_and_form(ctx.expected(laid).result), how)


def _cpu_warns(ctx: OpContext, laid: Laid, how: str) -> bool:
    """Return True if the CPU warns that it resizes the target. If the device under test is the CPU, return True,
    because the documented rule demands the warning."""
    if ctx.device.fake_only:
        return True
    evidence = _cpu_into_unfit(ctx, laid, how)
    return evidence.raised is None and any("resized" in text for text in evidence.warnings)


def _must_refuse(ctx: OpContext, laid: Laid, how: str) -> bool:
    """Return True if the CPU refuses a target with the misfit ``how``. If the device under test is the CPU, return
    True, because the documented rule demands the refusal."""
    return ctx.device.fake_only or _cpu_into_unfit(ctx, laid, how).raised is not None


# -- in place


def in_place(ctx: OpContext) -> None:
    """Call the in-place variant on every sample in every layout in which no dimension of ``self`` is expanded.
    ``self`` must keep its address and strides and receive the functional result."""
    variant = ctx.subject.inplace
    if variant is None or not ctx.traits.writes_self:
        return
    judges = {BOUNDS: judge_self_bounds, IN_PLACE: judge_in_place}
    with ctx.running(IN_PLACE, BOUNDS):
        squares = [s for s in _squares(ctx) if len(s.tensors) > 1]
        for sample in (*ctx.common, *squares):
            for laid in ctx.laid_out(sample):
                target = laid.inputs[0] if laid.inputs else None
                if not isinstance(target, Guarded) or target.geometry.expanded is not None:
                    continue  # layout.overlap_raises checks writes to an expanded self
                refuses = partial(_refuses_in_place, ctx, laid)
                reference = Reference(
                    ctx, laid, raises_in_place=refuses, restrides=ctx.subject.restrides_in_place
                )
                how = (True,) if ctx.subject.restrides_in_place else ()
                evidence = ctx.judge(judges, called_in_place, how, reference, function=variant)
                if evidence is None:
                    continue
                target.restore(ctx.device.to_device)
                (left,) = evidence.targets
                if not (left.addressed and left.as_asked and left.stays):
                    ctx.rebuild(sample)
        if ctx.traits.ufunc == "binary":
            given: dict[str, Any] = {"inplace": True, "dtype": ctx.dtype}
            standalone_checks.run(ctx, IN_PLACE, "self=broadcast", refuses_to_grow, **given)


def _refuses_in_place(ctx: OpContext, laid: Laid) -> bool:
    """Return True if FakeTensor refuses the in-place variant, as for ``float_power_`` with a float32 base."""
    return ctx.stride_answer(laid, ctx.subject.inplace, "@inplace").raises is not None


def called_in_place(call: Invocation, restrides: bool = False) -> Evidence:
    """Make the in-place call and return the evidence, in which the target is the first input. ``restrides`` is true
    for an op that may change the strides of its first input."""
    target = call.inputs[0]
    before = address(call, views([target])[0])
    _, error = attempt(call)
    found = collect_evidence(call, None, error, (0,))
    return replace(found, targets=(target_after(call, target, before, restrides),))


def judge_self_bounds(evidence: Evidence, reference: ReferenceParts) -> Found:
    """Check that the in-place call changed no byte of ``self``'s storage outside the elements of ``self``."""
    yield from outside_changed(evidence.targets[0], "self")


def judge_in_place(evidence: Evidence, reference: ReferenceParts) -> Found:
    """Check that the in-place variant keeps the address and strides of ``self`` and writes the functional result to
    ``self``. The variant must raise if that result does not fit into ``self``."""
    target, want = evidence.targets[0], reference.value
    assert target.asked is not None
    dtype, shape = target.dtype, target.asked.shape
    if want.raises is not None:
        expected = f"{type(want.raises).__name__}, as on the CPU"
        yield None if evidence.raised else Wrong("not_raised", expected, "no exception")
        return
    if not isinstance(want.result, torch.Tensor):
        yield None
        return
    unfit = None
    if not reference.restrides and want.result.shape != shape:
        unfit = "the shape of the result differs from that of self"
    elif not reference.restrides and not torch.can_cast(want.result.dtype, dtype):
        unfit = "the result cannot be cast to the dtype of self"
    if evidence.raised is not None:
        fits = unfit is None and not reference.raises_in_place
        expected = "no exception, as from the out-of-place op"
        yield raised(evidence.raised, expected) if fits else None
    elif unfit:
        yield Wrong("not_raised", f"an exception, because {unfit}", "no exception")
    else:
        wrong = None if reference.restrides else moved(target)
        if wrong is None and not reference.free:
            wanted = want.result.to(dtype)
            wrong = differs(target.values, wanted, reference, lambda: reference.exact.result)
        yield wrong.about("self") if wrong is not None else None


def refuses_to_grow(op: Any, move: Any, back: Any, dtype: Any) -> Wrong | None:
    # https://docs.pytorch.org/docs/stable/notes/broadcasting.html#in-place-semantics
    small = torch.ones(1, 4).to(getattr(torch, dtype))
    large = torch.ones(3, 4).to(getattr(torch, dtype))
    there = move(small)
    try:
        op(there, move(large))
    except NotImplementedError:
        raise
    except Exception:  # dispatch.error_inputs judges the exception's type
        return None
    expected = "an exception for self of shape (1, 4) and an operand of shape (3, 4)"
    return Wrong("not_raised", expected, f"no exception and self of shape {tuple(there.shape)}")


# -- function, method, operator, in-place and out= variants agree on contiguous inputs; the other clauses check layouts


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
                "raises_in_place": partial(_refuses_in_place, ctx, laid),
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
        yield "out", op.function, called_into_prefilled, _specs_and_form(result)
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
