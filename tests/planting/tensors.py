"""What effects are made of: the geometry of tensors, and the bytes of their storages."""

from __future__ import annotations

from collections.abc import Sequence

import torch

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
