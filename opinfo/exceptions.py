"""What is known about single ops: families and exclusions, read from ``exceptions.toml``.

There is no ``if op.name ==`` anywhere else. An entry that names an op which torch's database does not have,
or that excludes a cell which would not have been planned, fails a test.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from devices.errors import ConformError
from devices.files import tomllib


class ExceptionsError(ConformError):
    """``exceptions.toml`` is malformed."""


@dataclass(frozen=True, slots=True)
class Family:
    """A named set of ops that share a documented property."""

    name: str
    ops: tuple[str, ...]
    reason: str


@dataclass(frozen=True, slots=True)
class Exclusion:
    """Cells that are not planned, and why. ``references`` narrows it to devices with that stride reference."""

    clauses: tuple[str, ...]
    ops: tuple[str, ...]
    dtypes: tuple[str, ...]
    reason: str
    fake_only: bool = False

    def covers(self, clause: str, op: str, dtype: str, *, fake_only: bool) -> bool:
        """Whether this entry takes the cell out. ``fake_only``: FakeTensor is the only stride reference."""
        if self.fake_only and not fake_only:
            return False
        return (
            any(names(pattern, clause) for pattern in self.clauses)
            and any(names(pattern, op) for pattern in self.ops)
            and (not self.dtypes or dtype in self.dtypes)
        )


@dataclass(frozen=True, slots=True)
class Exceptions:
    """The whole file."""

    families: tuple[Family, ...]
    exclusions: tuple[Exclusion, ...]

    def families_of(self, op: str) -> frozenset[str]:
        return frozenset(f.name for f in self.families if any(names(p, op) for p in f.ops))

    def ops_of(self, family: str) -> tuple[str, ...]:
        for found in self.families:
            if found.name == family:
                return found.ops
        raise ExceptionsError(f"opinfo/exceptions.toml has no family {family!r}")

    def excluded(self, clause: str, op: str, dtype: str, *, fake_only: bool) -> Exclusion | None:
        for exclusion in self.exclusions:
            if exclusion.covers(clause, op, dtype, fake_only=fake_only):
                return exclusion
        return None

    def patterns(self) -> Iterable[str]:
        for family in self.families:
            yield from family.ops
        for exclusion in self.exclusions:
            yield from exclusion.ops


def names(pattern: str, op: str) -> bool:
    """Exact name, or a trailing ``*``."""
    return op.startswith(pattern[:-1]) if pattern.endswith("*") else op == pattern


_FILE = Path(__file__).with_name("exceptions.toml")


@cache
def exceptions(path: Path = _FILE) -> Exceptions:
    """Read the file. Raises ExceptionsError naming the entry that is wrong."""
    data = tomllib.loads(path.read_text(encoding="utf-8"))
    families = tuple(
        Family(_text(e, "name"), _texts(e, "ops"), _text(e, "reason"))
        for e in _entries(data, "family", {"name", "ops", "reason"})
    )
    known = {"clauses", "ops", "dtypes", "reason", "fake_only"}
    exclusions = tuple(
        Exclusion(
            _texts(e, "clauses"),
            _texts(e, "ops"),
            _texts(e, "dtypes") if "dtypes" in e else (),
            _text(e, "reason"),
            bool(e.get("fake_only", False)),
        )
        for e in _entries(data, "exclude", known)
    )
    return Exceptions(families, exclusions)


def _entries(data: dict[str, Any], kind: str, known: Collection[str]) -> list[dict[str, Any]]:
    entries: list[dict[str, Any]] = data.get(kind, [])
    for number, entry in enumerate(entries, 1):
        if unknown := set(entry) - set(known):
            raise ExceptionsError(
                f"opinfo/exceptions.toml: [[{kind}]] number {number}: unknown key {sorted(unknown)}"
            )
    return entries


def _text(entry: dict[str, Any], key: str) -> str:
    value = entry.get(key)
    if not isinstance(value, str) or not value.strip():
        raise ExceptionsError(
            f"opinfo/exceptions.toml: {entry}: {key} must be a string, got {value!r}"
        )
    return value


def _texts(entry: dict[str, Any], key: str) -> tuple[str, ...]:
    value = entry.get(key)
    if not isinstance(value, list) or not value or not all(isinstance(v, str) for v in value):
        raise ExceptionsError(
            f"opinfo/exceptions.toml: {entry}: {key} must be a list of strings, got {value!r}"
        )
    return tuple(value)


#: Namespaces that are one library's worth of kernels.
_NAMESPACES = ("fft", "linalg", "special", "masked", "signal")

#: The first word that an op's last name contains names its family.
_WORDS = (
    ("conv", "conv"),
    ("pool", "pool"),
    ("_norm", "norm"),
    ("norm_", "norm"),
    ("loss", "loss"),
    ("attention", "attention"),
    ("embedding", "embedding"),
    ("interpolate", "resampling"),
    ("upsample", "resampling"),
    ("grid_sample", "resampling"),
    ("pad", "pad"),
    ("softmax", "softmax"),
    ("scatter", "indexing"),
    ("gather", "indexing"),
    ("index", "indexing"),
    ("take", "indexing"),
    ("put", "indexing"),
    ("masked", "indexing"),
    ("addr", "matmul"),
    ("matmul", "matmul"),
    ("mm", "matmul"),
    ("mv", "matmul"),
    ("linear", "matmul"),
    ("as_strided", "as_strided"),
    ("new_", "factory"),
    ("_like", "factory"),
    ("split", "split"),
    ("stack", "cat"),
    ("cat", "cat"),
    ("sort", "sort"),
    ("topk", "sort"),
    ("median", "sort"),
    ("cum", "scan"),
    ("tri", "triangle"),
)


def op_family(op: str, kind: str = "") -> str:
    """The family of the op with this id. ``kind`` is ``unary``, ``binary``, ``reduction`` or empty."""
    if kind in ("unary", "binary"):
        return f"elementwise {kind}"
    if kind:
        return kind
    space, _, rest = op.partition(".")
    if space in _NAMESPACES and rest:
        return space
    name = op.removeprefix("nn.functional.").partition(".")[0]
    for word, family in _WORDS:
        if word in name:
            return family
    return re.sub(r"_copy$|\d*d?$", "", name) or name
