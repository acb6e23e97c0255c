"""Faults of special values: NaN, and bool bytes other than 0 and 1."""

from __future__ import annotations

from typing import Any

import torch
from tests.wrapped.faults.tools import wrong

from tests.wrapped.registry import Args, Kernel, Kwargs, fault

aten = torch.ops.aten

NAN, INF = float("nan"), float("inf")
_LEFT, _RIGHT = torch.tensor([NAN, 1.0, 2.0]), torch.tensor([0.0, NAN, 3.0])


@fault(
    "special.max_drops_nan",
    clauses=("special_values",),
    ops=("maximum",),
    at=(aten.maximum.default,),
    probe=lambda: wrong(torch.maximum, _LEFT, _RIGHT),
)
def max_drops_nan(kernel: Kernel, args: Args, kwargs: Kwargs) -> Any:
    """The maximum of NaN and a number is the number."""
    return torch.fmax(*args)


@fault(
    "special.fmax_propagates_nan",
    clauses=("special_values",),
    ops=("fmax",),
    at=(aten.fmax.default,),
    probe=lambda: wrong(torch.fmax, _LEFT, _RIGHT),
)
def fmax_propagates_nan(kernel: Kernel, args: Args, kwargs: Kwargs) -> Any:
    """fmax of NaN and a number is NaN."""
    return torch.maximum(*args)


@fault(
    "special.amax_drops_nan",
    clauses=("special_values",),
    ops=("amax",),
    at=(aten.amax.default,),
    probe=lambda: wrong(torch.amax, _LEFT, 0),
)
def amax_drops_nan(kernel: Kernel, args: Args, kwargs: Kwargs) -> Any:
    """A reduction leaves NaN out."""
    return kernel(args[0].nan_to_num(-INF, INF, -INF), *args[1:], **kwargs)


@fault(
    "special.sum_drops_nan_strided",
    clauses=("special_values",),
    ops=("sum",),
    at=(aten.sum.dim_IntList,),
    probe=lambda: wrong(torch.sum, _LEFT.repeat_interleave(2)[::2], 0),
)
def sum_drops_nan_strided(kernel: Kernel, args: Args, kwargs: Kwargs) -> Any:
    """A reduction of a strided input leaves NaN out."""
    given = args[0] if args[0].is_contiguous() else args[0].nan_to_num(0.0, INF, -INF)
    return kernel(given, *args[1:], **kwargs)


@fault(
    "special.clamp_drops_nan",
    clauses=("special_values",),
    ops=("clamp",),
    at=(aten.clamp.Tensor,),
    probe=lambda: wrong(torch.clamp, _LEFT, torch.zeros(3)),
)
def clamp_drops_nan(kernel: Kernel, args: Args, kwargs: Kwargs) -> Any:
    """clamp gives the lower bound for NaN."""
    lower = args[1] if len(args) > 1 else kwargs.get("min")
    result = kernel(*args, **kwargs)
    return result if lower is None else torch.where(args[0].isnan(), lower, result)


@fault(
    "special.sort_nan_first",
    clauses=("special_values",),
    ops=("sort",),
    at=(aten.sort.default, aten.sort.stable),
    probe=lambda: wrong(torch.sort, torch.tensor([1.0, NAN, 0.0])),
)
def sort_nan_first(kernel: Kernel, args: Args, kwargs: Kwargs) -> Any:
    """NaN sorts as the smallest value."""
    given = args[0]
    if not given.isnan().any():
        return kernel(*args, **kwargs)
    _, order = kernel(given.nan_to_num(-INF, INF, -INF), *args[1:], **kwargs)
    return torch.gather(given, -1, order), order


@fault(
    "special.scan_forgets_nan",
    clauses=("special_values",),
    ops=("cummax",),
    at=(aten.cummax.default,),
    probe=lambda: wrong(torch.cummax, torch.tensor([1.0, NAN, 2.0]), 0),
)
def scan_forgets_nan(kernel: Kernel, args: Args, kwargs: Kwargs) -> Any:
    """A running maximum goes on after NaN."""
    return kernel(args[0].nan_to_num(-INF, INF, -INF), *args[1:], **kwargs)


@fault(
    "special.nanmedian_counts_nan",
    clauses=("special_values",),
    ops=("nanmedian",),
    at=(aten.nanmedian.default, aten.nanmedian.dim),
    probe=lambda: wrong(torch.nanmedian, _LEFT),
)
def nanmedian_counts_nan(kernel: Kernel, args: Args, kwargs: Kwargs) -> Any:
    """nanmedian is NaN where a value is."""
    # Which of several equal medians the index names is not documented: only NaN may decide.
    return torch.median(*args, **kwargs) if args[0].isnan().any() else kernel(*args, **kwargs)


_ODD_BYTES = torch.tensor([0, 1, 2], dtype=torch.uint8).view(torch.bool)


@fault(
    "special.bool_byte_raw",
    clauses=("special_values",),
    ops=("logical_not", "logical_and"),
    dtypes=("bool",),
    at=(aten.logical_not.default, aten.logical_and.default),
    probe=lambda: wrong(torch.logical_not, _ODD_BYTES),
)
def bool_byte_raw(kernel: Kernel, args: Args, kwargs: Kwargs) -> Any:
    """Only the lowest bit of a bool's byte is read."""
    read = [a.view(torch.uint8).bitwise_and(1).bool() if a.dtype == torch.bool else a for a in args]
    result = kernel(*args, **kwargs)
    return result.copy_(kernel(*read, **kwargs))
