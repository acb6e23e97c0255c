"""Faults of kernels that read: wrong addresses, wrong strides of the output."""

from __future__ import annotations

from typing import Any

import torch
from tests.wrapped.faults.tools import (
    as_dense,
    image,
    is_expanded,
    is_stepped,
    place_values,
    reread,
    stepped,
    with_first,
    wrong,
)

from tests.wrapped.registry import Args, Kernel, Kwargs, fault
from tests.wrapped.tensor import wrap

aten = torch.ops.aten


@fault(
    "values.ignore_strides",
    clauses=("values",),
    ops=("exp",),
    dtypes=("float32", "int64"),
    at=(aten.exp.default,),
    probe=lambda: wrong(torch.exp, stepped(0, 1, 2)),
)
def ignore_strides(kernel: Kernel, args: Args, kwargs: Kwargs) -> Any:
    """A stepped input is read as if its elements lay in a row."""
    result = kernel(*args, **kwargs)
    if not is_stepped(args[0]):
        return result
    return place_values(result, kernel(*with_first(args, as_dense(args[0])), **kwargs))


@fault(
    "values.ignore_storage_offset",
    clauses=("values", "expanded_read"),
    ops=("neg",),
    at=(aten.neg.default,),
    probe=lambda: wrong(torch.neg, torch.arange(6.0)[2:]),
)
def ignore_storage_offset(kernel: Kernel, args: Args, kwargs: Kwargs) -> Any:
    """A view is read from the start of its storage."""
    result = kernel(*args, **kwargs)
    return place_values(result, kernel(*with_first(args, reread(args[0], offset=0)), **kwargs))


@fault(
    "values.treat_channels_last_as_contiguous",
    clauses=("values",),
    ops=("nn.functional.avg_pool2d",),
    at=(aten.avg_pool2d.default,),
    probe=lambda: wrong(torch.nn.functional.avg_pool2d, image(), 2),
)
def treat_channels_last_as_contiguous(kernel: Kernel, args: Args, kwargs: Kwargs) -> Any:
    """A channels_last image is read as if it were contiguous."""
    result, given = kernel(*args, **kwargs), args[0]
    if given.dim() != 4 or not given.is_contiguous(memory_format=torch.channels_last):
        return result
    return place_values(result, kernel(*with_first(args, as_dense(given)), **kwargs))


@fault(
    "values.refuse_offset",
    clauses=("values", "expanded_read"),
    ops=("amax",),
    at=(aten.amax.default,),
    radius=("output_strides::amax", "output_fresh::amax"),  # no result, no check
    probe=lambda: _refuses_offset(),
)
def refuse_offset(kernel: Kernel, args: Args, kwargs: Kwargs) -> Any:
    """A view with a storage offset is refused."""
    if args[0].storage_offset():
        raise RuntimeError("amax: expected a tensor without a storage offset")
    return kernel(*args, **kwargs)


def _refuses_offset() -> bool:
    try:
        torch.amax(wrap(torch.arange(6.0)[2:]), 0)
    except RuntimeError:
        return True
    return False


@fault(
    "expand.read_as_dense",
    clauses=("expanded_read",),
    ops=("mul",),
    dtypes=("float32", "int64"),
    at=(aten.mul.Tensor,),
    probe=lambda: wrong(torch.mul, torch.arange(6.0)[:1].expand(3), 2.0),
)
def read_expanded_as_dense(kernel: Kernel, args: Args, kwargs: Kwargs) -> Any:
    """An operand of stride 0 is read as if its elements lay in a row."""
    dense = [as_dense(a) if isinstance(a, torch.Tensor) and is_expanded(a) else a for a in args]
    return place_values(kernel(*args, **kwargs), kernel(*dense, **kwargs))


def _strides_differ(function: Any, *args: Any) -> bool:
    there = [wrap(a) if isinstance(a, torch.Tensor) else a for a in args]
    return bool(function(*there).stride() != function(*args).stride())


@fault(
    "stride.ignore_channels_last",
    clauses=("output_strides",),
    ops=("nn.functional.avg_pool2d", "nn.functional.conv2d"),
    at=(aten.avg_pool2d.default, aten.convolution.default),
    probe=lambda: _strides_differ(torch.nn.functional.avg_pool2d, image(), 2),
)
def ignore_channels_last(kernel: Kernel, args: Args, kwargs: Kwargs) -> Any:
    """The output for a channels_last input is contiguous."""
    return kernel(*args, **kwargs).contiguous()


@fault(
    "stride.always_contiguous",
    clauses=("output_strides",),
    ops=("sub",),
    at=(aten.sub.Tensor,),
    probe=lambda: _strides_differ(torch.sub, torch.zeros(2, 3).t(), 1),
)
def always_contiguous(kernel: Kernel, args: Args, kwargs: Kwargs) -> Any:
    """The output for a transposed input is contiguous."""
    return kernel(*args, **kwargs).contiguous()


@fault(
    "stride.swap_last_two",
    clauses=("output_strides",),
    ops=("where",),
    at=(aten.where.self,),
    probe=lambda: _strides_differ(
        torch.where, torch.ones(2, 3, dtype=torch.bool), torch.zeros(2, 3), torch.zeros(2, 3)
    ),
)
def swap_last_two(kernel: Kernel, args: Args, kwargs: Kwargs) -> Any:
    """A matrix comes out in column-major order."""
    result = kernel(*args, **kwargs)
    return result.mT.contiguous().mT if result.dim() > 1 else result
