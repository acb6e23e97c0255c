"""Properties of single ops: families of ops, and cells that are not planned. Both are read from ``exceptions.toml``.

No other place in the code compares the name of an op. A test fails if an entry names an op that torch's database does
not have, or excludes a cell that would not have been planned anyway.
"""

from __future__ import annotations

import re
from functools import cache, cached_property
from pathlib import Path
from typing import Annotated

import msgspec

from devices.errors import ConformError
from devices.files import read_toml


class ExceptionsError(ConformError):
    """The error for a malformed ``exceptions.toml``."""


_Text = Annotated[str, msgspec.Meta(pattern=r"\S")]
_Texts = Annotated[tuple[str, ...], msgspec.Meta(min_length=1)]


class Family(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A named set of ops that share a documented property."""

    name: _Text
    ops: _Texts
    reason: _Text


class Exclusion(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Cells that are not planned, and the reason."""

    clauses: _Texts
    ops: _Texts
    reason: _Text
    dtypes: tuple[str, ...] = ()  # empty: every dtype
    fake_only: bool = False  # applies only if FakeTensor is the device's only stride reference

    def covers(self, clause: str, op: str, dtype: str, *, fake_only: bool) -> bool:
        """Returns True if the entry excludes a cell. ``fake_only`` is True if FakeTensor is the only stride reference
        of the device."""
        return (
            fake_only >= self.fake_only
            and any(names(pattern, clause) for pattern in self.clauses)
            and any(names(pattern, op) for pattern in self.ops)
            and (not self.dtypes or dtype in self.dtypes)
        )


class Exceptions(
    msgspec.Struct,
    frozen=True,
    forbid_unknown_fields=True,
    rename={"families": "family", "exclusions": "exclude"},
    dict=True,  # for the cached properties
):
    """The content of ``exceptions.toml``."""

    families: tuple[Family, ...] = ()
    exclusions: tuple[Exclusion, ...] = ()

    def families_of(self, *ops: str) -> frozenset[str]:
        """Returns the families of an op. ``ops`` are all names under which the file may list the op."""
        exact, prefixes = self._index
        found = {name for op in ops for name in exact.get(op, ())}
        found |= {name for prefix, name in prefixes if any(op.startswith(prefix) for op in ops)}
        return frozenset(found)

    @cached_property
    def _index(self) -> tuple[dict[str, set[str]], list[tuple[str, str]]]:
        """The families of ops: by the exact name of an op, and as pairs of a prefix and a family."""
        exact: dict[str, set[str]] = {}
        prefixes: list[tuple[str, str]] = []
        for family in self.families:
            for pattern in family.ops:
                if pattern.endswith("*"):
                    prefixes.append((pattern[:-1], family.name))
                else:
                    exact.setdefault(pattern, set()).add(family.name)
        return exact, prefixes

    def about(self, op: str) -> Exceptions:
        """Returns a copy that contains only the exclusions that name an op."""
        exact, prefixes = self._exclusions_by_op
        places = {*exact.get(op, ()), *(n for prefix, n in prefixes if op.startswith(prefix))}
        return Exceptions(exclusions=tuple(self.exclusions[place] for place in sorted(places)))

    @cached_property
    def _exclusions_by_op(self) -> tuple[dict[str, set[int]], list[tuple[str, int]]]:
        """The positions of the exclusions in the file: by the exact name of an op, and as pairs of a prefix and a
        position. They are looked up for thousands of ops when a plan is made."""
        exact: dict[str, set[int]] = {}
        prefixes: list[tuple[str, int]] = []
        for place, exclusion in enumerate(self.exclusions):
            for pattern in exclusion.ops:
                if pattern.endswith("*"):
                    prefixes.append((pattern[:-1], place))
                else:
                    exact.setdefault(pattern, set()).add(place)
        return exact, prefixes

    def excluded(self, clause: str, op: str, dtype: str, *, fake_only: bool) -> Exclusion | None:
        covering = (e for e in self.exclusions if e.covers(clause, op, dtype, fake_only=fake_only))
        return next(covering, None)


def names(pattern: str, op: str) -> bool:
    """Returns True if a pattern matches an op. A pattern is an exact name, or a prefix followed by ``*``."""
    return op.startswith(pattern[:-1]) if pattern.endswith("*") else op == pattern


_FILE = Path(__file__).with_name("exceptions.toml")


@cache
def exceptions(path: Path = _FILE) -> Exceptions:
    """Returns the content of ``exceptions.toml``. Raises ExceptionsError, which names the invalid entry."""
    return read_toml(path, Exceptions, ExceptionsError)


class _OpFamilies(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The content of ``op_families.toml``. The comments in that file explain the fields."""

    namespaces: frozenset[str]
    words: dict[str, str]


_OP_FAMILIES = read_toml(Path(__file__).with_name("op_families.toml"), _OpFamilies, ExceptionsError)


def op_family(op: str, kind: str = "") -> str:
    """Returns the family of an op, such as ``elementwise unary``, ``linalg`` or ``conv``.

    ``kind`` is ``unary``, ``binary``, ``reduction`` or empty.
    """
    if kind in ("unary", "binary"):
        return f"elementwise {kind}"
    if kind:
        return kind
    space, _, rest = op.partition(".")
    if space in _OP_FAMILIES.namespaces and rest:
        return space
    name = op.removeprefix("nn.functional.").removeprefix("aten.").partition(".")[0]
    found = (family for word, family in _OP_FAMILIES.words.items() if word in name)
    return next(found, re.sub(r"_copy$|_?\d+d?$", "", name) or name)
