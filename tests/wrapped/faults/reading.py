"""Faults of kernels that read: wrong addresses, wrong strides of the output."""

from __future__ import annotations

from typing import Any

import torch

from tests.planting.calls import NOT_MET, KernelCall
from tests.planting.tensors import as_dense, is_expanded, is_stepped, reread
from tests.wrapped.faults.probing import image, raises, stepped, wrong
from tests.wrapped.registry import fault, may_change, probe
from tests.wrapped.tensor import wrap


@fault("values.ignore_strides", "values", ops="exp", dtypes="float32 int64")
@probe(lambda: wrong(torch.exp, stepped(0, 1, 2)))
def _(call: KernelCall) -> Any:
    """A stepped input is read as if its elements lay in a row."""
    if not is_stepped(call.first):
        return NOT_MET
    return call.honest().copy_(call.honest(self=as_dense(call.first)))


@fault("values.ignore_storage_offset", "values expanded_read", ops="neg")
@probe(lambda: wrong(torch.neg, torch.arange(6.0)[2:]))
def _(call: KernelCall) -> Any:
    """A view is read from the start of its storage."""
    return call.honest().copy_(call.honest(self=reread(call.first, offset=0)))


@fault(
    "values.treat_channels_last_as_contiguous",
    "values",
    ops="nn.functional.avg_pool2d",
    at="avg_pool2d",
)
@probe(lambda: wrong(torch.nn.functional.avg_pool2d, image(), 2))
def _(call: KernelCall) -> Any:
    """A channels_last image is read as if it were contiguous."""
    given = call.first
    if given.dim() != 4 or not given.is_contiguous(memory_format=torch.channels_last):
        return NOT_MET
    return call.honest().copy_(call.honest(self=as_dense(given)))


@fault("values.refuse_offset", "values expanded_read", ops="amax")
@probe(lambda: raises(torch.amax, wrap(torch.arange(6.0)[2:]), 0))
@may_change("output_strides::amax output_fresh::amax")  # no result, no check
def _(call: KernelCall) -> Any:
    """A view with a storage offset is refused."""
    if call.first.storage_offset():
        raise RuntimeError("amax: expected a tensor without a storage offset")
    return NOT_MET


@fault("expand.read_as_dense", "expanded_read", ops="mul", at="mul.Tensor", dtypes="float32 int64")
@probe(lambda: wrong(torch.mul, torch.arange(6.0)[:1].expand(3), 2.0))
def _(call: KernelCall) -> Any:
    """An operand of stride 0 is read as if its elements lay in a row."""
    tensor = torch.Tensor
    dense = [as_dense(a) if isinstance(a, tensor) and is_expanded(a) else a for a in call.args]
    return call.honest().copy_(call.function(*dense))


def _strides_differ(function: Any, *args: Any) -> bool:
    there = [wrap(a) if isinstance(a, torch.Tensor) else a for a in args]
    return bool(function(*there).stride() != function(*args).stride())


@fault(
    "stride.ignore_channels_last",
    "output_strides",
    ops="nn.functional.avg_pool2d nn.functional.conv2d",
    at="avg_pool2d convolution",
)
@probe(lambda: _strides_differ(torch.nn.functional.avg_pool2d, image(), 2))
def _(call: KernelCall) -> Any:
    """The output for a channels_last input is contiguous."""
    return call.honest().contiguous()


@fault("stride.always_contiguous", "output_strides", ops="sub", at="sub.Tensor")
@probe(lambda: _strides_differ(torch.sub, torch.zeros(2, 3).t(), 1))
def _(call: KernelCall) -> Any:
    """The output for a transposed input is contiguous."""
    return call.honest().contiguous()


_MATRIX = torch.zeros(2, 3)


@fault("stride.swap_last_two", "output_strides", ops="where", at="where.self")
@probe(lambda: _strides_differ(torch.where, _MATRIX == 0, _MATRIX, _MATRIX))
def _(call: KernelCall) -> Any:
    """A matrix comes out in column-major order."""
    result = call.honest()
    return result.mT.contiguous().mT if result.dim() > 1 else result
