"""What overrides and probes are made of. Overrides run on device tensors with dispatch to them off."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from tests.wrapped.tensor import from_device, wrap

#: What a stray write leaves: differs from the bytes 0xFF and 0x5B that guards are made of.
SCRIBBLE = 0xA5


# Geometry


def dense_strides(shape: Sequence[int]) -> tuple[int, ...]:
    """Row-major strides, in elements."""
    strides, step = [], 1
    for size in reversed(shape):
        strides.append(step)
        step *= max(size, 1)
    return tuple(reversed(strides))


def is_expanded(tensor: torch.Tensor) -> bool:
    """Whether a dimension longer than 1 has stride 0."""
    return any(n > 1 and s == 0 for n, s in zip(tensor.shape, tensor.stride(), strict=True))


def extent(tensor: torch.Tensor) -> int:
    """Storage elements from the tensor's first to behind its last."""
    if tensor.numel() == 0:
        return 0
    return sum((n - 1) * s for n, s in zip(tensor.shape, tensor.stride(), strict=True)) + 1


def is_stepped(tensor: torch.Tensor) -> bool:
    """Whether there are elements of others between its own."""
    return not is_expanded(tensor) and extent(tensor) > tensor.numel()


def reread(
    tensor: torch.Tensor, stride: Sequence[int] | None = None, offset: int | None = None
) -> torch.Tensor:
    """The storage read by other strides or another offset; the tensor itself where they do not fit."""
    steps = tuple(tensor.stride()) if stride is None else tuple(stride)
    start = int(tensor.storage_offset()) if offset is None else offset
    last = start + sum((n - 1) * s for n, s in zip(tensor.shape, steps, strict=True))
    need = (last + 1) * tensor.element_size()
    if tensor.numel() == 0 or need > tensor.untyped_storage().nbytes():
        return tensor
    return tensor.as_strided(tensor.shape, steps, start)


def as_dense(tensor: torch.Tensor) -> torch.Tensor:
    """The storage from the tensor's offset on, read as if it were contiguous."""
    return reread(tensor, dense_strides(tensor.shape))


def unrepeated(tensor: torch.Tensor) -> torch.Tensor:
    """The elements of an expanded tensor, each once."""
    for dim, (size, stride) in enumerate(zip(tensor.shape, tensor.stride(), strict=True)):
        if size > 1 and stride == 0:
            tensor = tensor.narrow(dim, 0, 1)
    return tensor


def twin(tensor: torch.Tensor) -> torch.Tensor:
    """A copy in memory of its own with the same strides."""
    made = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype)
    unrepeated(made).copy_(unrepeated(tensor))
    return made


# Bytes


def storage_bytes(tensor: torch.Tensor) -> torch.Tensor:
    """The whole storage as bytes."""
    return torch.empty(0, dtype=torch.uint8).set_(tensor.untyped_storage())


def scribble(tensor: torch.Tensor, start: int, count: int) -> None:
    """Overwrite ``count`` elements from storage element ``start`` on, as far as the storage reaches."""
    size = tensor.element_size()
    storage_bytes(tensor)[max(start, 0) * size : max(start + count, 0) * size].fill_(SCRIBBLE)


# Arguments


def with_first(args: tuple[Any, ...], first: Any) -> tuple[Any, ...]:
    return (first, *args[1:])


def split_out(kwargs: dict[str, Any]) -> tuple[torch.Tensor, dict[str, Any]]:
    """The ``out=`` of a call, and the other keyword arguments."""
    rest = dict(kwargs)
    return rest.pop("out"), rest


def place_values(result: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    """Put other values into a result, and leave its strides as they are."""
    return result.copy_(values)


# Probes


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


def inside(
    numel: int, offset: int, dtype: torch.dtype = torch.float32
) -> tuple[torch.Tensor, torch.Tensor]:
    """A device view of ``numel`` zeros at an offset, and its CPU storage of ``offset + numel + 16`` zeros."""
    base = torch.zeros(offset + numel + 16, dtype=dtype)
    return wrap(base[offset : offset + numel]), base


def image(channels_last: bool = True) -> torch.Tensor:
    """A 4-d tensor of distinct values, channels_last or contiguous."""
    values = torch.arange(2.0 * 3 * 4 * 4).reshape(2, 3, 4, 4)
    return values.contiguous(memory_format=torch.channels_last) if channels_last else values
