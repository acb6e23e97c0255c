"""Layouts: combinations of memory order, step, expand and storage offset; and the covering set of layouts, which every
plan uses.

The module works with numbers only and does not import torch. A layout turns a shape into strides (in elements), a
storage offset (in elements) and the number of storage elements that the view needs.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cache, lru_cache
from itertools import chain, product, repeat
from pathlib import Path
from typing import NamedTuple, TypeAlias

from devices.files import tomllib

#: The storage offset of layouts with "offset", in elements. It is odd, so that no vector width divides the address, and
#: large enough that a kernel which ignores the offset writes into known bytes.
OFFSET = 17

MEMORY = ("contiguous", "transposed", "reversed", "channels_last")
STEP = ("none", "inner", "outer")
EXPAND = ("none", "first", "last")


@dataclass(frozen=True, slots=True)
class Geometry:
    """The positions of a view's elements in its storage: strides, offset and size. All numbers count elements of the
    view's dtype."""

    shape: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int
    extent: int  # storage elements from the start of the storage to the end of the view
    expanded: int | None = None  # the dimension whose stride is 0, if any


@dataclass(frozen=True, slots=True)
class Layout:
    """A layout, made of one choice for each of four factors: memory order, step, expand and offset."""

    memory: str
    step: str = "none"
    expand: str = "none"
    offset: bool = False

    @property
    def id(self) -> str:
        step = "" if self.step == "none" else f"step_{self.step}"
        expand = "" if self.expand == "none" else f"expand_{self.expand}"
        offset = "offset" if self.offset else ""
        return "+".join(filter(None, (self.memory, step, expand, offset)))

    @classmethod
    def parse(cls, text: str) -> Layout:
        """Returns the layout with an id such as ``transposed+step_inner+offset``. Raises ValueError for other texts."""
        for factors in product(MEMORY, STEP, EXPAND, (False, True)):
            if (layout := cls(*factors)).id == text:
                return layout
        raise ValueError(
            f"layout {text!r}: expected one of {', '.join(MEMORY)}, optionally followed by +step_inner or +step_outer, "
            "+expand_first or +expand_last, and +offset, in this order"
        )

    def geometry(self, shape: Sequence[int], *, may_expand: bool = True) -> Geometry:
        """Returns the strides and the offset of a view of ``shape`` in the layout.

        A factor that has no meaning for the shape is ignored: a permutation of rank 0 or 1, channels_last outside ranks
        4 and 5, an expand of a shape without a dimension longer than 1.
        """
        return _geometry(self, tuple(shape), may_expand)


@dataclass(frozen=True, slots=True)
class FreeLayout:
    """A layout that the four named factors cannot describe, with any order of dimensions, steps, expanded dimension and
    offset.

    It applies to shapes of every rank. ``order`` lists dimensions from outermost to innermost in memory. Dimensions
    that the shape does not have are skipped; dimensions that are not listed come last. ``steps`` multiply the strides,
    from the innermost dimension outwards; missing steps are 1. ``pads`` are numbers of unused elements that follow the
    elements of a dimension in memory, from the innermost dimension outwards, as if the tensor were a part of wider
    rows; missing pads are 0. ``ones`` is the stride of all dimensions of size 1. No element depends on that stride, so
    the view is as contiguous as without it.
    """

    order: tuple[int, ...] = ()
    steps: tuple[int, ...] = ()
    expand: int | None = None  # the dimension of stride 0, where it is longer than 1
    offset: int = 0  # storage elements before the view
    pads: tuple[int, ...] = ()
    ones: int | None = None

    @property
    def id(self) -> str:
        """The id of the layout, such as ``free:order=2.0.1,steps=1.3,pads=0.2,expand=0,offset=5``. :func:`parse_layout`
        reads the id back."""
        parts = {
            "order": self.order,
            "steps": self.steps,
            "pads": self.pads,
            "expand": () if self.expand is None else (self.expand,),
            "offset": (self.offset,) if self.offset else (),
            "ones": () if self.ones is None else (self.ones,),
        }
        return "free:" + ",".join(
            f"{name}={'.'.join(map(str, numbers))}" for name, numbers in parts.items() if numbers
        )

    @classmethod
    def parse(cls, text: str) -> FreeLayout:
        """Returns the free layout with the given id. Raises ValueError for other texts."""
        parts: dict[str, tuple[int, ...]] = {
            name: tuple(map(int, numbers.split(".")))
            for name, numbers in re.findall(r"(\w+)=(\d+(?:\.\d+)*)", text)
        }
        expand, offset = parts.get("expand", (None,)), parts.get("offset", (0,))
        order, steps, pads = (parts.get(name, ()) for name in ("order", "steps", "pads"))
        made = cls(order, steps, expand[0], offset[0], pads, parts.get("ones", (None,))[0])
        if made.id != text or not all(made.steps):
            form = cls((2, 0, 1), (1, 3), 0, 5, (0, 2)).id
            raise ValueError(
                f"layout {text!r}: expected an id of the form {form}; each part may be left out"
            )
        return made

    def geometry(self, shape: Sequence[int], *, may_expand: bool = True) -> Geometry:
        """Returns the strides and the offset of a view of ``shape``. Parts that have no meaning for the shape are
        ignored."""
        return _free_geometry(self, tuple(shape), may_expand)


AnyLayout: TypeAlias = Layout | FreeLayout


@cache
def parse_layout(text: str) -> AnyLayout:
    """Returns the layout with the given id, which may be a named or a free layout. Raises ValueError for other
    texts."""
    return FreeLayout.parse(text) if text.startswith("free:") else Layout.parse(text)


@dataclass(frozen=True, slots=True)
class LayoutCase:
    """The layouts of the tensors of one call: ``first`` for the first tensor, ``second`` for the second tensor if it is
    set, and ``rest`` for all other tensors."""

    id: str
    first: AnyLayout
    rest: AnyLayout
    second: AnyLayout | None = None

    def layout(self, position: int) -> AnyLayout:
        if position == 0:
            return self.first
        return self.second if position == 1 and self.second is not None else self.rest


@dataclass(frozen=True, slots=True)
class CoveringSet:
    """The ordered set of layout cases (layouts for all tensors of a call) in which every call is run. ``version``
    changes with its content."""

    version: int
    cases: tuple[LayoutCase, ...]
    targets: tuple[AnyLayout, ...]  # layouts of the targets of ``out=``
    cotangents: tuple[
        str, ...
    ]  # layouts, and the special gradients "sum" (expanded) and "conj" (conjugated)
    directed: tuple[str, ...]

    @property
    def ids(self) -> frozenset[str]:
        """Every layout name that a report or a manifest may contain."""
        cases = {case.id for case in self.cases}
        targets = {f"out={t.id}" for t in self.targets}
        grads = {f"{of}={each}" for of in ("grad", "both") for each in self.cotangents}
        return frozenset(cases | targets | grads | {RECORDED.id, SHARED.id, *self.directed})


@cache
def known_names() -> frozenset[str]:
    """Returns every layout name that a report or a manifest may contain. The result is cached."""
    return covering_set().ids


CONTIGUOUS = Layout("contiguous")


#: The case of a call with the geometries that its sample was recorded with (``Sample.geometries``).
RECORDED = LayoutCase("recorded", CONTIGUOUS, CONTIGUOUS)
#: The case of such a call whose tensors also share memory as they did in the program (``Sample.storages``).
SHARED = LayoutCase("shared", CONTIGUOUS, CONTIGUOUS)


def recorded_geometry(shape: Sequence[int], stride: Sequence[int], offset: int) -> Geometry:
    """Returns the geometry of a tensor that was recorded, with any strides. ``expanded`` is the first dimension that is
    longer than 1 and has stride 0, so that it repeats the same elements."""
    repeats = [dim for dim, (n, step) in enumerate(zip(shape, stride)) if n > 1 and step == 0]
    last = sum((n - 1) * step for n, step in zip(shape, stride, strict=True)) + 1
    extent = offset + (last if all(shape) else 0)
    expanded = repeats[0] if repeats else None
    return interned(Geometry(tuple(shape), tuple(stride), offset, extent, expanded))


def uniform(layout: AnyLayout) -> LayoutCase:
    return LayoutCase(layout.id, layout, layout)


_FILE = Path(__file__).with_name("layouts.toml")


@cache
def covering_set(path: Path = _FILE) -> CoveringSet:
    """Returns the covering set of layout cases from ``layouts.toml``: each combination of memory order, step and
    expand that the file lists, once without and once with an offset; then the free layouts; then the mixed cases, in
    which the tensors have different layouts."""
    data = tomllib.loads(path.read_text(encoding="utf-8"))
    cases: list[LayoutCase] = []
    for memory, step, expand in data["combinations"]:
        for offset in (False, True):
            cases.append(uniform(Layout(memory, step, expand, offset)))
    cases += [uniform(FreeLayout.parse(text)) for text in data["free"]]
    cases += [_mixed(parts) for parts in data["mixed"]]
    targets = tuple(map(parse_layout, data["targets"]))
    names = (tuple(data["cotangents"]), tuple(data["directed"]))
    return CoveringSet(int(data["version"]), tuple(cases), targets, *names)


def _mixed(parts: Sequence[str]) -> LayoutCase:
    """Returns the layout case for two or three layouts. The first layout is for the first tensor and the last layout
    for all other tensors; if there are three layouts, the middle one is for the second tensor."""
    first, *second, rest = map(parse_layout, parts)
    return LayoutCase("/".join(parts), first, rest, *second)


def _memory_order(memory: str, rank: int) -> list[int]:
    """Returns the dimensions of a tensor from outermost to innermost in memory, for a named memory order."""
    order = list(range(rank))
    if memory == "transposed" and rank >= 2:
        order[-1], order[-2] = order[-2], order[-1]
    elif memory == "reversed":
        order.reverse()
    elif memory == "channels_last" and rank in (4, 5):
        order = [0, *range(2, rank), 1]
    return order


@cache
def _geometry(layout: Layout, shape: tuple[int, ...], may_expand: bool) -> Geometry:
    expanded = None
    if (
        may_expand
        and layout.expand != "none"
        and (long := [d for d, n in enumerate(shape) if n > 1])
    ):
        expanded = long[0] if layout.expand == "first" else long[-1]
    steps: tuple[int, ...] = (2,) if layout.step == "inner" else ()
    stepped = len(shape) - (expanded is not None)  # dimensions with a stride
    if layout.step == "outer" and stepped > 1:
        steps = (*[1] * (stepped - 1), 2)
    order = _memory_order(layout.memory, len(shape))
    return _strided_geometry(shape, order, steps, expanded, OFFSET if layout.offset else 0)


@cache
def _free_geometry(layout: FreeLayout, shape: tuple[int, ...], may_expand: bool) -> Geometry:
    rank = len(shape)
    listed = [d for d in dict.fromkeys(layout.order) if d < rank]
    order = listed + [d for d in range(rank) if d not in listed]
    expanded = layout.expand if may_expand else None
    if expanded is not None and (expanded >= rank or shape[expanded] < 2):
        expanded = None
    made = _strided_geometry(shape, order, layout.steps, expanded, layout.offset, layout.pads)
    if layout.ones is None:
        return made
    strides = tuple(layout.ones if n == 1 else s for n, s in zip(shape, made.stride, strict=True))
    return interned(replace(made, stride=strides))


def _strided_geometry(
    shape: Sequence[int],
    order: Sequence[int],
    steps: Sequence[int],
    expanded: int | None,
    offset: int,
    pads: Sequence[int] = (),
) -> Geometry:
    """Returns the geometry of a view with the given order of dimensions, steps and pads (see :class:`FreeLayout`)."""
    stride, step = [0] * len(shape), 1
    walked = [dim for dim in reversed(order) if dim != expanded]
    for dim, factor, pad in zip(walked, chain(steps, repeat(1)), chain(pads, repeat(0))):
        stride[dim] = step * factor
        step = stride[dim] * (max(shape[dim], 1) + pad)
    last = sum((n - 1) * s for n, s in zip(shape, stride, strict=True)) + 1 if all(shape) else 0
    return interned(Geometry(tuple(shape), tuple(stride), offset, offset + last, expanded))


def interned(geometry: Geometry) -> Geometry:
    """Returns the one object that represents all equal geometries. The inner loop compares geometries by ``id``."""
    return _INTERNED.setdefault(geometry, geometry)


_INTERNED: dict[Geometry, Geometry] = {}


def forget_geometries() -> None:
    """Clears the interned geometries, because those of random shapes and layouts would accumulate without limit. Call
    the function only between two items of a run, because geometries of one item are compared by ``id``."""
    _INTERNED.clear()
    for kept in (_geometry, _free_geometry, covering):
        kept.cache_clear()


# -- the cases of one call


class Operand(NamedTuple):
    """The properties of a tensor on which its layout depends: its shape, how many of its leading dimensions may have
    stride 0, and whether it is strided at all."""

    shape: tuple[int, ...]
    expandable: int
    strided: bool = True


#: A case, and the geometry of each tensor in it.
Placed: TypeAlias = tuple[LayoutCase, tuple[Geometry, ...]]


def geometries_of(case: LayoutCase, operands: Sequence[Operand]) -> tuple[Geometry, ...]:
    """Returns the geometry of each tensor of a call in a layout case. The geometry of a tensor that is not strided has no
    strides."""
    return tuple(
        [_operand_geometry(case.layout(place), each) for place, each in enumerate(operands)]
    )


def _operand_geometry(layout: AnyLayout, operand: Operand) -> Geometry:
    if not operand.strided:
        return interned(Geometry(operand.shape, (), 0, 0))
    geometry = layout.geometry(operand.shape)
    if geometry.expanded is not None and geometry.expanded >= operand.expandable:
        geometry = layout.geometry(operand.shape, may_expand=False)
    return geometry


def distinct(cases: Iterable[LayoutCase], operands: Sequence[Operand]) -> list[Placed]:
    """Returns the layout cases without duplicates. If several cases give the tensors the same geometries, only the
    first is kept."""
    found: dict[tuple[int, ...], Placed] = {}
    for case in cases:
        placed = geometries_of(case, operands)
        found.setdefault(tuple(map(id, placed)), (case, placed))
    return list(found.values())


@lru_cache(maxsize=4096)
def covering(operands: tuple[Operand, ...], only: tuple[str, ...] | None) -> list[Placed]:
    """Returns the layout cases that every plan uses, without those that place these tensors exactly as an earlier one
    does. If ``only`` is given, only cases with these names are used. The result is cached, because many ops have samples of equal shapes."""
    cases = covering_set().cases
    return distinct((c for c in cases if only is None or c.id in only), operands)
