"""Checks of calls on tensors that have the conj bit or the neg bit set, which means that conjugation or negation is
delayed until the values are read."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import product
from typing import Any

import torch

from conformance.checks.ops.call_reference import Reference
from conformance.checks.ops.calls import Found, Invocation, Judge, ReferenceParts, copies, differs
from conformance.checks.ops.context import OpContext
from conformance.checks.ops.evidence import Evidence, called
from conformance.suites.layout.views import other_bits
from opinfo.compare import raised, replace_tensors, tensors_of
from opinfo.layouts import covering_set
from opinfo.samples import Sample
from opinfo.torch_private import negated


def lazy_bits(ctx: OpContext) -> None:
    """Call a view op on inputs with the conj or neg bit set. The bits and the values of the result must be those of the
    CPU."""
    for turn, sample in product(_turns(ctx), ctx.common):
        first = sample.call.args[0]
        if isinstance(first, torch.Tensor) and first.numel():
            _turned(ctx, sample, turn, (0,), {"layout.views": judge_turned}, called_turned)


def lazy_operands(ctx: OpContext) -> None:
    """Call an op that is not a view op, first with the conj or neg bit set on one operand at a time, then on all
    operands. A kernel that ignores the bits gives wrong values. One sample for each number of operands is enough,
    because a kernel resolves the bits before it uses other properties of the sample."""
    if ctx.cases[:1] != covering_set().cases[:1]:
        return  # the run is limited to the layout of a pinned or minimised call
    if ctx.mutates or "values.free" in ctx.traits.families:
        return
    kind, seen = getattr(torch, ctx.dtype), set()
    for sample in ctx.common:
        places = [p for p, t in enumerate(sample.tensors) if t.dtype == kind and t.numel()]
        strided = all(t.layout == torch.strided for t in sample.tensors)
        if not places or len(places) in seen or not strided or ctx.mutable_inputs(sample):
            continue
        seen.add(len(places))
        groups = dict.fromkeys([*((place,) for place in places), tuple(places)])
        for turn, group in product(_turns(ctx), groups):
            _turned(ctx, sample, turn, group, _LAZY_OPERANDS, called_lazily)


def _turns(ctx: OpContext) -> list[str]:
    """Return the bits ("conj", "neg") that the CPU accepts on operands of the op and dtype under test."""
    kind = getattr(torch, ctx.dtype)
    turns = ["conj"] if kind.is_complex and ctx.subject.takes_conj_view else []
    real = kind.is_complex or kind.is_floating_point
    return [*turns, "neg"] if real and ctx.subject.takes_neg_view else turns


def _turned(
    ctx: OpContext,
    sample: Sample,
    turn: str,
    group: tuple[int, ...],
    judges: dict[str, Judge],
    procedure: Callable[..., Evidence],
) -> None:
    lazy, resolved = (
        ctx.answer_for(sample, make, turn, group) for make in (lazily_turned, turned_and_resolved)
    )
    if any(each.value().raises is not None for each in (lazy, resolved)):
        return
    try:
        for each in (lazy, resolved):
            resolve(each.value().result)
    except NotImplementedError:
        return  # the CPU cannot read its own result: complex32 with both bits set
    exact = ctx.exact_for(sample, turned_and_resolved, turn, group)
    reference = Reference(
        ctx,
        ctx.laid_first(sample),
        turn=turn,
        lazy=lazy,
        resolved=resolved,
        resolved_exact=exact,
    )
    ctx.judge(judges, procedure, (turn, group), reference, layout=turn)


def lazily_turned(
    values: Sequence[torch.Tensor], turn: str, group: Sequence[int]
) -> list[torch.Tensor]:
    """Return the given tensors, but with the conj or neg bit set on those whose index is in ``group``."""
    view = torch.conj if turn == "conj" else negated
    return [view(each) if place in group else each for place, each in enumerate(values)]


def turned_and_resolved(
    values: Sequence[torch.Tensor], turn: str, group: Sequence[int]
) -> list[torch.Tensor]:
    """Return tensors with the same values as those of :func:`lazily_turned`, but with the conjugation or negation
    computed and no conj or neg bit set."""
    return [each.resolve_conj().resolve_neg() for each in lazily_turned(values, turn, group)]


def resolve(result: Any) -> Any:
    """Return the result with the conj and neg bits of all its tensors resolved, so that no tensor has such a bit
    set."""
    return replace_tensors(result, lambda t: t.resolve_conj().resolve_neg())


def called_turned(call: Invocation, turn: str, group: Sequence[int]) -> Evidence:
    """Make the call with the conj or neg bit set on the tensors whose index is in ``group``. If the device cannot set
    the bit, the returned evidence contains the exception, so that the check fails."""
    given = copies(call)
    try:
        given = lazily_turned(given, turn, group)
    except Exception as error:  # a kernel may raise any type; judge_turned_values judges it
        return Evidence(raised=error)
    return called_on(call, given)


def called_lazily(call: Invocation, turn: str, group: Sequence[int]) -> Evidence:
    """Make the call with the conj or neg bit set on the tensors whose index is in ``group``. If the device cannot set
    the bit or loses it, the returned evidence is not judged, because layout.views reports that fault."""
    given = copies(call)
    try:
        given = lazily_turned(given, turn, group)
    except Exception as error:
        return Evidence(unjudged=error, judged_by="layout.views")
    kept = all(
        given[place].is_conj() if turn == "conj" else given[place].is_neg() for place in group
    )
    return called_on(call, given) if kept else Evidence()


def called_on(call: Invocation, given: list[torch.Tensor]) -> Evidence:
    """Make the call on the inputs ``given``. The returned evidence contains a copy of the result on the CPU, with conj
    and neg bits resolved."""
    found = called(replace(call, inputs=given))
    return replace(found, read=resolve(found.read))


def judge_turned(evidence: Evidence, reference: ReferenceParts) -> Found:
    """Check that the result of a call on inputs with the conj or neg bit set has the same bits and values as on the
    CPU."""
    if evidence.raised is None:
        pairs = zip(evidence.outputs, tensors_of(reference.lazy.result))
        wrong = next(filter(None, (other_bits(out, cpu) for out, cpu in pairs)), None)
        if wrong is not None:
            yield wrong.about(f"input with the {reference.turn} bit set")
            return
    yield from judge_turned_values(evidence, reference)


def judge_turned_values(evidence: Evidence, reference: ReferenceParts) -> Found:
    """Check that the result of a call on inputs with the conj or neg bit set has the same values as on the CPU."""
    what = f"input with the {reference.turn} bit set"
    if evidence.raised is not None:
        if isinstance(evidence.raised, NotImplementedError) or not reference.raises:
            yield raised(evidence.raised).about(what)
        else:  # FakeTensor raises too, so the device may refuse the call
            yield None
        return
    if evidence.read is None:
        return
    want = resolve(reference.resolved.result)
    wrong = differs(evidence.read, want, reference, lambda: reference.resolved_exact.result)
    yield wrong.about(what) if wrong is not None else None


_LAZY_OPERANDS: dict[str, Judge] = {"layout.values": judge_turned_values}
