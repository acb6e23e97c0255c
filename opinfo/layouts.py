"""Layouts as products of memory order, step, expand and storage offset; the covering set every plan takes.

Pure numbers: nothing here imports torch. A layout turns a shape into strides (in elements), a storage
offset (in elements) and the number of storage elements that it needs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TypeAlias

from devices.files import tomllib

#: Elements before a view that has an offset. Odd, so that no vector width divides the address, and
#: large enough that a kernel which forgets the offset writes into known bytes.
OFFSET = 17

MEMORY = ("contiguous", "transposed", "reversed", "channels_last")
STEP = ("none", "inner", "outer")
EXPAND = ("none", "first", "last")


@dataclass(frozen=True, slots=True)
class Geometry:
    """Where the elements of a view lie, in elements of its dtype."""

    shape: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int
    extent: int  # storage elements from the start of the storage to the end of the view
    expanded: int | None = None  # the dimension whose stride is 0, if any


@dataclass(frozen=True, slots=True)
class Layout:
    """One product of the four factors."""

    memory: str
    step: str = "none"
    expand: str = "none"
    offset: bool = False

    @property
    def id(self) -> str:
        parts = [self.memory]
        if self.step != "none":
            parts.append(f"step_{self.step}")
        if self.expand != "none":
            parts.append(f"expand_{self.expand}")
        if self.offset:
            parts.append("offset")
        return "+".join(parts)

    @classmethod
    def parse(cls, text: str) -> Layout:
        """Read an id such as ``transposed+step_inner+offset``. Raises ValueError."""
        memory, *rest = text.split("+")
        step, expand, offset = "none", "none", False
        for part in rest:
            if part == "offset":
                offset = True
            elif part.startswith("step_"):
                step = part.removeprefix("step_")
            elif part.startswith("expand_"):
                expand = part.removeprefix("expand_")
            else:
                raise ValueError(f"layout {text!r}: unknown part {part!r}")
        if memory not in MEMORY or step not in STEP or expand not in EXPAND:
            raise ValueError(f"layout {text!r}: unknown factor")
        return cls(memory, step, expand, offset)

    def geometry(self, shape: Sequence[int], *, may_expand: bool = True) -> Geometry:
        """Strides and offset of a view of ``shape``.

        Factors that mean nothing for the shape fall away: a permutation of rank 0 or 1, channels_last
        outside ranks 4 and 5, an expand of a shape without a dimension longer than 1.
        """
        return _geometry(self, tuple(shape), may_expand)


@dataclass(frozen=True, slots=True)
class FreeLayout:
    """A layout outside the named factors: any order, step, expanded dimension and offset.

    It fits shapes of every rank. ``order`` lists dimensions from outermost to innermost in memory: what a
    shape does not have is skipped, what is not listed comes last. ``steps`` multiply the strides from the
    innermost dimension outwards, where the missing ones are 1.
    """

    order: tuple[int, ...] = ()
    steps: tuple[int, ...] = ()
    expand: int | None = None  # the dimension of stride 0, where it is longer than 1
    offset: int = 0  # storage elements before the view

    @property
    def id(self) -> str:
        """Such as ``free:order=2.0.1,steps=1.3,expand=0,offset=5``; read back by :func:`parse_layout`."""
        parts = []
        if self.order:
            parts.append("order=" + ".".join(map(str, self.order)))
        if self.steps:
            parts.append("steps=" + ".".join(map(str, self.steps)))
        if self.expand is not None:
            parts.append(f"expand={self.expand}")
        if self.offset:
            parts.append(f"offset={self.offset}")
        return "free:" + ",".join(parts)

    @classmethod
    def parse(cls, text: str) -> FreeLayout:
        """Read an id. Raises ValueError."""
        order: tuple[int, ...] = ()
        steps: tuple[int, ...] = ()
        expand: int | None = None
        offset = 0
        for part in text.removeprefix("free:").split(",") if text != "free:" else ():
            name, _, value = part.partition("=")
            numbers = tuple(int(n) for n in value.split("."))
            if any(n < 0 for n in numbers) or (name in ("expand", "offset") and len(numbers) > 1):
                raise ValueError(f"layout {text!r}: {part!r} is not of the form")
            if name == "order":
                order = numbers
            elif name == "steps" and all(numbers):
                steps = numbers
            elif name == "expand":
                expand = numbers[0]
            elif name == "offset":
                offset = numbers[0]
            else:
                raise ValueError(f"layout {text!r}: unknown part {part!r}")
        return cls(order, steps, expand, offset)

    def geometry(self, shape: Sequence[int], *, may_expand: bool = True) -> Geometry:
        """Strides and offset of a view of ``shape``; parts that mean nothing for it fall away."""
        rank = len(shape)
        listed = [d for d in dict.fromkeys(self.order) if d < rank]
        order = listed + [d for d in range(rank) if d not in listed]
        expanded = self.expand if may_expand else None
        if expanded is not None and (expanded >= rank or shape[expanded] < 2):
            expanded = None
        stride, step = [0] * rank, 1
        walked = [d for d in reversed(order) if d != expanded]
        for position, dim in enumerate(walked):
            step *= self.steps[position] if position < len(self.steps) else 1
            stride[dim] = step
            step *= max(shape[dim], 1)
        last = sum((n - 1) * s for n, s in zip(shape, stride, strict=True)) + 1 if all(shape) else 0
        return interned(
            Geometry(tuple(shape), tuple(stride), self.offset, self.offset + last, expanded)
        )


AnyLayout: TypeAlias = Layout | FreeLayout


def parse_layout(text: str) -> AnyLayout:
    """The layout with this id, named or free. Raises ValueError."""
    return FreeLayout.parse(text) if text.startswith("free:") else Layout.parse(text)


@dataclass(frozen=True, slots=True)
class Case:
    """How the tensors of one call are laid out: the first one, and all the rest."""

    id: str
    first: AnyLayout
    rest: AnyLayout

    def layout(self, position: int) -> AnyLayout:
        return self.first if position == 0 else self.rest


@dataclass(frozen=True, slots=True)
class CoveringSet:
    """The versioned, ordered set of cases."""

    version: int
    cases: tuple[Case, ...]
    targets: tuple[Layout, ...]  # of ``out=``
    directed: tuple[str, ...]

    @property
    def ids(self) -> frozenset[str]:
        """Every name that a report or a manifest may use."""
        cases = {case.id for case in self.cases}
        return frozenset(cases | {f"out={t.id}" for t in self.targets} | set(self.directed))


CONTIGUOUS = Layout("contiguous")


def uniform(layout: Layout) -> Case:
    return Case(layout.id, layout, layout)


_FILE = Path(__file__).with_name("layouts.toml")


@cache
def covering_set(path: Path = _FILE) -> CoveringSet:
    """The covering set of ``layouts.toml``: each combination without and with an offset, then the mixed."""
    data = tomllib.loads(path.read_text(encoding="utf-8"))
    cases: list[Case] = []
    for memory, step, expand in data["combinations"]:
        for offset in (False, True):
            cases.append(uniform(Layout(memory, step, expand, offset)))
    for first, rest in data["mixed"]:
        cases.append(Case(f"{first}/{rest}", Layout.parse(first), Layout.parse(rest)))
    targets = tuple(Layout.parse(text) for text in data["targets"])
    return CoveringSet(int(data["version"]), tuple(cases), targets, tuple(data["directed"]))


def _memory_order(memory: str, rank: int) -> list[int]:
    """Dimensions from outermost to innermost in memory."""
    order = list(range(rank))
    if memory == "transposed" and rank >= 2:
        order[-1], order[-2] = order[-2], order[-1]
    elif memory == "reversed":
        order.reverse()
    elif memory == "channels_last" and rank in (4, 5):
        order = [0, *range(2, rank), 1]
    return order


def _expanded_dim(expand: str, shape: Sequence[int]) -> int | None:
    long = [d for d, n in enumerate(shape) if n > 1]
    if expand == "none" or not long:
        return None
    return long[0] if expand == "first" else long[-1]


@cache
def _geometry(layout: Layout, shape: tuple[int, ...], may_expand: bool) -> Geometry:
    rank = len(shape)
    order = _memory_order(layout.memory, rank)
    expanded = _expanded_dim(layout.expand, shape) if may_expand else None
    stride = [0] * rank
    step = 1
    walked = [d for d in order if d != expanded]
    for position, dim in enumerate(reversed(walked)):
        innermost, outermost = position == 0, position == len(walked) - 1
        if (layout.step == "inner" and innermost) or (
            layout.step == "outer" and outermost and len(walked) > 1
        ):
            step *= 2
        stride[dim] = step
        step *= max(shape[dim], 1)
    offset = OFFSET if layout.offset else 0
    last = sum((n - 1) * s for n, s in zip(shape, stride, strict=True)) + 1 if all(shape) else 0
    return interned(Geometry(shape, tuple(stride), offset, offset + last, expanded))


def interned(geometry: Geometry) -> Geometry:
    """The one object that stands for all equal geometries: the inner loop tells them apart by ``id``."""
    return _INTERNED.setdefault(geometry, geometry)


_INTERNED: dict[Geometry, Geometry] = {}


def forget_geometries() -> None:
    """Drop the interned geometries: random shapes and layouts would accumulate forever. Only between items, since
    within one geometries are told apart by ``id``."""
    _INTERNED.clear()
    _geometry.cache_clear()
