"""Functions that read ``bounds.toml``, the file with the largest accepted error of each op's results."""

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
    """The error bounds of one group of ops. The fields are explained in ``bounds.toml``."""

    ops: tuple[_Text, ...]
    reason: _Text
    source: _Text
    ulps: _Numbers = {}
    alone: _Numbers = {}
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
    """Return all ``[[bound]]`` entries of ``bounds.toml``."""
    return _file().bound


def elementwise_ops() -> tuple[str, ...]:
    """Return the names of ops that are elementwise although torch's op database does not mark them as unary or
    binary."""
    return tuple(op for each in entries() if each.elementwise for op in each.ops)


@cache
def bounds_of(op: str) -> tuple[Bound, ...]:
    """Return the entries that match an op, in the order of the file. Later entries override earlier ones."""
    return tuple(each for each in entries() if any(names(pattern, op) for pattern in each.ops))


def limit_of(op: str, dtype: str, alone: bool = False) -> dict[str, Any]:
    """Return the bounds of an elementwise op in a dtype, as a dictionary of plain values. The key ``ulps`` is always
    present; ``absolute``, ``of_operand``, ``within`` and ``special`` are present if they are set in ``bounds.toml``.
    ``alone`` says that the call has no arguments beside the operands."""
    found: dict[str, Any] = {"ulps": _file().ulps[dtype]}
    for each in bounds_of(op):
        for name in ("ulps", "absolute", "of_operand"):
            found |= {name: value} if (value := getattr(each, name).get(dtype)) is not None else {}
        for name in ("within", "special"):
            found |= {name: value} if (value := getattr(each, name)) else {}
    tighter = [each.alone[dtype] for each in bounds_of(op) if dtype in each.alone]
    return {**found, "ulps": tighter[-1]} if alone and tighter else found


def on_samples(op: str, dtype: str) -> float:
    """Return the largest accepted error of an op's result on a sample, in ulps of the result's largest element."""
    given = [each.samples[dtype] for each in bounds_of(op) if dtype in each.samples]
    return given[-1] if given else _file().samples[dtype]


def is_exact(op: str) -> bool:
    """Return True if the op rounds nothing, so its result must have the same bits as the CPU's in the same
    dtype."""
    return any(each.exact for each in bounds_of(op))


def operands_of(op: str, kind: str) -> int:
    """Return the number of operands of an elementwise op, 1 or 2. ``kind`` is the op's kind in torch's database, such
    as "unary". Returns 0 if the op is not elementwise or if ``bounds.toml`` skips it."""
    if any(each.skip for each in bounds_of(op)):
        return 0
    if any(each.elementwise for each in bounds_of(op)):
        return 1
    return {"unary": 1, "binary": 2}.get(kind, 0)
