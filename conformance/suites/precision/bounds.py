"""The bounds of ``bounds.toml``: how far an op's results may be from its reference."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Annotated, Any

import msgspec

from devices.errors import ConformError
from devices.files import read_toml
from opinfo.exceptions import names

_Text = Annotated[str, msgspec.Meta(pattern=r"\S")]
_Numbers = dict[str, float]  # by dtype


class Bound(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What some ops are held to; ``bounds.toml`` says what the fields mean."""

    ops: tuple[_Text, ...]
    reason: _Text
    source: _Text
    ulps: _Numbers = {}
    absolute: _Numbers = {}
    of_operand: _Numbers = {}
    within: tuple[float, float] | None = None
    samples: _Numbers = {}
    special: bool = False
    exact: bool = False
    elementwise: bool = False
    skip: str = ""


class _File(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    ulps: _Numbers
    samples: _Numbers
    bound: tuple[Bound, ...]


@cache
def _file() -> _File:
    return read_toml(Path(__file__).with_name("bounds.toml"), _File, ConformError)


def entries() -> tuple[Bound, ...]:
    """Every entry of the file."""
    return _file().bound


def elementwise_ops() -> tuple[str, ...]:
    """The ops that are elementwise although the database does not say so."""
    return tuple(op for each in entries() if each.elementwise for op in each.ops)


@cache
def bounds_of(op: str) -> tuple[Bound, ...]:
    """The entries that name an op; later ones are narrower."""
    return tuple(each for each in entries() if any(names(pattern, op) for pattern in each.ops))


def limit_of(op: str, dtype: str) -> dict[str, Any]:
    """What an elementwise op is held to in a dtype, as literals: ``ulps``; where they are set ``absolute``,
    ``of_operand``, ``within``, ``special``."""
    found: dict[str, Any] = {"ulps": _file().ulps[dtype]}
    for each in bounds_of(op):
        for name in ("ulps", "absolute", "of_operand"):
            found |= {name: value} if (value := getattr(each, name).get(dtype)) is not None else {}
        for name in ("within", "special"):
            found |= {name: value} if (value := getattr(each, name)) else {}
    return found


def on_samples(op: str, dtype: str) -> float:
    """How many ulps of its largest element a result on a sample may be off by."""
    given = [each.samples[dtype] for each in bounds_of(op) if dtype in each.samples]
    return given[-1] if given else _file().samples[dtype]


def is_exact(op: str) -> bool:
    """Whether an op has the same bits as the reference in its own dtype."""
    return any(each.exact for each in bounds_of(op))


def operands_of(op: str, kind: str) -> int:
    """How many operands an elementwise function has, of the ``kind`` that the database gives an op; 0 if it is none, or
    if the values of a dtype say nothing about it."""
    if any(each.skip for each in bounds_of(op)):
        return 0
    if any(each.elementwise for each in bounds_of(op)):
        return 1
    return {"unary": 1, "binary": 2}.get(kind, 0)
