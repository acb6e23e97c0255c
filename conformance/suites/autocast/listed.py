"""autocast.lists: the policy of each op."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from conformance.checks.cases.cases import Cases
from conformance.checks.cases.context import Context
from conformance.suites.autocast.asking import FLOAT32, Answer, asked, lower_dtypes
from conformance.suites.autocast.calls import ARGUMENTS, Operands
from conformance.suites.autocast.lists import LISTS
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
    for lower in lower_dtypes(context):
        judge(context, op, lower)


def _dtypes(context: Context, answer: Answer, dtype: torch.dtype, text: str) -> None:
    if isinstance(answer.error, NotImplementedError):
        raise answer.error
    if answer.error is not None:
        error = f"{type(answer.error).__name__}: {answer.error}"
        context.same(error, "no exception", text, kind=Kind.RAISED)
    wanted = (str(dtype)[6:],) * len(answer.dtypes)
    context.same(answer.dtypes, wanted, text)


def _values(
    context: Context, op: str, answer: Answer, given: Sequence[torch.dtype], computed: torch.dtype
) -> None:
    """The results are those of the op on operands that were cast before, in no region: the same kernel in the same
    dtype. Where that cannot be called, there is nothing to compare with."""
    want = asked(context, op, given, None, computed=computed)
    if want.error is not None:
        return
    for mine, theirs in zip(answer.results, want.results):
        if not theirs.is_floating_point():
            continue
        a, b = (context.from_device(each).double() for each in (mine, theirs))
        bound = _ROUNDINGS * torch.finfo(computed).eps * max(float(b.abs().max()), 1e-3)
        apart = float((a - b).abs().max()) if a.shape == b.shape else float("inf")
        text = f"{op} computes in {computed}, as it does of operands of this dtype"
        found = f"{apart:.3g} apart"
        context.check(
            apart <= bound,
            text,
            expected=f"at most {bound:.3g} apart",
            found=found,
            kind=Kind.VALUES,
        )


def _lower(context: Context, op: str, lower: torch.dtype) -> None:
    for given in ([FLOAT32], [lower], [FLOAT32, lower], [lower, FLOAT32]):
        answer = asked(context, op, given, lower)
        _dtypes(context, answer, lower, f"{op} of {_told(given)} runs in the region's {lower}")
        _values(context, op, answer, given, lower)


def _float32(context: Context, op: str, lower: torch.dtype) -> None:
    for given in ([lower], [FLOAT32], [FLOAT32, lower], [lower, FLOAT32]):
        answer = asked(context, op, given, lower)
        _dtypes(context, answer, FLOAT32, f"{op} of {_told(given)} runs in float32")
        _values(context, op, answer, given, FLOAT32)


def _float32_by_default(context: Context, op: str, lower: torch.dtype) -> None:
    _float32(context, op, lower)
    for given in (FLOAT32, lower):
        named: dict[str, Any] = {"dtype": lower}
        plain = asked(context, op, [given], None, **named)
        if plain.error is not None:
            continue  # the op does not take this dtype
        answer = asked(context, op, [given], lower, **named)
        _dtypes(context, answer, lower, f"{op} of {given} runs in the dtype that it is asked for")


def _promote(context: Context, op: str, lower: torch.dtype) -> None:
    for given in ([FLOAT32, lower], [lower, FLOAT32], [lower, lower, FLOAT32], [FLOAT32]):
        if len({*_operands(context, op, given)}) < 2 and given != [FLOAT32]:
            continue  # it has fewer operands
        answer = asked(context, op, given, lower)
        _dtypes(context, answer, FLOAT32, f"{op} of {_told(given)} runs in the widest dtype")
        _values(context, op, answer, given, FLOAT32)
    answer, plain = (asked(context, op, [lower], region) for region in (lower, None))
    if plain.error is None:
        _dtypes(context, answer, lower, f"{op} of {lower} runs in {lower}")


def _unlisted(context: Context, op: str, lower: torch.dtype) -> None:
    for given in ([FLOAT32], [lower], [FLOAT32, lower], [lower, FLOAT32]):
        answer, plain = (asked(context, op, given, region) for region in (lower, None))
        text = f"{op} of {_told(given)}, which no list names, gives what it gives without autocast"
        context.same(answer.told, plain.told, text)
        if answer.error is None:
            for mine, theirs in zip(answer.results, plain.results):
                context.equal(context.from_device(mine), context.from_device(theirs), text)


def _composed(context: Context, op: str, lower: torch.dtype) -> None:
    answer, plain = (asked(context, op, [FLOAT32], region) for region in (lower, None))
    context.same(answer.error, plain.error, f"{op} of float32 raises nothing", kind=Kind.RAISED)
    _values(context, op, answer, [FLOAT32], lower)


def _refused(context: Context, op: str, lower: torch.dtype) -> None:
    answer = asked(context, op, [FLOAT32], lower)
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
    made = Operands(context, given)
    ARGUMENTS[op](made)
    return [given[number % len(given)] for number in range(made.made)]
