"""Computes the positions of a strided tensor's elements in its storage, for the pictures of layouts.

The tensors of a failing call are drawn as recorded. For the other failing layouts, a small example tensor is made from
the name of the layout.
"""

from __future__ import annotations

import math
import re
from typing import Final

import msgspec

from devices.failure import Geometry
from reports.junit import clean
from reports.model import ExampleTensor

# The storage offset of layouts with "offset", in elements, and the number of known bytes after every view. Both must equal
# the constants of opinfo.layouts and opinfo.device; a test compares them.
OFFSET: Final = 17
GUARD_BYTES: Final = 512

_BITS: Final = re.compile(r"\d+")
_FACTORS: Final = {"step_inner", "step_outer", "expand_first", "expand_last", "offset"}
# By memory order: the shape of a small example, and its dimensions from the outermost in memory to the innermost.
_SMALL: Final = {
    "contiguous": ((3, 4), (0, 1)),
    "transposed": ((3, 4), (1, 0)),
    "reversed": ((3, 4), (1, 0)),
    "channels_last": ((2, 3, 2, 2), (0, 2, 3, 1)),
}


class Placement(msgspec.Struct, frozen=True, omit_defaults=True):
    """The position of a tensor in its storage. Shape, strides and offset are in elements. ``extent`` is one past the
    position of the last element. At least ``guard`` elements with known bytes follow the tensor, so that a write
    past its end is noticed."""

    shape: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int
    extent: int
    dtype: str = ""
    guard: int = 0
    values: str = ""
    role: str = ""  # "out" for a target of out=


def placement(tensor: Geometry, role: str = "") -> Placement:
    """Returns the placement of a recorded tensor."""
    shape, stride, offset, dtype = tensor.shape, tensor.stride, tensor.offset, clean(tensor.dtype)
    last = sum(max(size - 1, 0) * step for size, step in zip(shape, stride))
    extent = offset + (last + 1 if all(shape) else 0)
    bits = _BITS.search(dtype)
    size = max(int(bits[0]) // 8, 1) if bits else 1 if dtype == "bool" else 4
    guard = max(offset + math.prod(shape) - extent, 0) + GUARD_BYTES // size
    values = clean(tensor.values) if isinstance(tensor, ExampleTensor) else ""
    return Placement(shape, stride, offset, extent, dtype, guard, values, role)


def laid_out(layout: str) -> list[Placement]:
    """Returns the placement of a small example tensor for each part of a layout's name; an empty list if the name is
    not that of a layout."""
    parts = [part.split("+") for part in layout.removeprefix("out=").split("/")]
    if any(memory not in _SMALL or not _FACTORS.issuperset(rest) for memory, *rest in parts):
        return []
    return [_lay_out(memory, factors) for memory, *factors in parts]


def _lay_out(memory: str, factors: list[str]) -> Placement:
    """Returns where the elements of a small tensor lie in a layout, given its memory order and its other factors (step,
    expand, offset), as ``opinfo.layouts`` places them. A test compares the two implementations, because ``reports`` must not import
    ``opinfo``."""
    shape, order = _SMALL[memory]
    expanded = 0 if "expand_first" in factors else -1
    if "expand_last" in factors:
        expanded = len(shape) - 1
    walked = [dim for dim in reversed(order) if dim != expanded]
    stride = [0] * len(shape)
    distance = 1
    for position, dim in enumerate(walked):
        inner, outer = position == 0, 0 < position == len(walked) - 1
        if (inner and "step_inner" in factors) or (outer and "step_outer" in factors):
            distance *= 2
        stride[dim] = distance
        distance *= shape[dim]
    return placement(Geometry("", shape, tuple(stride), OFFSET if "offset" in factors else 0))
