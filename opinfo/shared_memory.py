"""Tensors of one call that share memory: the bytes of their storage, and which of them read or write the same
elements."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from itertools import combinations

import torch

from opinfo.guarded import storage_bytes, strided_view
from opinfo.layouts import Geometry

#: The byte around the elements: NaN for floating-point numbers, and for integers a number that no sample has by chance.
_AROUND = 0xFF


def blocks_of(
    values: Sequence[torch.Tensor], geometries: Sequence[Geometry], storages: Sequence[int]
) -> list[torch.Tensor]:
    """Returns the bytes of each storage of a call, on the CPU. ``storages`` has the number of the storage of each tensor.
    Tensors of one storage have one dtype; where two of them have the same element, the later tensor decides its value."""
    blocks = []
    for number in range(max(storages, default=-1) + 1):
        members = [place for place, each in enumerate(storages) if each == number]
        dtype = values[members[0]].dtype
        nbytes = max(storage_bytes(geometries[place], dtype.itemsize) for place in members)
        staged = torch.full((nbytes + -nbytes % 16,), _AROUND, dtype=torch.uint8)
        for place in members:
            target, value = (
                once(strided_view(staged, dtype, geometries[place]), geometries[place]),
                once(values[place], geometries[place]),
            )
            target.copy_(value)
        blocks.append(staged)
    return blocks


def once(tensor: torch.Tensor, geometry: Geometry) -> torch.Tensor:
    """Returns the view ``tensor`` with size 1 in the dimensions of stride 0, so that each element occurs once."""
    for dim, (size, step) in enumerate(zip(geometry.shape, geometry.stride)):
        if size > 1 and step == 0:
            tensor = tensor.narrow(dim, 0, 1)
    return tensor


def with_shared_elements(
    values: Sequence[torch.Tensor], geometries: Sequence[Geometry], storages: Sequence[int]
) -> list[torch.Tensor]:
    """Returns contiguous copies of ``values`` that are equal wherever two tensors of the call store an element in
    the same memory."""
    blocks = blocks_of(values, geometries, storages)
    return [
        strided_view(blocks[storage], value.dtype, geometry).contiguous()
        for value, geometry, storage in zip(values, geometries, storages)
    ]


def why_apart(
    dtypes: Sequence[torch.dtype],
    geometries: Sequence[Geometry],
    storages: Sequence[int],
    written: Collection[int],
    *,
    pointwise: bool,
) -> str:
    """Returns the reason why the result of a call is not defined by the values of its tensors if these share memory;
    an empty text if it is defined. ``written`` has the positions of the tensors that the call writes to."""
    for one, other in combinations(range(len(storages)), 2):
        if storages[one] != storages[other]:
            continue
        if dtypes[one] != dtypes[other]:
            return "tensors of two dtypes share memory"
        writes = [place in written for place in (one, other)]
        if not any(writes) or not have_common_element(geometries[one], geometries[other]):
            continue
        if all(writes) or not pointwise or geometries[one] != geometries[other]:
            return "the call writes to elements that another of its tensors has"
    return ""


def have_common_element(one: Geometry, other: Geometry) -> bool:
    """Returns True if two tensors of a storage have an element in common."""
    marks = torch.zeros(max(one.extent, other.extent), dtype=torch.bool)
    once(marks.as_strided(one.shape, one.stride, one.offset), one).fill_(True)
    return bool(marks.as_strided(other.shape, other.stride, other.offset).any())
