"""Faults of memory formats and of type promotion."""

from __future__ import annotations

from typing import Any

import torch

from tests.planting.calls import NOT_MET, KernelCall
from tests.wrapped.faults.probing import image, wrong
from tests.wrapped.registry import fault, may_change, probe
from tests.wrapped.tensor import from_device, wrap

# memory_format

_CHANNELS_LAST = (torch.channels_last, torch.channels_last_3d)


def _clone_stays_contiguous() -> bool:
    made = wrap(image(channels_last=False)).clone(memory_format=torch.channels_last)
    return not made.is_contiguous(memory_format=torch.channels_last)


@fault(
    "memory_format.ignore_requested",
    "memory_format",
    ops="clone contiguous empty_like",
    at="clone empty_like",
)
@probe(_clone_stays_contiguous)
def _(call: KernelCall) -> Any:
    """What is asked for in channels_last comes contiguous."""
    asked = call.values["memory_format"] in _CHANNELS_LAST
    return call.honest(memory_format=torch.contiguous_format) if asked else NOT_MET


@fault("memory_format.drop_preserve", "memory_format output_strides", ops="clone empty_like")
@probe(lambda: wrap(image()).clone().is_contiguous())
def _(call: KernelCall) -> Any:
    """A copy that should preserve the format of its input is contiguous."""
    preserved = call.values["memory_format"] in (None, torch.preserve_format)
    return call.honest(memory_format=torch.contiguous_format) if preserved else NOT_MET


@fault(
    "memory_format.keep_input_format",
    "memory_format",
    ops="clone contiguous empty_like",
    at="clone empty_like",
)
@probe(lambda: not wrap(image()).clone(memory_format=torch.contiguous_format).is_contiguous())
@may_change("output_strides::contiguous")  # contiguous() asks for this format
def _(call: KernelCall) -> Any:
    """What is asked for in contiguous_format keeps the format of its input."""
    asked = call.values["memory_format"] is torch.contiguous_format
    return call.honest(memory_format=torch.preserve_format) if asked else NOT_MET


# type_promotion


@fault("promotion.first_operand_decides", "type_promotion", ops="sub", at="sub.Tensor")
@probe(lambda: wrong(torch.sub, torch.ones(2), torch.ones(2, dtype=torch.float64)))
def _(call: KernelCall) -> Any:
    """The result has the dtype of the first operand."""
    left, right = call.args
    tensor = isinstance(right, torch.Tensor) and not right.is_complex()
    return call.honest(other=right.to(left.dtype)) if tensor else NOT_MET


@fault("promotion.ignore_scalar_kind", "type_promotion", ops="add", at="add.Tensor", dtypes="int64")
@probe(lambda: wrong(torch.add, torch.tensor([1, 2]), 0.5))
def _(call: KernelCall) -> Any:
    """An integer tensor and a Python float give integers."""
    left, right = call.args
    floating = left.is_floating_point() or left.is_complex()
    return call.honest(other=int(right)) if isinstance(right, float) and not floating else NOT_MET


@fault("promotion.zero_dim_as_dimensioned", "type_promotion", ops="mul", at="mul.Tensor")
@probe(lambda: wrong(torch.mul, torch.ones(2), torch.ones((), dtype=torch.float64)))
def _(call: KernelCall) -> Any:
    """A 0-d tensor takes part in promotion as one with dimensions does."""
    left, right = call.args
    if not (isinstance(left, torch.Tensor) and isinstance(right, torch.Tensor)):
        return NOT_MET
    common = torch.promote_types(left.dtype, right.dtype)
    return call.honest(self=left.to(common), other=right.to(common))


@fault(
    "promotion.scalar_through_float",
    "type_promotion",
    ops="add mul",
    at="add.Tensor mul.Tensor",
    dtypes="int64",
)
@probe(lambda: int(from_device(torch.add(wrap(torch.tensor([0])), 2**53 + 1))) != 2**53 + 1)
def _(call: KernelCall) -> Any:
    """A Python integer is handed to the kernel as a float64."""
    right = call.args[1]
    return call.honest(other=int(float(right))) if type(right) is int else NOT_MET


@fault(
    "promotion.integers_to_float64",
    "type_promotion values expanded_read",
    ops="exp",
    dtypes="int64",
)
@probe(lambda: wrong(torch.exp, torch.tensor([1, 2])))
def _(call: KernelCall) -> Any:
    """An integer input gives float64 instead of the default dtype."""
    return NOT_MET if call.first.is_floating_point() else call.honest().double()
