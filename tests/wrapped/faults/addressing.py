"""Faults of ``as_strided``, ``empty_strided`` and ``set_``."""

from __future__ import annotations

from typing import Any

import torch
from tests.wrapped.faults.tools import dense_strides, raises

from tests.wrapped.registry import Args, Kernel, Kwargs, fault
from tests.wrapped.tensor import from_device, wrap

aten = torch.ops.aten

#: Bytes. The harness builds its layouts with ``as_strided``, in storages of 128 bytes and more: a fault in
#: larger ones would break the harness' inputs, and the checks would report that instead.
SMALL = 128


@fault(
    "as_strided.ignore_offset",
    clauses=("as_strided",),
    ops=("as_strided", "as_strided_copy"),
    dtypes=("bool", "float32"),
    at=(aten.as_strided.default, aten.as_strided_copy.default),
    probe=lambda: wrap(torch.zeros(8)).as_strided((2,), (1,), 3).storage_offset() != 3,
)
def ignore_offset(kernel: Kernel, args: Args, kwargs: Kwargs) -> Any:
    """The storage offset is ignored in small storages."""
    if args[0].untyped_storage().nbytes() >= SMALL or len(args) < 4:
        return kernel(*args, **kwargs)
    return kernel(*args[:3], 0, **kwargs)


@fault(
    "as_strided.skip_bounds_check",
    clauses=("as_strided",),
    ops=("as_strided", "as_strided_copy"),
    dtypes=("bool", "float32"),
    at=(aten.as_strided.default, aten.as_strided_copy.default),
    probe=lambda: not raises(wrap(torch.zeros(2)).as_strided, (3,), (1,)),
)
def skip_bounds_check(kernel: Kernel, args: Args, kwargs: Kwargs) -> Any:
    """A request outside the storage is answered with its first element."""
    try:
        return kernel(*args, **kwargs)
    except RuntimeError:
        return kernel(args[0], args[1], [0] * len(args[1]), 0)


@fault(
    "as_strided.in_place_ignores_offset",
    clauses=("as_strided",),
    ops=("as_strided", "as_strided_copy"),
    dtypes=("bool", "float32"),
    at=(aten.as_strided_.default,),
    probe=lambda: wrap(torch.zeros(8)).as_strided_((2,), (1,), 3).storage_offset() != 3,
)
def in_place_ignores_offset(kernel: Kernel, args: Args, kwargs: Kwargs) -> Any:
    """as_strided_ starts at the beginning of the storage."""
    return kernel(*args[:3], 0, **kwargs)


def _set_ignores_offset() -> bool:
    view = wrap(torch.zeros(0))
    view.set_(wrap(torch.arange(4.0)).untyped_storage(), 2, (2,), (1,))
    return bool(from_device(view)[0] == 0)


@fault(
    "as_strided.set_ignores_offset",
    clauses=("as_strided",),
    ops=("as_strided", "as_strided_copy"),
    dtypes=("bool", "float32"),
    at=(aten.set_.source_Storage_storage_offset,),
    probe=_set_ignores_offset,
)
def set_ignores_offset(kernel: Kernel, args: Args, kwargs: Kwargs) -> Any:
    """set_ starts at the beginning of the storage."""
    return kernel(args[0], args[1], 0, *args[3:], **kwargs)


def _scatters_at_start() -> bool:
    made = torch.as_strided_scatter(wrap(torch.zeros(4)), wrap(torch.ones(1)), (1,), (1,), 2)
    return bool(from_device(made)[2] == 0)


@fault(
    "as_strided.scatter_ignores_offset",
    clauses=("as_strided",),
    ops=("as_strided_scatter",),
    at=(aten.as_strided_scatter.default,),
    probe=_scatters_at_start,
)
def scatter_ignores_offset(kernel: Kernel, args: Args, kwargs: Kwargs) -> Any:
    """as_strided_scatter writes from the beginning of the storage on."""
    return kernel(*args[:4], 0, **kwargs)


def _made(size: tuple[int, ...], stride: tuple[int, ...]) -> torch.Tensor:
    return wrap(torch.zeros(1)).new_empty_strided(size, stride)


@fault(
    "empty_strided.allocate_too_little",
    clauses=("as_strided", "output_fresh"),
    ops=("new_empty_strided",),
    at=(aten.new_empty_strided.default,),
    probe=lambda: _made((3,), (2,)).untyped_storage().nbytes() < 20,
)
def allocate_too_little(kernel: Kernel, args: Args, kwargs: Kwargs) -> Any:
    """A strided tensor gets memory for as many elements as it has, without the gaps."""
    made = kernel(*args, **kwargs)
    storage = made.untyped_storage()
    storage.resize_(min(storage.nbytes(), made.numel() * made.element_size()))
    return made


@fault(
    "empty_strided.ignore_strides",
    clauses=("as_strided", "output_strides"),
    ops=("new_empty_strided",),
    at=(aten.new_empty_strided.default,),
    probe=lambda: _made((2, 3), (1, 2)).stride() != (1, 2),
)
def ignore_strides(kernel: Kernel, args: Args, kwargs: Kwargs) -> Any:
    """A strided tensor is made contiguous."""
    return kernel(args[0], args[1], dense_strides(args[1]), **kwargs)
