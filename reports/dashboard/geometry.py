"""Where the elements of a strided tensor are in its buffer: what the pictures of layouts show.

The tensors of a failing call are known; those of the other failing layouts are drawn by the layout's name, as a
small example would lie.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from typing import Final

import msgspec

from reports.summary import MEMORY

# The storage offset of a layout with "offset", in elements, and the known bytes after every view:
# those of opinfo.layouts and opinfo.device, which need torch. A test compares them.
OFFSET: Final = 17
GUARD_BYTES: Final = 512

_BITS: Final = re.compile(r"\d+")


class Placement(msgspec.Struct, frozen=True, omit_defaults=True):
    """Sizes and strides in elements; ``extent`` is one past the last element's position, ``guard`` how many
    elements of known bytes follow the view, at least."""

    shape: list[int]
    stride: list[int]
    offset: int
    extent: int
    dtype: str = ""
    guard: int = 0
    values: str = ""
    role: str = ""  # "out" for a target of out=


def placed(
    dtype: str,
    shape: Sequence[int],
    stride: Sequence[int],
    offset: int,
    *,
    values: str = "",
    role: str = "",
) -> Placement:
    """A tensor in a buffer of its own."""
    last = sum(max(size - 1, 0) * step for size, step in zip(shape, stride))
    extent = offset + (last + 1 if all(shape) else 0)
    bits = _BITS.search(dtype)
    size = max(int(bits[0]) // 8, 1) if bits else 1 if dtype == "bool" else 4
    guard = max(offset + math.prod(shape) - extent, 0) + GUARD_BYTES // size
    return Placement(list(shape), list(stride), offset, extent, dtype, guard, values, role)


def laid_out(layout: str) -> list[Placement]:
    """A small tensor for each part of a layout's name; none where the name is not of a layout."""
    parts = layout.removeprefix("out=").split("/")
    found = []
    for part in parts:
        memory, *factors = part.split("+")
        if memory not in MEMORY:
            return []
        step = expand = ""
        offset = 0
        for factor in factors:
            if factor == "offset":
                offset = OFFSET
            elif factor.startswith("step_"):
                step = factor.removeprefix("step_")
            elif factor.startswith("expand_"):
                expand = factor.removeprefix("expand_")
            else:
                return []
        shape = (2, 3, 2, 2) if memory == "channels_last" else (3, 4)
        found.append(_lay_out(shape, memory, step, expand, offset))
    return found


def _lay_out(shape: Sequence[int], memory: str, step: str, expand: str, offset: int) -> Placement:
    """As ``opinfo.layouts``, whose code needs a run's torch: a test compares the two."""
    rank = len(shape)
    order = list(range(rank))
    if memory == "transposed":
        order[-1], order[-2] = order[-2], order[-1]
    elif memory == "reversed":
        order.reverse()
    elif memory == "channels_last":
        order = [0, *range(2, rank), 1]
    long = [dim for dim, size in enumerate(shape) if size > 1]
    expanded = None if not expand else long[0] if expand == "first" else long[-1]
    stride = [0] * rank
    distance = 1
    walked = [dim for dim in order if dim != expanded]
    for position, dim in enumerate(reversed(walked)):
        innermost, outermost = position == 0, position == len(walked) - 1
        doubled = (step == "inner" and innermost) or (
            step == "outer" and outermost and len(walked) > 1
        )
        distance *= 2 if doubled else 1
        stride[dim] = distance
        distance *= max(shape[dim], 1)
    return placed("", shape, stride, offset)
