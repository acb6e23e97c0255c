"""Faults of special values: NaN, and bool bytes other than 0 and 1."""

from __future__ import annotations

from typing import Any

import torch

from tests.planting.calls import NOT_MET, KernelCall
from tests.wrapped.faults.probing import wrong
from tests.wrapped.registry import fault, probe

NAN, INF = float("nan"), float("inf")
_LEFT, _RIGHT = torch.tensor([NAN, 1.0, 2.0]), torch.tensor([0.0, NAN, 3.0])


@fault("special.max_drops_nan", "special_values", ops="maximum")
@probe(lambda: wrong(torch.maximum, _LEFT, _RIGHT))
def _(call: KernelCall) -> Any:
    """The maximum of NaN and a number is the number."""
    return torch.fmax(*call.args)


@fault("special.fmax_propagates_nan", "special_values", ops="fmax")
@probe(lambda: wrong(torch.fmax, _LEFT, _RIGHT))
def _(call: KernelCall) -> Any:
    """fmax of NaN and a number is NaN."""
    return torch.maximum(*call.args)


@fault("special.amax_drops_nan", "special_values", ops="amax")
@probe(lambda: wrong(torch.amax, _LEFT, 0))
def _(call: KernelCall) -> Any:
    """A reduction leaves NaN out."""
    return call.honest(self=call.first.nan_to_num(-INF, INF, -INF))


@fault("special.sum_drops_nan_strided", "special_values", ops="sum", at="sum.dim_IntList")
@probe(lambda: wrong(torch.sum, _LEFT.repeat_interleave(2)[::2], 0))
def _(call: KernelCall) -> Any:
    """A reduction of a strided input leaves NaN out."""
    if call.first.is_contiguous():
        return NOT_MET
    return call.honest(self=call.first.nan_to_num(0.0, INF, -INF))


@fault("special.clamp_drops_nan", "special_values", ops="clamp", at="clamp.Tensor")
@probe(lambda: wrong(torch.clamp, _LEFT, torch.zeros(3)))
def _(call: KernelCall) -> Any:
    """clamp gives the lower bound for NaN."""
    lower = call.values["min"]
    return NOT_MET if lower is None else torch.where(call.first.isnan(), lower, call.honest())


@fault("special.sort_nan_first", "special_values", ops="sort", at="sort sort.stable")
@probe(lambda: wrong(torch.sort, torch.tensor([1.0, NAN, 0.0])))
def _(call: KernelCall) -> Any:
    """NaN sorts as the smallest value."""
    if not call.first.isnan().any():
        return NOT_MET
    _, order = call.honest(self=call.first.nan_to_num(-INF, INF, -INF))
    return torch.gather(call.first, -1, order), order


@fault("special.scan_forgets_nan", "special_values", ops="cummax")
@probe(lambda: wrong(torch.cummax, torch.tensor([1.0, NAN, 2.0]), 0))
def _(call: KernelCall) -> Any:
    """A running maximum goes on after NaN."""
    return call.honest(self=call.first.nan_to_num(-INF, INF, -INF))


@fault(
    "special.nanmedian_counts_nan", "special_values", ops="nanmedian", at="nanmedian nanmedian.dim"
)
@probe(lambda: wrong(torch.nanmedian, _LEFT))
def _(call: KernelCall) -> Any:
    """nanmedian is NaN where a value is."""
    # Which of several equal medians the index names is not documented: only NaN may decide.
    return torch.median(*call.args, **call.kwargs) if call.first.isnan().any() else NOT_MET


_ODD_BYTES = torch.tensor([0, 1, 2], dtype=torch.uint8).view(torch.bool)


@fault("special.bool_byte_raw", "special_values", ops="logical_not logical_and", dtypes="bool")
@probe(lambda: wrong(torch.logical_not, _ODD_BYTES))
def _(call: KernelCall) -> Any:
    """Only the lowest bit of a bool's byte is read."""
    low = [
        a.view(torch.uint8).bitwise_and(1).bool() if a.dtype == torch.bool else a for a in call.args
    ]
    return call.honest().copy_(call.function(*low))
