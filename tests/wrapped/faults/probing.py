"""What probes of planted faults are made of."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from tests.planting.tensors import SCRIBBLE, storage_bytes
from tests.wrapped.tensor import from_device, wrap


def wrong(function: Callable[..., Any], *args: Any, **kwargs: Any) -> bool:
    """Whether the device's result is not the CPU's. Tensors among ``args`` are given to both."""
    there = [wrap(a) if isinstance(a, torch.Tensor) else a for a in args]
    got, want = first_tensor(function(*there, **kwargs)), first_tensor(function(*args, **kwargs))
    back = from_device(got)
    if back.dtype != want.dtype or back.shape != want.shape:
        return True
    return not torch.allclose(back, want, rtol=1e-5, atol=1e-6, equal_nan=True)


def first_tensor(result: Any) -> torch.Tensor:
    """A result, or the first of several."""
    first: torch.Tensor = result[0] if isinstance(result, (tuple, list)) else result
    return first


def raises(function: Callable[..., Any], *args: Any, **kwargs: Any) -> bool:
    """Whether a call raises RuntimeError or IndexError."""
    try:
        function(*args, **kwargs)
    except (RuntimeError, IndexError):
        return True
    return False


def stepped(*values: float) -> torch.Tensor:
    """The values as every second element of a storage whose others are -1."""
    base = torch.full((2 * len(values),), -1.0)
    base[::2] = torch.tensor(values)
    return base[::2]


def inside(numel: int, offset: int = 0) -> torch.Tensor:
    """A view of ``numel`` zeros at an offset in a storage of zeros that goes on behind it."""
    return torch.zeros(offset + numel + 16)[offset : offset + numel]


def scribbles(tensor: torch.Tensor, function: Callable[[torch.Tensor], Any]) -> bool:
    """Whether a call on the device leaves SCRIBBLE in the storage of a tensor."""
    function(wrap(tensor))
    return bool((storage_bytes(tensor) == SCRIBBLE).any())


def shares(function: Callable[[torch.Tensor], torch.Tensor], tensor: torch.Tensor) -> bool:
    """Whether the result of a call begins where the device's tensor began before the call."""
    address = tensor.data_ptr()
    return function(tensor).data_ptr() == address


def becomes(tensor: torch.Tensor, function: Callable[[torch.Tensor], Any], *values: float) -> bool:
    """Whether a call on the device gives these values to a tensor."""
    function(wrap(tensor))
    return tensor.flatten().tolist() == [*values]


def image(channels_last: bool = True) -> torch.Tensor:
    """A 4-d tensor of distinct values, channels_last or contiguous."""
    values = torch.arange(2.0 * 3 * 4 * 4).reshape(2, 3, 4, 4)
    return values.contiguous(memory_format=torch.channels_last) if channels_last else values
