"""Where the elements of a strided tensor lie in its buffer: what the pictures of layouts show.

A failing cell's repro script builds the tensors of the failing call, so their true geometry is read
from it. Where there is no script, the layout's name says how a small example would lie.
"""

from __future__ import annotations

import ast
import math
import re
from collections.abc import Sequence
from typing import Final

import msgspec

# The storage offset of a layout with "offset", in elements, and the known bytes behind every view:
# those of opinfo.layouts and opinfo.guarded, which need torch. A test holds them equal.
OFFSET: Final = 17
GUARD_BYTES: Final = 512

_LARGEST_SCRIPT: Final = 1 << 20
_MOST_TENSORS: Final = 6
_BITS: Final = re.compile(r"\d+")


class Geometry(msgspec.Struct, frozen=True, omit_defaults=True):
    """Sizes and strides in elements; ``extent`` is one past the last element's position."""

    shape: list[int]
    stride: list[int]
    offset: int
    extent: int
    dtype: str = ""
    role: str = ""  # "out" for a target of out=


def of_script(script: str) -> list[Geometry]:
    """The tensors that a repro script builds, at most six: targets of ``out=``, then inputs.

    Inputs are calls of ``strided(…)``, targets stand in ``TARGETS``: see conformance/layout/repro.py.

    The script is parsed and never run. One that is not Python gives none.
    """
    if len(script) > _LARGEST_SCRIPT:
        return []
    try:
        tree = ast.parse(script)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return []
    found: list[tuple[str, int, int, Geometry]] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            # data, dtype, size, stride, offset, extent
            if node.func.id == "strided" and (geometry := _read(node.args[1:], "")):
                found.append(("strided", node.lineno, node.col_offset, geometry))
        elif isinstance(node, ast.Assign) and isinstance(node.value, ast.List) and _targets(node):
            for each in node.value.elts:
                if isinstance(each, ast.Tuple) and (geometry := _read(each.elts, "out")):
                    found.append(("out", each.lineno, each.col_offset, geometry))
    found.sort(key=lambda each: each[:3])
    return [geometry for *_, geometry in found[:_MOST_TENSORS]]


def _targets(node: ast.Assign) -> bool:
    return any(isinstance(name, ast.Name) and name.id == "TARGETS" for name in node.targets)


def _read(nodes: Sequence[ast.expr], role: str) -> Geometry | None:
    """A dtype of torch and four literals: size, stride, offset, extent. None for anything else."""
    if len(nodes) != 5 or not isinstance(nodes[0], ast.Attribute):
        return None
    try:
        values = [ast.literal_eval(node) for node in nodes[1:]]
        geometry = msgspec.convert(
            dict(zip(("shape", "stride", "offset", "extent"), map(_listed, values), strict=True))
            | {"dtype": nodes[0].attr, "role": role},
            Geometry,
        )
    except (ValueError, msgspec.ValidationError):
        return None
    sound = (
        len(geometry.shape) == len(geometry.stride)
        and min([geometry.offset, geometry.extent, *geometry.shape], default=0) >= 0
    )
    return geometry if sound else None


def _listed(value: object) -> object:
    return list(value) if isinstance(value, tuple) else value


def example(layout: str) -> list[Geometry]:
    """A small tensor for each part of a layout's name; none where the name is not of a layout."""
    parts = layout.removeprefix("out=").split("/")
    found = []
    for part in parts:
        memory, *factors = part.split("+")
        if memory not in ("contiguous", "transposed", "reversed", "channels_last"):
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


def _lay_out(shape: Sequence[int], memory: str, step: str, expand: str, offset: int) -> Geometry:
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
    last = sum((size - 1) * each for size, each in zip(shape, stride, strict=True))
    return Geometry(list(shape), stride, offset, offset + last + 1)


def guard_elements(geometry: Geometry) -> int:
    """How many elements of known bytes lie behind the view, at least."""
    bits = _BITS.search(geometry.dtype)
    size = max(int(bits[0]) // 8, 1) if bits else 1 if geometry.dtype == "bool" else 4
    row = geometry.offset + math.prod(geometry.shape)
    return max(row - geometry.extent, 0) + GUARD_BYTES // size
