"""Tensors on a device in storage with known bytes around them, which show writes outside of the tensor."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch

from opinfo.compare import raw_bytes, same_bytes
from opinfo.layouts import Geometry

#: The least number of known bytes after every view: 32 elements of the widest dtype, because a kernel with a wrong stride
#: misses by whole elements. It is a multiple of the widest vector register (64 bytes), so that a kernel that rounds its loop
#: up to whole vectors is detected. The storage also has room for the view's elements without gaps, so that a kernel that
#: ignores strides (some do) damages the guard and not the heap.
GUARD_BYTES = 512

#: Around floating-point and complex elements, the guard bytes read as NaN, so that a read outside the view makes the result
#: NaN. Around other dtypes, they are a value that no sample contains by chance.
_NAN_BYTE, _INT_BYTE = 0xFF, 0x5B

_BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64, 16: torch.complex128}

Move = Callable[[torch.Tensor], torch.Tensor]


def identity(tensor: torch.Tensor) -> torch.Tensor:
    return tensor


@dataclass(frozen=True, slots=True)
class Damage:
    """Numbers of bytes that a call changed but should not have changed: inside the elements of the view, between them,
    and outside the view."""

    inside: int  # bytes of the view's own elements
    between: int  # bytes between its first and last element that belong to no element
    outside: int  # bytes before its first element or after its last
    first_offset: int  # storage byte of the first change

    def __bool__(self) -> bool:
        return bool(self.inside or self.between or self.outside)


class Guarded:
    """A tensor on the device under test, in a storage whose other bytes are known.

    ``view`` is passed to the op. ``base`` is the whole storage as uint8 on the device. ``before`` has the bytes of the
    storage before the call, on the CPU.
    """

    __slots__ = ("base", "before", "built_as_asked", "geometry", "itemsize", "view")

    def __init__(
        self,
        values: torch.Tensor,
        geometry: Geometry,
        to_device: Move,
        *,
        fill: Any = None,
        around: float | None = None,
    ) -> None:
        """Creates the view with ``values``, a contiguous CPU tensor that has size 1 in the dimension that the geometry
        expands.

        If ``fill`` is given, every element is that value instead, as for targets of ``out=``. ``around`` is the value of
        the elements outside of the view, for kernels that must not read NaN.
        """
        dtype = values.dtype
        self.itemsize = dtype.itemsize
        self.geometry = geometry
        nbytes = self._nbytes()
        byte = _NAN_BYTE if dtype.is_floating_point or dtype.is_complex else _INT_BYTE
        staged = torch.full((nbytes,), byte, dtype=torch.uint8)
        if around is not None:
            staged.view(dtype).fill_(around)
        if fill is not None:
            strided_view(staged, dtype, geometry).fill_(fill)
        else:
            self._elements(staged, dtype).copy_(_once(values, geometry))
        self._place(staged, dtype, to_device)
        self.built_as_asked = self.as_asked()

    def _nbytes(self) -> int:
        nbytes = storage_bytes(self.geometry, self.itemsize)
        return nbytes + -nbytes % 16  # so that the storage can be viewed as any dtype

    def _place(self, staged: torch.Tensor, dtype: torch.dtype, to_device: Move) -> None:
        self.base = to_device(staged)
        self.before = staged.clone() if self.base is staged else staged
        self.view = strided_view(self.base, dtype, self.geometry)

    def as_asked(self) -> bool:
        """Returns True if the device gave the view the requested shape, strides and offset."""
        view = self.view
        return (
            view.stride() == self.geometry.stride
            and view.storage_offset() == self.geometry.offset
            and tuple(view.shape) == self.geometry.shape
        )

    def intact(self, from_device: Move) -> bool:
        """Returns True if no byte of the storage has changed. The method is fast, because it makes a single
        comparison."""
        return same_bytes(from_device(self.base), self.before)

    def changed(self, from_device: Move) -> torch.Tensor:
        """Returns a mask with a bool for each byte of the storage, which is True if the byte has changed."""
        return from_device(self.base) != self.before

    def damage(self, from_device: Move) -> Damage:
        changed = self.changed(from_device)
        inside = self.element_mask()
        outside = changed.clone()
        outside[self.geometry.offset * self.itemsize : self.geometry.extent * self.itemsize] = False
        where = changed.nonzero()
        return Damage(
            inside=int((changed & inside).sum()),
            between=int((changed & ~inside).sum()) - int(outside.sum()),
            outside=int(outside.sum()),
            first_offset=int(where[0]) if len(where) else -1,
        )

    def outside_intact(self, from_device: Move) -> bool:
        """Returns True if no byte outside the elements of the view has changed."""
        after, expected = from_device(self.base), self.before.clone()
        self._elements(expected).copy_(self._elements(after))
        return same_bytes(after, expected)

    def element_mask(self) -> torch.Tensor:
        """Returns a mask with a bool for each byte of the storage, which is True if the byte belongs to an element of
        the view."""
        mask = torch.zeros_like(self.before)
        one = torch.ones(self.itemsize, dtype=torch.uint8).view(_BITS[self.itemsize])[0]
        self._elements(mask).copy_(one)
        return mask.bool()

    def bytes_now(self, from_device: Move) -> torch.Tensor:
        """Returns a copy of the present bytes of the storage."""
        return from_device(self.base).clone()

    def remember(self, from_device: Move) -> None:
        """Stores the present bytes of the storage as its known bytes."""
        self.before = self.bytes_now(from_device)

    def restore(self, to_device: Move) -> None:
        """Writes the known bytes back, after a call that was allowed to change them."""
        self.base.copy_(to_device(self.before))

    def create_again(self, to_device: Move) -> None:
        """Creates the storage, with its known bytes, and the view again, because the device cannot read or write the
        storage any more."""
        dtype = self.view.dtype
        self.base = to_device(self.before.clone())
        self.view = strided_view(self.base, dtype, self.geometry)

    def lay_again(self) -> None:
        """Creates the view in its storage again, because a call may have changed the view's shape or storage."""
        self.view = strided_view(self.base, self.view.dtype, self.geometry)

    def arrived(self, from_device: Move) -> bool:
        """Returns True if the storage contains the values that the view now has, which shows that the view still
        uses the memory of the storage."""
        held = strided_view(from_device(self.base), self.view.dtype, self.geometry)
        seen = from_device(self.view)
        return held.shape == seen.shape and not differing(held, seen).any()

    def _elements(self, base: torch.Tensor, dtype: torch.dtype | None = None) -> torch.Tensor:
        """Returns a view of ``base`` (a storage) that has each element of the guarded view once, even if a dimension is
        expanded. If no ``dtype`` is given, the elements are read as integers, so that no bit of a NaN or a bool
        changes."""
        view = strided_view(base, dtype or _BITS[self.itemsize], self.geometry)
        return _once(view, self.geometry)


class ByValues(Guarded):
    """A guarded tensor for a device that does not declare strides, so that only the values of its tensors are read.

    The base has the dtype of the view, and the view is made by slicing, reshaping and permuting. If the view is the
    whole tensor, it is the base itself, without known bytes around it. ``before`` contains bytes in both cases.
    """

    __slots__ = ()

    def _nbytes(self) -> int:
        if self.whole:
            return self.geometry.extent * self.itemsize
        rows = _rows(self.geometry)
        last = self.geometry.offset + math.prod(rows[1])
        nbytes = max(storage_bytes(self.geometry, self.itemsize), last * self.itemsize)
        return nbytes + -nbytes % 16

    def _place(self, staged: torch.Tensor, dtype: torch.dtype, to_device: Move) -> None:
        self.before = staged
        if dtype == torch.bool and not self.whole:
            # A bool must be 0 or 1, so the known bytes are 1.
            outside = ~self.element_mask()
            staged[outside] = 1
        self.base = to_device(self._shaped(staged, dtype))
        self.lay_again()

    @property
    def whole(self) -> bool:
        """True if the view is the base itself, so that there are no known bytes around it."""
        geometry, step = self.geometry, 1
        for size, stride in zip(reversed(geometry.shape), reversed(geometry.stride)):
            if stride != step:
                return False
            step *= max(size, 1)
        return geometry.offset == 0

    def _shaped(self, raw: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        """Returns a new tensor of the base's shape and the given dtype, made from the bytes ``raw``."""
        typed = raw.clone().view(dtype)
        return typed.view(self.geometry.shape) if self.whole else typed

    def as_asked(self) -> bool:
        return tuple(self.view.shape) == self.geometry.shape

    def intact(self, from_device: Move) -> bool:
        return not self.changed(from_device).any()

    def changed(self, from_device: Move) -> torch.Tensor:
        """Returns a mask with a bool for each byte of the storage, which is True if the element at that byte has
        changed. NaNs count as equal, because a copy may change the bits of a NaN."""
        want = self._shaped(self.before, self.base.dtype)
        got = from_device(self.base)
        if got.shape != want.shape:  # it was resized
            return torch.ones_like(self.before, dtype=torch.bool)
        return differing(got, want).reshape(-1).repeat_interleave(self.itemsize)

    def outside_intact(self, from_device: Move) -> bool:
        return not (self.changed(from_device) & ~self.element_mask()).any()

    def bytes_now(self, from_device: Move) -> torch.Tensor:
        return raw_bytes(from_device(self.base))

    def restore(self, to_device: Move) -> None:
        known = to_device(self._shaped(self.before, self.base.dtype))
        if self.base.shape == known.shape:
            self.base.copy_(known)
        else:  # it was resized
            self.base = known
            self.lay_again()

    def create_again(self, to_device: Move) -> None:
        self.base = to_device(self._shaped(self.before, self.base.dtype))
        self.lay_again()

    def lay_again(self) -> None:
        self.view = self.base if self.whole else sliced_view(self.base, self.geometry)

    def arrived(self, from_device: Move) -> bool:
        if self.view is self.base:
            return True
        held, seen = from_device(self.base), from_device(self.view)
        held = strided_view(raw_bytes(held), seen.dtype, self.geometry)
        return held.shape == seen.shape and not differing(held, seen).any()


def differing(got: torch.Tensor, want: torch.Tensor) -> torch.Tensor:
    """Returns a mask with a bool for each element of two CPU tensors of the same shape and dtype, which is True if the
    bits of the elements differ and not both are NaN."""
    changed = (raw_bytes(got) != raw_bytes(want)).view(-1, want.itemsize).any(1).view(want.shape)
    if changed.any() and (want.is_floating_point() or want.is_complex()):
        wide = torch.complex128 if want.is_complex() else torch.float64
        changed &= ~(got.to(wide).isnan() & want.to(wide).isnan())
    return changed


def _rows(geometry: Geometry) -> tuple[list[int], list[int]]:
    """Returns the data from which a view can be made by slicing: the dimensions that have a stride, from outermost to
    innermost in memory, and the shape of the contiguous memory to slice. The first size in that shape is the size of
    the first dimension. Each further size is the quotient of a stride and the next smaller stride; the stride that
    follows the smallest stride counts as 1."""
    shape, stride = geometry.shape, geometry.stride
    walked = [d for d in range(len(shape)) if shape[d] > 1 and stride[d]]
    walked.sort(key=lambda d: -stride[d])
    steps = [stride[d] for d in walked] + [1]
    return walked, [shape[walked[0]] if walked else 1, *(a // b for a, b in pairwise(steps))]


def _once(view: torch.Tensor, geometry: Geometry) -> torch.Tensor:
    """Returns a view without the repetitions of expanded dimensions, those longer than 1 whose stride is 0."""
    if geometry.expanded is None:
        return view
    for dim, (size, step) in enumerate(zip(geometry.shape, geometry.stride)):
        if size > 1 and step == 0:
            view = view.narrow(dim, 0, 1)
    return view


def storage_bytes(geometry: Geometry, itemsize: int) -> int:
    """Returns the size in bytes of the storage that a guarded view gets."""
    row = geometry.offset + math.prod(geometry.shape)
    return max(geometry.extent, row) * itemsize + GUARD_BYTES


def strided_view(base: torch.Tensor, dtype: torch.dtype, geometry: Geometry) -> torch.Tensor:
    """Returns the view of ``base`` (uint8, one dimension) with the given dtype and geometry."""
    return base.view(dtype).as_strided(geometry.shape, geometry.stride, geometry.offset)


def sliced_view(base: torch.Tensor, geometry: Geometry) -> torch.Tensor:
    """Returns the view of ``base`` (one dimension) with the given geometry, made without ``as_strided``."""
    shape = geometry.shape
    if 0 in shape:
        return base.narrow(0, 0, 0).view(shape)
    walked, rows = _rows(geometry)
    view = base.narrow(0, geometry.offset, math.prod(rows)).view(rows)
    for place, dim in enumerate(walked):
        view = view.narrow(place, 0, shape[dim])
    view = view.select(-1, 0).permute(sorted(range(len(walked)), key=walked.__getitem__))
    for dim in range(len(shape)):
        view = view if dim in walked else view.unsqueeze(dim)
    return view if geometry.expanded is None else view.expand(shape)
