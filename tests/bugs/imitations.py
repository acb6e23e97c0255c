"""The faults that ``conformance/contract/bugs.toml`` describes, in front of an op."""

from __future__ import annotations

import re
from collections.abc import Callable
from itertools import count
from typing import Any

import torch

from conformance.contract.bugs import MEASURED, Imitation, When, sizes_of
from opinfo.compare import replace_tensors, tensors_of
from tests.bugs.conditions import CONDITIONS
from tests.planting.calls import NOT_MET, Effect, KernelCall
from tests.planting.tensors import as_dense, is_expanded, is_stepped, reread, twin


def _values(tensor: torch.Tensor) -> torch.Tensor:
    """What comparisons take: no bits pending, and real."""
    tensor = tensor.detach().resolve_conj().resolve_neg()
    return torch.view_as_real(tensor) if tensor.is_complex() else tensor


def _above(tensor: torch.Tensor, past: float) -> bool:
    return tensor.numel() > 0 and bool((_values(tensor).double().abs() > past).any())


def _repeats(tensor: torch.Tensor) -> bool:
    whole = (
        not tensor.is_floating_point() and not tensor.is_complex() and tensor.dtype != torch.bool
    )
    return whole and tensor.unique().numel() < tensor.numel()


def _channels_last(tensor: torch.Tensor) -> bool:
    formats = {4: torch.channels_last, 5: torch.channels_last_3d}
    chosen = formats.get(tensor.dim())
    return chosen is not None and not tensor.is_contiguous() and tensor.is_contiguous(memory_format=chosen)  # fmt: skip


#: Whether a condition holds of an operand.
HOLDS: dict[str, Callable[[torch.Tensor], bool]] = {
    "strided": lambda t: not t.is_contiguous(),
    "dense": torch.Tensor.is_contiguous,
    "stepped": is_stepped,
    "expanded": is_expanded,
    "offset": lambda t: t.storage_offset() > 0,
    "unaligned": lambda t: t.data_ptr() % 16 != 0,
    "channels_last": _channels_last,
    "conj": lambda t: t.is_conj() or t.is_neg(),
    "scalar": lambda t: t.dim() == 0,
    "single": lambda t: t.numel() == 1,
    "bool": lambda t: t.dtype == torch.bool,
    "int32": lambda t: t.dtype == torch.int32,
    "int16": lambda t: t.dtype == torch.int16,
    "empty": lambda t: t.numel() == 0,
    "nan": lambda t: bool(t.isnan().any()),
    "inf": lambda t: bool(t.isinf().any()),
    "zero": lambda t: bool((t == 0).any()),
    "negative": lambda t: t.numel() > 0 and bool((_values(t) < 0).any()),
    "repeats": _repeats,
    "complex": torch.Tensor.is_complex,
}

_MEASURES: dict[str, Callable[[torch.Tensor, float], bool]] = {
    "rank": lambda t, past: t.dim() > past,
    "extent": lambda t, past: max(t.shape, default=1) > past,
    "size": lambda t, past: t.numel() > past,
    "above": _above,
    "below": lambda t, past: t.numel() > 0 and bool((_values(t).double().abs() < past).all()),
}


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _of_call(word: When, call: KernelCall, past: float | None) -> bool:
    """Whether a condition on the whole call holds."""
    if word in ("inplace", "out"):
        return call.form == {"inplace": "in-place"}.get(word, word)
    if word == "deterministic":
        return torch.are_deterministic_algorithms_enabled()
    if word == "strided_out":
        return any(not t.is_contiguous() for t in tensors_of(call.kwargs.get("out")))
    if word == "number":
        return any(map(_is_number, call.args))
    if word == "leading_number":
        return _is_number(call.first)
    given = [*call.args, *call.kwargs.values()]
    whole = [each for each in given if isinstance(each, int) and not isinstance(each, bool)]
    if word == "negative_number":
        return any(each < 0 for each in whole)
    if word == "first_dim":
        return any(each in (0, -call.first.dim()) for each in whole)
    if word == "count":
        assert past is not None
        return any(each > past for each in whole)
    if word in ("flag", "flags"):
        return sum(each is True for each in given) > (word == "flags")
    if word == "uneven":
        return any(isinstance(each, tuple) and len({*map(str, each)}) > 1 for each in given)
    assert word == "mixed"
    return len({t.dtype for t in tensors_of((call.args, call.kwargs))}) > 1


_OF_CALL = (
    "inplace", "out", "strided_out", "number", "leading_number", "negative_number", "count", "first_dim", "mixed",
    "flag", "flags", "uneven", "deterministic",
)  # fmt: skip

#: How an operand is read wrongly.
READS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "read_dense": as_dense,
    "read_base": lambda t: reread(t, offset=0),
    "unconjugated": lambda t: t.conj() if t.is_conj() else torch._neg_view(t) if t.is_neg() else t,
    "through_float32": lambda t: t if t.is_complex() else t.float().to(t.dtype),
    "through_bfloat16": lambda t: t.bfloat16().to(t.dtype) if t.is_floating_point() else t,
    "through_int32": lambda t: t.int().to(t.dtype) if t.dtype == torch.int64 else t,
}


def _wrong(t: torch.Tensor) -> torch.Tensor:
    return t.logical_not() if t.dtype == torch.bool else t + 1


def _last_wrong(t: torch.Tensor) -> torch.Tensor:
    made = t.contiguous().clone()
    flat = made.view(-1)[-1:]
    flat.copy_(_wrong(flat))
    return made


def _next_number(t: torch.Tensor) -> torch.Tensor:
    """The neighbour of each finite number that is not zero, away from zero."""
    whole = {2: torch.int16, 4: torch.int32, 8: torch.int64}.get(t.itemsize)
    if not t.is_floating_point() or whole is None:
        return t
    neighbour = (t.contiguous().view(whole) + 1).view(t.dtype)
    return torch.where(t.isfinite() & (t != 0), neighbour, t)


#: How a result is spoiled.
RESULTS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "wrong": _wrong,
    "last_wrong": lambda t: _last_wrong(t) if t.numel() else t,
    "zeros": torch.zeros_like,
    "first_only": lambda t: torch.cat([t[:1], torch.zeros_like(t[1:])]) if t.dim() else t,
    "nan": lambda t: torch.full_like(t, float("nan")) if t.is_floating_point() else t,
    "no_nan": lambda t: t.nan_to_num(0.0, float("inf"), float("-inf")) if t.is_floating_point() else t,
    "imprecise": lambda t: t * 1.02 if t.is_floating_point() or t.is_complex() else t,
    "next_number": _next_number,
    "truncated": lambda t: t.trunc() if t.is_floating_point() else t,
    "as_float32": lambda t: t.float().to(t.dtype) if t.dtype == torch.float64 else t,
}  # fmt: skip


#: What errors say of an index that is out of range.
_OF_AN_INDEX = re.compile(
    r"out of (range|bounds)|an empty tensor|class values|expected idx|index_size|target \d+ is|not in the valid range|index \S+ is out",
    re.I,
)


def _column_major(t: torch.Tensor) -> torch.Tensor:
    order = tuple(reversed(range(t.dim())))
    return t.permute(order).contiguous().permute(order)


def _scribbled(result: Any) -> None:
    """Overwrite the last byte of each storage."""
    for tensor in tensors_of(result):
        storage = tensor.untyped_storage()
        if storage.nbytes():
            storage[storage.nbytes() - 1] = 7


def effect_of(imitation: Imitation) -> Effect:
    """The fault that imitates a bug."""
    calls = count(1)

    def effect(call: KernelCall) -> Any:
        number = next(calls)
        strikes = ("again" not in imitation.when or number > 1) and _strikes(imitation, call)
        return _spoiled(imitation, call, number) if strikes else NOT_MET

    return effect


def _strikes(imitation: Imitation, call: KernelCall) -> bool:
    if imitation.keyword and call.kwargs.get(imitation.keyword) in (None, False):
        return False
    words = [word for word in imitation.when if word != "again"]
    if not all(_of_call(word, call, imitation.past) for word in words if word in _OF_CALL):
        return False
    if not fit(imitation.shapes, call.inputs):
        return False
    if imitation.where and not CONDITIONS[imitation.where](call):
        return False
    words = [word for word in words if word not in _OF_CALL]
    operands = call.inputs
    if imitation.arg is not None:
        operands = operands[imitation.arg : imitation.arg + 1]
    if not words:
        return bool(operands) or imitation.arg is None
    return any(all(holds(word, t, imitation.past) for word in words) for t in operands)


def fit(patterns: tuple[str, ...], tensors: list[torch.Tensor]) -> bool:
    """Whether there is a tensor for every pattern, and the tensors have these shapes."""
    return len(patterns) <= len(tensors) and all(map(_fits, patterns, tensors))


def _fits(pattern: str, tensor: torch.Tensor) -> bool:
    more, sizes = sizes_of(pattern)
    if tensor.dim() < len(sizes) or (tensor.dim() > len(sizes) and not more):
        return False
    last = tensor.shape[tensor.dim() - len(sizes) :]
    return all(least <= size <= most for size, (least, most) in zip(last, sizes, strict=True))


def holds(word: str, tensor: torch.Tensor, past: float | None) -> bool:
    if word in MEASURED:
        assert past is not None
        return _MEASURES[word](tensor, past)
    return HOLDS[word](tensor)


@torch.no_grad()
def _spoiled(imitation: Imitation, call: KernelCall, number: int) -> Any:
    then, args, kwargs = imitation.then, call.args, call.kwargs
    if then == "refused":
        raise RuntimeError(f"{imitation.op}: internal error")
    if then in ("accepted", "index_accepted"):
        try:
            return call.honest()
        except (RuntimeError, IndexError, ValueError, TypeError) as error:
            if then == "index_accepted" and not _OF_AN_INDEX.search(str(error)):
                raise
            return kwargs.get("out", next(iter(call.inputs), None))
    if then == "ignored":
        return call.function(*args, **{k: v for k, v in kwargs.items() if k != imitation.keyword})
    if then in READS:
        return _misread(imitation, call)
    if then == "base_kept":
        return _written_elsewhere(call)
    if then == "write_lost":
        targets = tensors_of((args[: call.form == "in-place"], kwargs.get("out")))
        before = [t.clone() for t in targets]
        result = call.honest()
        for target, kept in zip(targets, before, strict=True):
            if target.shape == kept.shape:
                target.copy_(kept)
        return result
    result = call.honest()
    if then == "input":
        return (
            result.copy_(call.inputs[0])
            if call.form != "functional"
            else twin(result).copy_(call.inputs[0])
        )
    if then == "shortened":
        return replace_tensors(result, lambda t: t[:-1] if t.dim() else t)
    if then == "write_outside":
        _scribbled(result)
        return result
    if then == "other_dtype":
        wider = {torch.float32: torch.float64, torch.bool: torch.uint8, torch.int64: torch.int32}
        return replace_tensors(result, lambda t: t.to(wider.get(t.dtype, torch.float32)))
    if then in ("row_major", "column_major"):
        restrided = torch.Tensor.contiguous if then == "row_major" else _column_major
        return replace_tensors(result, restrided)
    change = (lambda t: t + number) if then == "varying" else RESULTS[then]
    into = (lambda t: t) if call.form != "functional" else twin
    return replace_tensors(result, lambda t: into(t).copy_(change(t)))


def _written_elsewhere(call: KernelCall) -> Any:
    """An out= tensor that is a view is written to memory of its own, so that its base does not change."""
    target = call.kwargs["out"]
    if not isinstance(target, torch.Tensor) or not target._is_view():
        return call.honest()
    call.function(*call.args, **{**call.kwargs, "out": (made := target.clone())})
    return target.set_(made)


def _misread(imitation: Imitation, call: KernelCall) -> Any:
    operands = call.inputs
    chosen = range(len(operands)) if imitation.arg is None else (imitation.arg,)
    ids = {
        id(operands[place])
        for place in chosen
        if place < len(operands)
        and all(holds(w, operands[place], imitation.past) for w in imitation.when if w in HOLDS or w in MEASURED)
    }  # fmt: skip
    read = READS[imitation.then]

    def given(tensor: torch.Tensor) -> torch.Tensor:
        return read(tensor) if id(tensor) in ids else tensor

    rest = {name: value for name, value in call.kwargs.items() if name != "out"}
    new_args, new_rest = replace_tensors((call.args, rest), given)
    if call.form == "in-place":  # what is read wrongly is written where it belongs
        own = new_args[0].clone() if isinstance(new_args[0], torch.Tensor) else new_args[0]
        made = call.function(own, *new_args[1:], **new_rest)
        return call.first.copy_(made)
    return call.function(*new_args, **{**call.kwargs, **new_rest})
