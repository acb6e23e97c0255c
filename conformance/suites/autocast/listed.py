"""autocast.lists: the policy of each op."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from conformance.checks.autocast.asking import FLOAT32, Answer, asked, lower_dtypes, tensors_in
from conformance.checks.autocast.calls import ARGUMENTS, Leaves, Operands, overload
from conformance.checks.autocast.lists import LISTS
from conformance.checks.cases.cases import Cases
from conformance.checks.cases.context import Context
from conformance.checks.cases.endings import NotDeclared
from devices.failure import Kind

cases = Cases(Kind.DTYPE)

#: How far results of one op may be apart that were computed in one dtype: in its eps, of the largest element.
_ROUNDINGS = 16.0


@cases("autocast.lists", over={op: (op, policy) for policy in LISTS for op in LISTS[policy]})
def listed(context: Context, op: str, policy: str) -> None:
    """An op runs in the dtype of its list, with each lower precision that the device declares."""
    for own in context.descriptor.autocast:
        if op in own.ops:
            policy = own.policy
    judge = _JUDGES[policy]
    lowers = lower_dtypes(context.opened)
    if not lowers:
        raise NotDeclared("the descriptor declares neither bfloat16 nor float16")
    for lower in lowers:
        judge(context, op, lower)
        if "float64" in context.descriptor.dtypes and policy != "refused":
            _wide(context, op, lower)


def _wide(context: Context, op: str, lower: torch.dtype) -> None:
    """Operands of float64 are cast by no list (docs/source/amp, "Op Eligibility")."""
    wide = [torch.float64]
    answer, plain = (asked(context.opened, op, wide, region) for region in (lower, None))
    context.same(answer.told, plain.told, f"{op} of float64 gives what it gives without autocast")


def _dtypes(
    context: Context,
    op: str,
    given: Sequence[torch.dtype],
    region: torch.dtype,
    computed: torch.dtype,
    text: str,
    **named: Any,
) -> Answer:
    """A call in a region gives results of the dtype that it computes in. That there is no kernel for this dtype is no
    fault of autocast's: without a region, operands of it are refused too."""
    answer = asked(context.opened, op, given, region, **named)
    if isinstance(answer.error, NotImplementedError):
        plain = asked(context.opened, op, given, None, computed=computed, **named)
        if plain.error is not None:
            raise answer.error
    if answer.error is not None:
        error = f"{type(answer.error).__name__}: {answer.error}"
        context.same(error, "no exception", text, kind=Kind.RAISED)
    wanted = (str(computed)[6:],) * len(answer.dtypes)
    context.same(answer.dtypes, wanted, text)
    return answer


def _values(
    context: Context, op: str, answer: Answer, given: Sequence[torch.dtype], computed: torch.dtype
) -> None:
    """The results are those of the op on operands that were cast before, in no region: the same kernel in the same
    dtype. Where that cannot be called, there is nothing to compare with."""
    want = asked(context.opened, op, given, None, computed=computed)
    if want.error is None:
        text = f"{op} computes in {computed}, as it does of operands of this dtype"
        near(context, answer.results, want.results, computed, text)


def near(
    context: Context,
    found: Sequence[torch.Tensor | None],
    want: Sequence[torch.Tensor | None],
    computed: torch.dtype,
    text: str,
) -> None:
    """Tensors of a floating dtype that came from one kernel are apart by a few roundings at most, NaN where NaN is."""
    for mine, theirs in zip(found, want):
        context.same(mine is None, theirs is None, text, kind=Kind.VALUES)
        if mine is None or theirs is None or not theirs.is_floating_point():
            continue
        a, b = (context.from_device(each.detach()).double() for each in (mine, theirs))
        context.same(tuple(a.shape), tuple(b.shape), text, kind=Kind.SHAPE)
        finite = b.isfinite()
        largest = float(b[finite].abs().max()) if bool(finite.any()) else 0.0
        bound = _ROUNDINGS * torch.finfo(computed).eps * max(largest, 1e-3)
        apart = float((a - b)[finite].abs().max()) if bool(finite.any()) else 0.0
        holds = apart <= bound and torch.equal(a.isfinite(), finite)
        expected = f"at most {bound:.3g} apart"
        context.check(holds, text, expected=expected, found=f"{apart:.3g} apart", kind=Kind.VALUES)


def _lower(context: Context, op: str, lower: torch.dtype) -> None:
    for given in ([FLOAT32], [lower], [FLOAT32, lower], [lower, FLOAT32]):
        text = f"{op} of {_told(given)} runs in the region's {lower}"
        answer = _dtypes(context, op, given, lower, lower, text)
        _values(context, op, answer, given, lower)
    _trained(context, op, lower, lower)


def _float32(context: Context, op: str, lower: torch.dtype) -> None:
    for given in ([lower], [FLOAT32], [FLOAT32, lower], [lower, FLOAT32]):
        text = f"{op} of {_told(given)} runs in float32"
        answer = _dtypes(context, op, given, lower, FLOAT32, text)
        _values(context, op, answer, given, FLOAT32)
    _trained(context, op, lower, FLOAT32)


def _float32_by_default(context: Context, op: str, lower: torch.dtype) -> None:
    _float32(context, op, lower)
    for given in (FLOAT32, lower):
        named: dict[str, Any] = {"dtype": lower}
        plain = asked(context.opened, op, [given], None, **named)
        if plain.error is not None:
            continue  # the op does not take this dtype
        text = f"{op} of {given} runs in the dtype that it is asked for"
        _dtypes(context, op, [given], lower, lower, text, **named)


def _promote(context: Context, op: str, lower: torch.dtype) -> None:
    for given in ([FLOAT32, lower], [lower, FLOAT32], [lower, lower, FLOAT32], [FLOAT32]):
        if len({*_operands(context, op, given)}) < 2 and given != [FLOAT32]:
            continue  # it has fewer operands
        text = f"{op} of {_told(given)} runs in the widest dtype"
        answer = _dtypes(context, op, given, lower, FLOAT32, text)
        _values(context, op, answer, given, FLOAT32)
    if asked(context.opened, op, [lower], None).error is None:
        _dtypes(context, op, [lower], lower, lower, f"{op} of {lower} runs in {lower}")
    _trained(context, op, lower, FLOAT32, widest=True)


def _unlisted(context: Context, op: str, lower: torch.dtype) -> None:
    for given in ([FLOAT32], [lower], [FLOAT32, lower], [lower, FLOAT32]):
        answer, plain = (asked(context.opened, op, given, region) for region in (lower, None))
        text = f"{op} of {_told(given)}, which no list names, gives what it gives without autocast"
        context.same(answer.told, plain.told, text)
        if answer.error is None:
            for mine, theirs in zip(answer.results, plain.results):
                context.equal(context.from_device(mine), context.from_device(theirs), text)
    _trained(context, op, lower, None)


def _composed(context: Context, op: str, lower: torch.dtype) -> None:
    answer, plain = (asked(context.opened, op, [FLOAT32], region) for region in (lower, None))
    text = f"{op} of float32 raises where it does without autocast"
    context.same(answer.error is None, plain.error is None, text, kind=Kind.RAISED)
    _values(context, op, answer, [FLOAT32], lower)


# With a graph, and weights that change


def _trained(
    context: Context,
    op: str,
    lower: torch.dtype,
    computed: torch.dtype | None,
    *,
    widest: bool = False,
) -> None:
    """With leaves that want a gradient, results and gradients are those of leaves that are cast before, with other
    leaves of the same shapes in the same region too, and with their new values in the next region. Leaves are in
    float32, and in both dtypes in turn."""
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
    except Exception as error:  # judged by whether it is raised without autocast too
        return Answer(error=error)


def _as_if_cast(
    context: Context,
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
        return  # the op cannot be called in this dtype without autocast: nothing to compare with
    text = f"{op} of leaves gives what it gives of leaves that were cast before"
    context.same(answer.told, want.told, text)
    precision = computed or max(given, key=lambda each: torch.finfo(each).eps, default=FLOAT32)
    near(context, answer.results, want.results, precision, text)
    graph = [each.requires_grad for each in want.results]
    context.same([each.requires_grad for each in answer.results], graph, f"{text}: a graph")
    if not any(graph):
        return
    try:
        there = _gradients(want.results, known.leaves)
    except Exception:
        return  # it has no backward, in this dtype
    here = _gradients(answer.results, leaves.leaves)
    dtypes = [None if each is None else each.dtype for each in here]
    wanted = [None if each is None else leaf.dtype for each, leaf in zip(there, leaves.leaves)]
    context.same(dtypes, wanted, f"{op}: gradients have the dtype of their leaf")
    near(context, here, there, precision, f"{op}: gradients are those of leaves that were cast")


def _gradients(
    results: Sequence[torch.Tensor], leaves: Sequence[torch.Tensor]
) -> tuple[torch.Tensor | None, ...]:
    totals = [each.float().sum() for each in results if each.requires_grad]
    return torch.autograd.grad(totals, leaves, allow_unused=True)


def _refused(context: Context, op: str, lower: torch.dtype) -> None:
    answer = asked(context.opened, op, [FLOAT32], lower)
    found = answer.error
    text = f"{op} is unsafe under autocast, and raises a RuntimeError"
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


def _told(given: Sequence[torch.dtype]) -> str:
    return " and ".join(str(each)[6:] for each in given)


def _operands(context: Context, op: str, given: Sequence[torch.dtype]) -> list[torch.dtype]:
    made = Operands(context.opened, given)
    ARGUMENTS[op](made)
    return [given[number % len(given)] for number in range(made.made)]
