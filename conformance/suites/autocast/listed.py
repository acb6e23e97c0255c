"""Checks of single ops for the clause autocast.lists: each op must run in the dtype that autocast's op lists
prescribe."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from conformance.checks.autocast.asking import (
    FLOAT32,
    Answer,
    call_under_autocast,
    tensors_in,
)
from conformance.checks.autocast.calls import ARGUMENTS, Leaves, Operands, overload
from conformance.checks.autocast.lists import LISTS
from conformance.checks.autocast.offered import offered_dtypes
from conformance.checks.autocast.roundings import assert_close_in
from conformance.checks.cases.cases import Cases
from conformance.checks.cases.context import CaseContext
from devices.failure import Kind

cases = Cases(Kind.DTYPE)


@cases("autocast.lists", over={op: (op, policy) for policy in LISTS for op in LISTS[policy]})
def listed(context: CaseContext, op: str, policy: str) -> None:
    """Call an op under autocast with each lower precision in which the device offers autocast: the op must run in the dtype that
    its autocast list prescribes, and results and gradients must be those of operands that were cast before the call."""
    for own in context.descriptor.autocast:
        if op in own.ops:
            policy = own.policy
    judge = _JUDGES[policy]
    for lower in offered_dtypes(context):
        judge(context, op, lower)
        _off(context, op, lower)
        if "float64" in context.descriptor.dtypes and policy != "refused":
            _wide(context, op, lower)


def _off(context: CaseContext, op: str, lower: torch.dtype) -> None:
    """Check that the op runs as without autocast in a disabled region inside of an enabled one, and after both."""
    plain = call_under_autocast(context.opened, op, [FLOAT32], None)
    with torch.autocast(context.kind, lower):
        inside = call_under_autocast(context.opened, op, [FLOAT32], None)
    after = call_under_autocast(context.opened, op, [FLOAT32], None)
    for answer, where in ((inside, "in a disabled region inside of"), (after, "after")):
        context.same(
            answer.description,
            plain.description,
            f"{op} of float32: the result dtypes or the exception {where} an autocast region of {lower} differ from "
            "those without autocast",
        )


def _wide(context: CaseContext, op: str, lower: torch.dtype) -> None:
    """Check that autocast never casts float64 operands of the op (docs/source/amp, "Op Eligibility")."""
    wide = [torch.float64]
    answer, plain = (
        call_under_autocast(context.opened, op, wide, region) for region in (lower, None)
    )
    context.same(
        answer.description,
        plain.description,
        f"{op} of float64: the result dtypes or the exception differ from those without autocast",
    )


def _dtypes(
    context: CaseContext,
    op: str,
    given: Sequence[torch.dtype],
    region: torch.dtype,
    computed: torch.dtype,
    text: str,
    **named: Any,
) -> Answer:
    """Check that a call on operands of the dtypes ``given``, in an autocast region for the dtype ``region``, returns
    results of dtype ``computed``. Raises NotImplementedError if the device has no kernel for ``computed``, that is,
    if the call raises NotImplementedError and the call without autocast on operands of this dtype raises an
    exception too."""
    answer = call_under_autocast(context.opened, op, given, region, **named)
    if isinstance(answer.error, NotImplementedError):
        plain = call_under_autocast(context.opened, op, given, None, computed=computed, **named)
        if plain.error is not None:
            raise answer.error
    if answer.error is not None:
        error = f"{type(answer.error).__name__}: {answer.error}"
        context.same(error, "no exception", text, kind=Kind.RAISED)
    wanted = (str(computed)[6:],) * len(answer.dtypes)
    context.same(answer.dtypes, wanted, text)
    return answer


def _values(
    context: CaseContext,
    op: str,
    answer: Answer,
    given: Sequence[torch.dtype],
    computed: torch.dtype,
) -> None:
    """Check that the results agree, up to a few roundings, with those of the op called without autocast on operands
    cast to ``computed``. Nothing is checked if the call without autocast raises."""
    want = call_under_autocast(context.opened, op, given, None, computed=computed)
    if want.error is None:
        text = f"the result of {op} under autocast differs from the one for operands cast to {computed}"
        _assert_close(context, answer.results, want.results, computed, text)


def _assert_close(
    context: CaseContext,
    found: Sequence[torch.Tensor | None],
    want: Sequence[torch.Tensor | None],
    computed: torch.dtype,
    text: str,
) -> None:
    """Check that floating-point tensors that the same kernel computed differ by a few roundings at most, and are
    finite at the same positions."""
    for mine, theirs in zip(found, want):
        context.same(mine is None, theirs is None, text, kind=Kind.VALUES)
        if mine is None or theirs is None or not theirs.is_floating_point():
            continue
        assert_close_in(context, computed, mine, theirs, text, may_overflow=True)


def _lower(context: CaseContext, op: str, lower: torch.dtype) -> None:
    for given in ([FLOAT32], [lower], [FLOAT32, lower], [lower, FLOAT32]):
        text = f"{op} of {_dtype_names(given)} does not run in the region's dtype {lower}"
        answer = _dtypes(context, op, given, lower, lower, text)
        _values(context, op, answer, given, lower)
    _trained(context, op, lower, lower)


def _float32(context: CaseContext, op: str, lower: torch.dtype) -> None:
    for given in ([lower], [FLOAT32], [FLOAT32, lower], [lower, FLOAT32]):
        text = f"{op} of {_dtype_names(given)} does not run in float32"
        answer = _dtypes(context, op, given, lower, FLOAT32, text)
        _values(context, op, answer, given, FLOAT32)
    _trained(context, op, lower, FLOAT32)


def _float32_by_default(context: CaseContext, op: str, lower: torch.dtype) -> None:
    _float32(context, op, lower)
    for given in (FLOAT32, lower):
        named: dict[str, Any] = {"dtype": lower}
        plain = call_under_autocast(context.opened, op, [given], None, **named)
        if plain.error is not None:
            continue  # the op does not accept this dtype
        text = f"{op} of {given} does not run in the dtype that its argument dtype= names"
        _dtypes(context, op, [given], lower, lower, text, **named)


def _promote(context: CaseContext, op: str, lower: torch.dtype) -> None:
    for given in ([FLOAT32, lower], [lower, FLOAT32], [lower, lower, FLOAT32], [FLOAT32]):
        if len({*_operands(context, op, given)}) < 2 and given != [FLOAT32]:
            continue  # the op has fewer operands
        text = f"{op} of {_dtype_names(given)} does not run in the widest dtype of its operands"
        answer = _dtypes(context, op, given, lower, FLOAT32, text)
        _values(context, op, answer, given, FLOAT32)
    if call_under_autocast(context.opened, op, [lower], None).error is None:
        _dtypes(context, op, [lower], lower, lower, f"{op} of {lower} does not run in {lower}")
    _trained(context, op, lower, FLOAT32, widest=True)


def _unlisted(context: CaseContext, op: str, lower: torch.dtype) -> None:
    for given in ([FLOAT32], [lower], [FLOAT32, lower], [lower, FLOAT32]):
        answer, plain = (
            call_under_autocast(context.opened, op, given, region) for region in (lower, None)
        )
        text = f"{op} of {_dtype_names(given)}, which is in no autocast list, differs from the call without autocast"
        context.same(answer.description, plain.description, text)
        if answer.error is None:
            for mine, theirs in zip(answer.results, plain.results):
                context.equal(context.from_device(mine), context.from_device(theirs), text)
    _trained(context, op, lower, None)


def _composed(context: CaseContext, op: str, lower: torch.dtype) -> None:
    answer, plain = (
        call_under_autocast(context.opened, op, [FLOAT32], region) for region in (lower, None)
    )
    text = f"{op} of float32 raises with autocast but not without it, or the reverse"
    context.same(answer.error is None, plain.error is None, text, kind=Kind.RAISED)
    _values(context, op, answer, [FLOAT32], lower)


# Calls with a graph, and weights that change


def _trained(
    context: CaseContext,
    op: str,
    lower: torch.dtype,
    computed: torch.dtype | None,
    *,
    widest: bool = False,
) -> None:
    """Check calls with leaves that require gradients: results and gradients must be those of leaves that are cast
    before the call. An autocast region uses two sets of leaves of the same shapes. Then the first set is changed, and a
    second region uses both sets. The leaves are all float32, or alternate between the lower precision and float32."""
    for given in ([FLOAT32], [lower, FLOAT32]):
        first, second = Leaves(context.opened, given), Leaves(context.opened, given, shift=3)
        mine, theirs = ARGUMENTS[op](first), ARGUMENTS[op](second)
        for factor in (1.0, 0.5):
            found: list[tuple[Leaves, float, Answer]] = []
            with torch.autocast(context.kind, lower):
                found.append((first, factor, _called(op, mine)))
                found.append((second, 1.0, _called(op, theirs)))
            for leaves, times, answer in found:
                none = widest and FLOAT32 not in {each.dtype for each in leaves.leaves}
                _as_if_cast(context, op, leaves, answer, None if none else computed, times)
            with torch.no_grad():
                for each in first.leaves:
                    each.mul_(0.5)


def _called(op: str, arguments: tuple[Any, ...]) -> Answer:
    try:
        return Answer(tensors_in(overload(op)(*arguments)))
    except Exception as error:  # compared with the call without autocast
        return Answer(error=error)


def _as_if_cast(
    context: CaseContext,
    op: str,
    leaves: Leaves,
    answer: Answer,
    computed: torch.dtype | None,
    factor: float,
) -> None:
    given = [each.dtype for each in leaves.leaves]
    known = Leaves(context.opened, leaves.dtypes, computed, leaves.shift, factor)
    want = _called(op, ARGUMENTS[op](known))
    if want.error is not None:
        return  # no reference: the op cannot be called in this dtype without autocast
    text = f"the result of {op} differs from the one for leaves cast before the call"
    context.same(answer.description, want.description, text)
    precision = computed or max(given, key=lambda each: torch.finfo(each).eps, default=FLOAT32)
    _assert_close(context, answer.results, want.results, precision, text)
    graph = [each.requires_grad for each in want.results]
    context.same(
        [each.requires_grad for each in answer.results],
        graph,
        f"{op}: requires_grad of the results differs from that for leaves cast before the call",
    )
    if not any(graph):
        return
    try:
        there = _gradients(want.results, known.leaves)
    except Exception:
        return  # the op has no backward in this dtype
    here = _gradients(answer.results, leaves.leaves)
    dtypes = [None if each is None else each.dtype for each in here]
    wanted = [None if each is None else leaf.dtype for each, leaf in zip(there, leaves.leaves)]
    context.same(
        dtypes, wanted, f"{op}: the dtype of a gradient differs from the dtype of its leaf"
    )
    _assert_close(
        context,
        here,
        there,
        precision,
        f"{op}: gradients differ from those of leaves cast before the call",
    )


def _gradients(
    results: Sequence[torch.Tensor], leaves: Sequence[torch.Tensor]
) -> tuple[torch.Tensor | None, ...]:
    totals = [each.float().sum() for each in results if each.requires_grad]
    return torch.autograd.grad(totals, leaves, allow_unused=True)


def _refused(context: CaseContext, op: str, lower: torch.dtype) -> None:
    answer = call_under_autocast(context.opened, op, [FLOAT32], lower)
    found = answer.error
    text = f"{op} does not raise the documented RuntimeError under autocast"
    context.check(isinstance(found, RuntimeError), text, found=repr(found), kind=Kind.NOT_RAISED)


_JUDGES = {
    "lower": _lower,
    "float32": _float32,
    "float32_by_default": _float32_by_default,
    "promote": _promote,
    "unlisted": _unlisted,
    "refused": _refused,
    "composed": _composed,
}


def _dtype_names(given: Sequence[torch.dtype]) -> str:
    return " and ".join(str(each)[6:] for each in given)


def _operands(context: CaseContext, op: str, given: Sequence[torch.dtype]) -> list[torch.dtype]:
    made = Operands(context.opened, given)
    ARGUMENTS[op](made)
    return [given[number % len(given)] for number in range(made.made)]
