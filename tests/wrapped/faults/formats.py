"""Faults of memory formats and of type promotion."""

from __future__ import annotations

from typing import Any

import torch
from tests.wrapped.faults.tools import image, wrong

from tests.wrapped.registry import Args, Kernel, Kwargs, fault
from tests.wrapped.tensor import from_device, wrap

aten = torch.ops.aten

# memory_format

_CHANNELS_LAST = (torch.channels_last, torch.channels_last_3d)


def _clone_stays_contiguous() -> bool:
    made = wrap(image(channels_last=False)).clone(memory_format=torch.channels_last)
    return not made.is_contiguous(memory_format=torch.channels_last)


@fault(
    "memory_format.ignore_requested",
    clauses=("memory_format",),
    ops=("clone", "contiguous", "empty_like"),
    at=(aten.clone.default, aten.empty_like.default),
    probe=_clone_stays_contiguous,
)
def ignore_requested(kernel: Kernel, args: Args, kwargs: Kwargs) -> Any:
    """What is asked for in channels_last comes contiguous."""
    if kwargs.get("memory_format") in _CHANNELS_LAST:
        kwargs = {**kwargs, "memory_format": torch.contiguous_format}
    return kernel(*args, **kwargs)


@fault(
    "memory_format.drop_preserve",
    clauses=("memory_format", "output_strides"),
    ops=("clone", "empty_like"),
    at=(aten.clone.default, aten.empty_like.default),
    probe=lambda: wrap(image()).clone().is_contiguous(),
)
def drop_preserve(kernel: Kernel, args: Args, kwargs: Kwargs) -> Any:
    """A copy that should preserve the format of its input is contiguous."""
    if kwargs.get("memory_format", torch.preserve_format) is torch.preserve_format:
        kwargs = {**kwargs, "memory_format": torch.contiguous_format}
    return kernel(*args, **kwargs)


def _keeps_channels_last() -> bool:
    return not wrap(image()).clone(memory_format=torch.contiguous_format).is_contiguous()


@fault(
    "memory_format.keep_input_format",
    clauses=("memory_format",),
    ops=("clone", "contiguous", "empty_like"),
    at=(aten.clone.default, aten.empty_like.default),
    radius=("output_strides::contiguous",),  # contiguous() asks for this format
    probe=_keeps_channels_last,
)
def keep_input_format(kernel: Kernel, args: Args, kwargs: Kwargs) -> Any:
    """What is asked for in contiguous_format keeps the format of its input."""
    if kwargs.get("memory_format") is torch.contiguous_format:
        kwargs = {**kwargs, "memory_format": torch.preserve_format}
    return kernel(*args, **kwargs)


# type_promotion


@fault(
    "promotion.first_operand_decides",
    clauses=("type_promotion",),
    ops=("sub",),
    at=(aten.sub.Tensor,),
    probe=lambda: wrong(torch.sub, torch.ones(2), torch.ones(2, dtype=torch.float64)),
)
def first_operand_decides(kernel: Kernel, args: Args, kwargs: Kwargs) -> Any:
    """The result has the dtype of the first operand."""
    left, right = args
    if isinstance(right, torch.Tensor) and not right.is_complex():
        right = right.to(left.dtype)
    return kernel(left, right, **kwargs)


@fault(
    "promotion.ignore_scalar_kind",
    clauses=("type_promotion",),
    ops=("add",),
    dtypes=("int64",),
    at=(aten.add.Tensor,),
    probe=lambda: wrong(torch.add, torch.tensor([1, 2]), 0.5),
)
def ignore_scalar_kind(kernel: Kernel, args: Args, kwargs: Kwargs) -> Any:
    """An integer tensor and a Python float give integers."""
    left, right = args
    if isinstance(right, float) and not left.is_floating_point() and not left.is_complex():
        right = int(right)
    return kernel(left, right, **kwargs)


@fault(
    "promotion.zero_dim_as_dimensioned",
    clauses=("type_promotion",),
    ops=("mul",),
    at=(aten.mul.Tensor,),
    probe=lambda: wrong(torch.mul, torch.ones(2), torch.ones((), dtype=torch.float64)),
)
def zero_dim_as_dimensioned(kernel: Kernel, args: Args, kwargs: Kwargs) -> Any:
    """A 0-d tensor takes part in promotion as one with dimensions does."""
    left, right = args
    if isinstance(left, torch.Tensor) and isinstance(right, torch.Tensor):
        common = torch.promote_types(left.dtype, right.dtype)
        left, right = left.to(common), right.to(common)
    return kernel(left, right, **kwargs)


@fault(
    "promotion.scalar_through_float",
    clauses=("type_promotion",),
    ops=("add", "mul"),
    dtypes=("int64",),
    at=(aten.add.Tensor, aten.mul.Tensor),
    probe=lambda: int(from_device(torch.add(wrap(torch.tensor([0])), 2**53 + 1))) != 2**53 + 1,
)
def scalar_through_float(kernel: Kernel, args: Args, kwargs: Kwargs) -> Any:
    """A Python integer is handed to the kernel as a float64."""
    left, right = args
    if type(right) is int:
        right = int(float(right))
    return kernel(left, right, **kwargs)


@fault(
    "promotion.integers_to_float64",
    clauses=("type_promotion", "values", "expanded_read"),
    ops=("exp",),
    dtypes=("int64",),
    at=(aten.exp.default,),
    probe=lambda: wrong(torch.exp, torch.tensor([1, 2])),
)
def integers_to_float64(kernel: Kernel, args: Args, kwargs: Kwargs) -> Any:
    """An integer input gives float64 instead of the default dtype."""
    result = kernel(*args, **kwargs)
    return result if args[0].is_floating_point() else result.double()
