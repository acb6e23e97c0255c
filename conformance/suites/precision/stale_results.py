"""Checks of the clause precision.trust: the result of each call must belong to its own operands, not to those of an
earlier call."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from conformance.checks.ops import standalone_checks
from conformance.checks.ops.context import OpContext
from conformance.checks.ops.roundings import as_exact, exact_answer
from conformance.checks.ops.script import NotApplicable, NotReturned, WrongAlready
from opinfo.compare import (
    SUM_ROUNDINGS,
    Tolerances,
    Wrong,
    difference,
    outputs_of,
    replace_tensors,
    tensors_of,
)
from opinfo.reference import value_answer
from opinfo.samples import Sample, Traits

TRUST = "precision.trust"

#: Number of samples that are called for each op and dtype.
_SAMPLES = 2
#: The number of elements from which a sample is large, and the number of calls with new values of a large recorded call.
_LARGE, _CALLS_IF_LARGE = 2**16, 2


def check_stale_results(ctx: OpContext) -> None:
    """Call the op on up to two samples whose right result cannot be confused with zeros, an earlier result, a constant
    or an operand, and then on the first sample again. Then call the op with non-contiguous operands, with a
    non-contiguous ``out=``, and in place. A large recorded call is made with contiguous operands only, and fewer times:
    one takes seconds."""
    with ctx.running(TRUST):
        chosen: list[Sample] = []
        for sample in sorted(ctx.samples, key=lambda s: (s.numel > _LARGE, s.index)):
            if len(chosen) < _SAMPLES and not impostors(ctx.traits, ctx.tolerances, sample):
                chosen.append(sample)
        given: dict[str, Any] = {"dtype": ctx.dtype, "tolerances": ctx.tolerances}
        large = ctx.traits.recorded and any(each.numel > _LARGE for each in chosen)
        if large:
            given["calls"] = _CALLS_IF_LARGE
        for turn, sample in enumerate([*chosen, *chosen[:1]]):
            given |= {"turn": turn, "roundings": roundings(ctx.traits), "strided": ""}
            standalone_checks.run(ctx, TRUST, "", fresh_answers, sample=sample, **given)
        if large:
            return
        for turn, how in enumerate(("step", "transposed", "into"), len(chosen) + 1):
            takes = _takes_out if how == "into" else _takes_strided
            laid = (s for s in chosen if takes(ctx, s, how))
            if ctx.device.lays_out and (strided := next(laid, None)) is not None:
                given |= {"turn": turn, "strided": how}
                standalone_checks.run(ctx, TRUST, how, fresh_answers, sample=strided, **given)
        fits = (s for s in chosen if _takes_in_place(ctx, s))
        if (target := next(fits, None)) is not None:
            given |= {"turn": turn + 1, "strided": "inplace", "inplace": True}
            standalone_checks.run(ctx, TRUST, "inplace", fresh_answers, sample=target, **given)


def _takes_out(ctx: OpContext, sample: Sample, how: str) -> bool:
    """Return True if the CPU writes the right result into an ``out=`` tensor with gaps between its elements."""
    if not ctx.subject.has_out:
        return False
    want = value_answer(ctx.subject.reference, sample.call.on, sample.tensors)
    if want.raises is not None or not isinstance(want.result, torch.Tensor):
        return False
    function = into(ctx.subject.reference, spread(torch.zeros_like(want.result), "step"))
    return _agrees(ctx, sample, function, sample.tensors)


def _takes_in_place(ctx: OpContext, sample: Sample) -> bool:
    """Return True if the in-place variant writes the right result to the first operand on the CPU."""
    variant = ctx.subject.inplace
    if variant is None or ctx.subject.restrides_in_place or not ctx.traits.writes_self:
        return False
    return bool(sample.tensors) and _agrees(ctx, sample, on_a_copy(variant), sample.tensors)


def _takes_strided(ctx: OpContext, sample: Sample, how: str) -> bool:
    """Return True if the CPU gives the same result for non-contiguous operands. The result is False, for example, for
    ``view``, which refuses such operands, and for ``as_strided``, which ignores their strides."""
    laid = [spread(each, how) for each in sample.tensors]
    if all(each is given or each.is_contiguous() for each, given in zip(laid, sample.tensors)):
        return False
    return _agrees(ctx, sample, ctx.subject.reference, laid)


def _agrees(
    ctx: OpContext, sample: Sample, function: Callable[..., Any], tensors: list[torch.Tensor]
) -> bool:
    """Return True if ``function`` called on ``tensors`` gives the op's result for the sample, both on the CPU. The
    tensors have the values of the sample and may have a different layout."""
    found = value_answer(function, sample.call.on, tensors)
    want = value_answer(ctx.subject.reference, sample.call.on, sample.tensors)
    if found.raises is not None or want.raises is not None:
        return False
    return (
        difference(found.result, want.result, ctx.tolerances, roundings=roundings(ctx.traits))
        is None
    )


def roundings(traits: Traits) -> float:
    """Return the number of roundings by which a result of the op may differ in addition to the tolerance. The number
    is the same as for layout.values."""
    return SUM_ROUNDINGS if "values.sums" in traits.families else 0.0


def impostors(traits: Traits, tolerances: Tolerances, sample: Sample) -> list[str]:
    """Return the names of wrong results (zeros, the last result, a constant, an operand) that the comparison would
    accept for the sample. A sample with such a result is not used. "an operand" is not tried for an op that is
    documented to return its operand."""
    kind = getattr(torch, traits.dtype)
    values, more = sample.tensors, others(sample.tensors, kind)
    stale = value_answer(traits.subject.reference, sample.call.on, values)
    answer = value_answer(traits.subject.reference, sample.call.on, more)
    want = outputs_of(answer.result) if answer.raises is None and stale.raises is None else None
    if not want or not any(each.numel() for each in want):
        return ["no result"]
    first, more_values = next(each for each in want if each.numel()), more[:1]
    wrong: dict[str, Any] = {
        "zeros": [torch.zeros_like(each) for each in want],
        "the last result": outputs_of(stale.result),
    }
    if first.numel() > 1:
        constant = first.flatten()[0].item()
        wrong["a constant"] = [torch.full_like(each, constant) for each in want]
    if more_values and "returns_input" not in traits.families:
        wrong["an operand"] = [*more_values, *want[1:]]
    return [
        name
        for name, found in wrong.items()
        if difference(found, want, tolerances, roundings=roundings(traits)) is None
    ]


def others(values: list[torch.Tensor], kind: torch.dtype) -> list[torch.Tensor]:
    """Return operands of the same shapes with different values: each tensor of dtype ``kind`` reversed and halved. Such
    values stay in the domain of the functions in torch's database."""
    found = []
    for each in values:
        if each.dtype == kind and each.layout == torch.strided:
            each = (each.flip(list(range(each.dim()))) * 0.5).contiguous()
        found.append(each)
    return found


def fresh_answers(
    op: Callable[..., Any],
    move: Any,
    back: Any,
    values: list[torch.Tensor],
    arguments: Callable[[list[torch.Tensor]], Any],
    *,
    turn: int,
    dtype: str,
    tolerances: dict[str, tuple[float, float]],
    roundings: float,
    strided: str,
    calls: int = 10,
) -> Wrong | None:
    """Call the op, copy different values into the same operands, and call the op ``calls`` more times. Every result must
    belong to the values at the time of its call, and later calls must not change the first result. Raises WrongAlready
    if a single call is wrong."""

    def placed(tensors: list[torch.Tensor]) -> list[torch.Tensor]:
        there = [move(each.clone()) for each in tensors]
        return [spread(each, strided) for each in there]

    more = others(values, getattr(torch, dtype))
    wants, apart = [], True
    for given in (values, more):
        own = [each.clone() for each in given]
        args, kwargs = arguments(own)
        wants.append(on_cpu(op, args, kwargs))
        apart = apart and not shares_memory(tensors_of(wants[-1]), own)
    held = placed(values)
    function = op
    if strided == "into":
        function = into(op, spread(move(torch.zeros_like(wants[0])), "step"))
    elif strided == "inplace":
        function = on_a_copy(op)

    def called() -> Any:
        args, kwargs = arguments(held)
        try:
            return function(*args, **kwargs)
        except NotImplementedError:
            raise
        except Exception as error:
            raise NotReturned(
                "the call raised an exception; other clauses check exceptions"
            ) from error

    held_first = called()
    first = replace_tensors(held_first, back)

    def right(alone: Any, place: int) -> bool:
        """Return True if the result of a single call is the CPU's, or is as close to the exact result as the CPU's. In
        the second case, the results of later calls are compared with the result of the single call."""
        want, given = wants[place], (values, more)[place]
        if difference(alone, want, tolerances, roundings=roundings) is None:
            return True
        true = exact_answer(op, lambda tensors, _: arguments(tensors), given).result
        if not as_exact(alone, want, true, tolerances, roundings):
            return False
        wants[place] = replace_tensors(alone, torch.Tensor.clone)
        return True

    if not right(first, 0):
        if strided in ("into", "inplace"):
            judge = "layout.out_kept" if strided == "into" else "layout.inplace"
            raise NotApplicable(f"a single call is already wrong, which {judge} reports")
        raise WrongAlready("a single call already has wrong values")
    for place, each in enumerate(more):
        if each is not values[place]:
            held[place].copy_(move(each))
    results = [called() for _ in range(calls)]
    for count, result in enumerate(results):
        read = replace_tensors(result, back)
        wrong = difference(read, wants[1], tolerances, roundings=roundings)
        stale = (
            wrong is not None
            and difference(read, wants[0], tolerances, roundings=roundings) is None
        )
        if wrong is not None and not stale and count == 0:
            held = placed(more)
            if not right(replace_tensors(called(), back), 1):
                raise WrongAlready("a single call already has wrong values")
            wrong = difference(read, wants[1], tolerances, roundings=roundings)
        if wrong is not None:
            what = "the result for the earlier values" if stale else "a different result"
            return Wrong(
                wrong.kind,
                "the result for the values at the time of the call",
                what,
                f"call {count + 1} of {calls} on operands whose values were replaced",
                count=wrong.count,
                total=wrong.total,
                first=wrong.first,
            )
    if apart:
        kept = replace_tensors(held_first, back)
        if difference(kept, wants[0], tolerances, roundings=roundings) is not None:
            return Wrong(
                "alias",
                "the result of the first call to stay unchanged",
                "different values after more calls",
                "a result that was kept during later calls",
            )
    return None


def spread(tensor: torch.Tensor, how: str) -> torch.Tensor:
    """Return a tensor with the same elements: as every third element of a larger tensor (``how="step"``) or in
    transposed memory order (``how="transposed"``). For any other ``how``, the tensor itself is returned."""
    if how not in ("step", "transposed") or not tensor.dim() or tensor.layout != torch.strided:
        return tensor
    if how == "transposed":
        return tensor.mT.contiguous().mT if tensor.dim() > 1 else tensor
    shape = (*tensor.shape[:-1], 3 * tensor.shape[-1])
    apart = torch.zeros(shape, dtype=tensor.dtype, device=tensor.device)[..., ::3]
    return apart.copy_(tensor)


def into(op: Callable[..., Any], target: torch.Tensor) -> Callable[..., Any]:
    """Return a function that calls the op with ``out=target`` and returns a copy of the result."""
    return lambda *args, **kwargs: op(*args, **kwargs, out=target).clone()


def on_a_copy(op: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that calls the in-place op on a copy of its first operand."""
    return lambda first, *args, **kwargs: op(first.clone(), *args, **kwargs)


def shares_memory(results: list[torch.Tensor], operands: list[torch.Tensor]) -> bool:
    """Return True if a result is an operand, is a view of an operand, or is not strided. All tensors are on the CPU."""
    known = {t.untyped_storage().data_ptr() for t in operands if t.layout == torch.strided}
    return any(
        t.layout != torch.strided or t.untyped_storage().data_ptr() in known for t in results
    )


def on_cpu(op: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    """Call the op on CPU arguments and return the result. A ``device`` argument is replaced by the CPU."""
    cpu = torch.device("cpu")
    if kwargs.get("device") is not None:
        kwargs = {**kwargs, "device": cpu}
    return op(*args, **kwargs)
