"""Faults of ``as_strided``, ``empty_strided`` and ``set_``."""

from __future__ import annotations

from typing import Any

import torch

from tests.planting.calls import NOT_MET, KernelCall
from tests.planting.tensors import dense_strides
from tests.wrapped.faults.probing import raises
from tests.wrapped.registry import fault, probe
from tests.wrapped.tensor import from_device, wrap

#: Bytes. The harness builds its layouts with ``as_strided``, in storages of 128 bytes and more: a fault in
#: larger ones would break the harness' inputs, and the checks would report that instead.
SMALL = 128


@fault(
    "as_strided.ignore_offset",
    "as_strided",
    ops="as_strided as_strided_copy",
    dtypes="bool float32",
)
@probe(lambda: wrap(torch.zeros(8)).as_strided((2,), (1,), 3).storage_offset() != 3)
def _(call: KernelCall) -> Any:
    """The storage offset is ignored in small storages."""
    large = call.first.untyped_storage().nbytes() >= SMALL
    return NOT_MET if large or len(call.args) < 4 else call.honest(storage_offset=0)


@fault(
    "as_strided.skip_bounds_check",
    "as_strided",
    ops="as_strided as_strided_copy",
    dtypes="bool float32",
)
@probe(lambda: not raises(wrap(torch.zeros(2)).as_strided, (3,), (1,)))
def _(call: KernelCall) -> Any:
    """A request outside the storage is answered with its first element."""
    try:
        return call.honest()
    except RuntimeError:
        return call.honest(stride=[0] * len(call.values["size"]), storage_offset=0)


@fault(
    "as_strided.in_place_ignores_offset",
    "as_strided",
    ops="as_strided as_strided_copy",
    at="as_strided_",
    dtypes="bool float32",
)
@probe(lambda: wrap(torch.zeros(8)).as_strided_((2,), (1,), 3).storage_offset() != 3)
def _(call: KernelCall) -> Any:
    """as_strided_ starts at the beginning of the storage."""
    return call.honest(storage_offset=0)


def _set_ignores_offset() -> bool:
    view = wrap(torch.zeros(0))
    view.set_(wrap(torch.arange(4.0)).untyped_storage(), 2, (2,), (1,))
    return bool(from_device(view)[0] == 0)


@fault(
    "as_strided.set_ignores_offset",
    "as_strided",
    ops="as_strided as_strided_copy",
    at="set_.source_Storage_storage_offset",
    dtypes="bool float32",
)
@probe(_set_ignores_offset)
def _(call: KernelCall) -> Any:
    """set_ starts at the beginning of the storage."""
    return call.honest(storage_offset=0)


def _scatters_at_start() -> bool:
    made = torch.as_strided_scatter(wrap(torch.zeros(4)), wrap(torch.ones(1)), (1,), (1,), 2)
    return bool(from_device(made)[2] == 0)


@fault("as_strided.scatter_ignores_offset", "as_strided", ops="as_strided_scatter")
@probe(_scatters_at_start)
def _(call: KernelCall) -> Any:
    """as_strided_scatter writes from the beginning of the storage on."""
    return call.honest(storage_offset=0)


def _made(size: tuple[int, ...], stride: tuple[int, ...]) -> torch.Tensor:
    return wrap(torch.zeros(1)).new_empty_strided(size, stride)


@fault("empty_strided.allocate_too_little", "as_strided output_fresh", ops="new_empty_strided")
@probe(lambda: _made((3,), (2,)).untyped_storage().nbytes() < 20)
def _(call: KernelCall) -> Any:
    """A strided tensor gets memory for as many elements as it has, without the gaps."""
    made = call.honest()
    storage = made.untyped_storage()
    storage.resize_(min(storage.nbytes(), made.numel() * made.element_size()))
    return made


@fault("empty_strided.ignore_strides", "as_strided output_strides", ops="new_empty_strided")
@probe(lambda: _made((2, 3), (1, 2)).stride() != (1, 2))
def _(call: KernelCall) -> Any:
    """A strided tensor is made contiguous."""
    return call.honest(stride=dense_strides(call.values["size"]))
