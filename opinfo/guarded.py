"""Guarded buffers: tensors that are views into a larger storage of known bytes.

After a call the whole storage is read back through its base tensor and compared, so that a write past the
end, at the storage's start, or between the elements of a strided view is seen wherever it falls.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from opinfo.layouts import Geometry

#: Known bytes behind every view, at least: 32 elements of the widest dtype, because a kernel that steps by a
#: wrong stride misses by elements. A multiple of the widest vector register (64 bytes), so that a
#: kernel that rounds its loop up to whole vectors is caught. The storage also has room for the view's
#: elements in a row: a kernel that ignores strides (and there are such) then damages the guard, not the heap.
GUARD_BYTES = 512

#: Around floating-point and complex elements the guard reads as NaN, so that a read outside the view
#: poisons the result; around others it is a value that no sample holds by chance.
_NAN_BYTE, _INT_BYTE = 0xFF, 0x5B

_BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64, 16: torch.complex128}
_TEMPLATES: dict[int, torch.Tensor] = {}
_TEMPLATE_BYTES = 2**20

Move = Callable[[torch.Tensor], torch.Tensor]


def identity(tensor: torch.Tensor) -> torch.Tensor:
    return tensor


@dataclass(frozen=True, slots=True)
class Damage:
    """Bytes that changed, told apart by where they lie relative to the view."""

    inside: int  # bytes of the view's own elements
    between: int  # bytes between its first and last element that belong to none
    outside: int  # bytes before its first element or behind its last
    first_offset: int  # storage byte of the first change

    def __bool__(self) -> bool:
        return bool(self.inside or self.between or self.outside)


class Guarded:
    """A tensor on the device under test inside a storage of known bytes.

    ``view`` is what the op is given; ``base`` is the whole storage as uint8 on the device; ``before`` the
    bytes it held, on the CPU.
    """

    __slots__ = (
        "_element_mask",
        "base",
        "before",
        "built_as_asked",
        "geometry",
        "itemsize",
        "view",
    )

    def __init__(
        self, values: torch.Tensor, geometry: Geometry, to_device: Move, *, fill: Any = None
    ) -> None:
        """Lay ``values`` (a contiguous CPU tensor, already narrowed where the geometry expands) out.

        With ``fill`` the elements hold that value instead: for ``out=`` targets.
        """
        dtype = values.dtype
        self.itemsize = dtype.itemsize
        self.geometry = geometry
        nbytes = storage_bytes(geometry, self.itemsize)
        nbytes += -nbytes % 16  # so that the storage can be viewed as any dtype
        byte = _NAN_BYTE if dtype.is_floating_point or dtype.is_complex else _INT_BYTE
        staged = _known_bytes(byte, nbytes)
        elements = strided_view(staged, dtype, geometry)
        if fill is not None:
            elements.fill_(fill)
        elif geometry.expanded is None:
            elements.copy_(values)
        else:
            elements.narrow(geometry.expanded, 0, 1).copy_(values.narrow(geometry.expanded, 0, 1))
        self.base = to_device(staged)
        if self.base is staged:
            self.before, self.view = staged.clone(), elements
        else:
            self.before, self.view = staged, strided_view(self.base, dtype, geometry)
        self._element_mask: torch.Tensor | None = None
        self.built_as_asked = self.as_asked()

    def as_asked(self) -> bool:
        """Whether the device gave the view the strides and offset that were asked for."""
        view = self.view
        return (
            view.stride() == self.geometry.stride
            and view.storage_offset() == self.geometry.offset
            and tuple(view.shape) == self.geometry.shape
        )

    def intact(self, from_device: Move) -> bool:
        """Whether every byte of the storage is as it was. The fast path: one comparison."""
        return torch.equal(from_device(self.base), self.before)

    def damage(self, from_device: Move) -> Damage:
        """Where bytes changed."""
        changed = from_device(self.base) != self.before
        inside = self.element_mask()
        start, stop = self._span()
        outside = changed.clone()
        outside[start:stop] = False
        where = changed.nonzero()
        return Damage(
            inside=int((changed & inside).sum()),
            between=int((changed & ~inside).sum()) - int(outside.sum()),
            outside=int(outside.sum()),
            first_offset=int(where[0]) if len(where) else -1,
        )

    def outside_intact(self, from_device: Move) -> bool:
        """Whether every byte that belongs to no element of the view is as it was."""
        after, expected = from_device(self.base), self.before.clone()
        bits = _BITS[self.itemsize]  # integers, so that no bit of a NaN or a bool is touched
        there = strided_view(expected, bits, self.geometry)
        came = strided_view(after, bits, self.geometry)
        if self.geometry.expanded is not None:
            dim = self.geometry.expanded
            there, came = there.narrow(dim, 0, 1), came.narrow(dim, 0, 1)
        there.copy_(came)
        return torch.equal(after, expected)

    def element_mask(self) -> torch.Tensor:
        """One bool a storage byte: does it belong to an element of the view?"""
        if self._element_mask is None:
            mask = torch.zeros(len(self.before) // self.itemsize * self.itemsize, dtype=torch.uint8)
            rows = mask.view(-1, self.itemsize)
            geometry = self.geometry
            index = torch.full(geometry.shape, geometry.offset, dtype=torch.int64)
            for dim, (size, stride) in enumerate(zip(geometry.shape, geometry.stride, strict=True)):
                steps = torch.arange(size) * stride
                index += steps.view([-1 if d == dim else 1 for d in range(len(geometry.shape))])
            rows[index.reshape(-1)] = 1
            full = torch.zeros(len(self.before), dtype=torch.bool)
            full[: len(mask)] = mask.bool()
            self._element_mask = full
        return self._element_mask

    def remember(self, from_device: Move) -> None:
        """Take the bytes as they are now for the known ones."""
        self.before = from_device(self.base).clone()

    def restore(self, to_device: Move) -> None:
        """Write the known bytes back, after a call that was allowed to change them."""
        self.base.copy_(to_device(self.before))

    def _span(self) -> tuple[int, int]:
        return self.geometry.offset * self.itemsize, self.geometry.extent * self.itemsize


def _known_bytes(byte: int, count: int) -> torch.Tensor:
    """A fresh tensor of ``count`` bytes. Copying a template costs a third of filling anew."""
    if count > _TEMPLATE_BYTES:
        return torch.full((count,), byte, dtype=torch.uint8)
    template = _TEMPLATES.get(byte)
    if template is None:
        template = torch.full((_TEMPLATE_BYTES,), byte, dtype=torch.uint8)
        _TEMPLATES[byte] = template
    return template[:count].clone()


def storage_bytes(geometry: Geometry, itemsize: int) -> int:
    """Size of the storage that a guarded view gets, in bytes."""
    row = geometry.offset + math.prod(geometry.shape)
    return max(geometry.extent, row) * itemsize + GUARD_BYTES


def strided_view(base: torch.Tensor, dtype: torch.dtype, geometry: Geometry) -> torch.Tensor:
    """The view of ``base`` (uint8, one dimension) with this geometry."""
    return base.view(dtype).as_strided(geometry.shape, geometry.stride, geometry.offset)
