"""The largest known errors of a device, stored in ``precision.toml`` in its folder. The module does not import torch.

    [float32]
    exp = 0.5453

    [[raised]]  # a maximum that was raised, and why

The maxima are in units in the last place. A maximum may be lowered at any time, but it is raised only if a reason is
given.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Annotated

import msgspec

from devices.errors import ConformError
from devices.files import read_toml, write_whole

FILE = "precision.toml"
_HEAD = """\
# The largest errors of elementwise functions, in units in the last place, seen in passing cells of precision.ulp.
# Written by `conform precision update RUN`, which raises a number only if a reason is given.
"""

_Maxima = dict[str, float]


class Raised(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A maximum error that the device's file sets higher than the default, with the reason."""

    op: str
    dtype: str
    before: float
    after: float
    reason: Annotated[str, msgspec.Meta(pattern=r"\S")]


class Record(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The content of ``precision.toml``: the maximum errors by dtype and op, and the maxima that were raised."""

    float32: _Maxima = {}
    bfloat16: _Maxima = {}
    float16: _Maxima = {}
    raised: tuple[Raised, ...] = ()

    def of(self, op: str, dtype: str) -> float | None:
        """Returns the recorded maximum error for an op and dtype, in units in the last place; None if no maximum is
        recorded."""
        found: Mapping[str, float] = getattr(self, dtype, {})
        return found.get(op)

    @property
    def ops(self) -> frozenset[str]:
        """The ops for which a maximum error is recorded for at least one dtype."""
        return frozenset({*self.float32, *self.bfloat16, *self.float16})


@cache
def record_of(folder: Path | None) -> Record:
    """Returns the maximum errors recorded in a device's folder; an empty record if the folder has no such file. Raises
    ConformError."""
    path = folder / FILE if folder is not None else None
    if path is None or not path.is_file():
        return Record()
    return read_toml(path, Record, ConformError)


def updated(
    record: Record, measured: Mapping[tuple[str, str], float], reason: str | None
) -> tuple[Record, list[str]]:
    """Returns the record updated with the ``measured`` errors (by op and dtype), and a text for each recorded maximum
    that is smaller than the measured error but was not raised. A maximum is raised only if a ``reason`` is given.
    Errors are rounded up to four decimal places."""
    maxima = {name: dict(getattr(record, name)) for name in ("float32", "bfloat16", "float16")}
    raised, refused = list(record.raised), []
    for (op, dtype), error in sorted(measured.items()):
        after = math.ceil(error * 1e4) / 1e4
        before = maxima[dtype].get(op)
        if before is not None and after > before:
            if reason is None:
                refused.append(
                    f"{op}[{dtype}]: the recorded maximum is {before:g} units in the last place, the run measured {after:g}"
                )
                continue
            raised.append(Raised(op, dtype, before, after, reason))
        maxima[dtype][op] = after
    return Record(**maxima, raised=tuple(raised)), refused


def write(folder: Path, record: Record) -> Path:
    """Writes the maximum errors into the file of a device's folder and returns its path. Raises OSError."""
    path = folder / FILE
    write_whole(path, _HEAD + text_of(record))
    record_of.cache_clear()
    return path


def text_of(record: Record) -> str:
    """Returns the maximum errors of a record as TOML."""
    lines = []
    for dtype in ("float32", "bfloat16", "float16"):
        maxima: _Maxima = getattr(record, dtype)
        if maxima:
            lines += ["", f"[{dtype}]"]
            lines += [f"{_quoted(op)} = {float(maxima[op])!r}" for op in sorted(maxima)]
    for each in record.raised:
        lines += ["", "[[raised]]"]
        lines += [f"{name} = {_value(getattr(each, name))}" for name in Raised.__struct_fields__]
    return "\n".join(lines) + "\n" if lines else ""


def _quoted(op: str) -> str:
    return op if op.replace("_", "").isalnum() and op.isascii() else _value(op)


def _value(value: object) -> str:
    return msgspec.json.encode(value).decode()
