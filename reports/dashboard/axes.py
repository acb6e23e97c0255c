"""The axis of a run: the order in which the site stores the cells of the run, operator by operator.

Plans are ordered clause by clause. When cells are stored by operator, the cells of one operator are one slice of a
run's string of status letters, so the history of an operator is one slice of each run. Runs of the same plan share one
axis, which is named by the hash of its content.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Mapping
from typing import NamedTuple

import msgspec

from devices.cell import CellKey
from reports.model import Folded

SHARDS = 32

Pattern = tuple[tuple[int, tuple[int, ...]], ...]


def shard_of(op: str) -> int:
    """Returns the number of the file that stores an operator, among SHARDS files: the FNV-1a hash of the UTF-8 bytes of
    the operator's name, modulo SHARDS."""
    value = 0x811C9DC5
    for byte in op.encode("utf-8", "surrogatepass"):
        value = (value ^ byte) * 0x01000193 & 0xFFFFFFFF
    return value % SHARDS


class Axis(msgspec.Struct, frozen=True, omit_defaults=True):
    """The cells of a run in the order of the site, and the names of their clauses, dtypes and operators. A dtype has
    ``@variant`` at its end if its cells have a variant. ``families`` has the family of each operator that has one.

    Each pattern in ``patterns`` lists clauses and their dtypes, as positions in ``clauses`` and ``dtypes``. ``ops`` are
    pairs of a name and a position in ``patterns``, sorted by name. The cells are those of the first operator, clause by
    clause and dtype by dtype, then those of the second, and so on.
    """

    clauses: list[str]
    dtypes: list[str]
    patterns: list[list[tuple[int, list[int]]]]
    ops: list[tuple[str, int]]
    families: dict[str, str] = {}

    @property
    def hash(self) -> str:
        """The name of the axis: the first 16 hexadecimal digits of the SHA-256 of its content."""
        text = json.dumps(msgspec.to_builtins(self), separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()[:16]


class Ordered(NamedTuple):
    """An axis, and the position of each of its cells in the plan."""

    axis: Axis
    positions: list[int]


def _dtype_order(name: str) -> tuple[int, int, str]:
    """Returns the key to sort dtypes by: no dtype (cases), bool, unsigned and signed integers, floats, complex; narrow
    dtypes before wide ones."""
    kinds = ("bool", "uint", "int", "bfloat", "float", "complex")
    kind = next((place for place, start in enumerate(kinds, 1) if name.startswith(start)), 9)
    bits = re.search(r"\d+", name)
    return (0 if not name else 4 if kind == 5 else kind, int(bits[0]) if bits else 0, name)


def order(folded: Folded, families: Mapping[str, str] | None = None) -> Ordered:
    """Sorts the cells of a plan by operator. The cells of one operator keep the order of the plan.

    ``folded`` has the cells in the form of the plan document, ``families`` the family of each operator.
    """
    clauses: dict[str, int] = {}
    used = {name for _, ops in folded for names in ops.values() for name in names}
    dtypes = {name: place for place, name in enumerate(sorted(used, key=_dtype_order))}
    by_op: dict[str, dict[int, list[tuple[list[str], int]]]] = {}
    position = 0
    for clause, of_clause in folded:
        number = clauses.setdefault(clause, len(clauses))
        for op, names in of_clause.items():
            by_op.setdefault(op, {}).setdefault(number, []).append((names, position))
            position += len(names)
    patterns: dict[Pattern, int] = {}
    ops: list[tuple[str, int]] = []
    positions: list[int] = []
    for op in sorted(by_op):
        pattern = []
        for number, parts in by_op[op].items():
            listed = tuple(name for part, _ in parts for name in part)
            if listed:
                pattern.append((number, tuple(dtypes[name] for name in listed)))
            for part, start in parts:
                positions += range(start, start + len(part))
        if pattern:
            ops.append((op, patterns.setdefault(tuple(pattern), len(patterns))))
    unfolded = [[(clause, list(found)) for clause, found in pattern] for pattern in patterns]
    of_op = {op: families[op] for op, _ in ops if op in families} if families else {}
    return Ordered(Axis(list(clauses), list(dtypes), unfolded, ops, of_op), positions)


def slices(axis: Axis) -> Iterator[tuple[str, int, int, int]]:
    """Yields, for each operator, its name, the number of its pattern, and the positions at which its cells begin and
    end in the order of the axis."""
    sizes = [sum(len(dtypes) for _, dtypes in pattern) for pattern in axis.patterns]
    start = 0
    for op, pattern in axis.ops:
        yield op, pattern, start, start + sizes[pattern]
        start += sizes[pattern]


def keys(axis: Axis) -> Iterator[CellKey]:
    """Yields every cell, in the order of the axis."""
    for op, pattern in axis.ops:
        yield from cells_of(axis, op, pattern)


def cells_of(axis: Axis, op: str, pattern: int) -> Iterator[CellKey]:
    """Yields the cells of an operator, in the order of the axis."""
    for clause, dtypes in axis.patterns[pattern]:
        for dtype in dtypes:
            yield CellKey.of_kind(axis.clauses[clause], op, axis.dtypes[dtype])


def count(axis: Axis, codes: str) -> dict[str, dict[str, int]]:
    """Returns the number of times that each status letter occurs in the cells of each clause.

    The letters of a clause are joined first, because counting in one string is faster than looking at each cell.
    """
    parts: list[list[str]] = [[] for _ in axis.clauses]
    for _, number, start, _ in slices(axis):
        for clause, dtypes in axis.patterns[number]:
            parts[clause].append(codes[start : start + len(dtypes)])
            start += len(dtypes)
    return {name: letters_in("".join(found)) for name, found in zip(axis.clauses, parts)}


def letters_in(codes: str) -> dict[str, int]:
    """Returns the number of times that each status letter occurs in a text."""
    return {code: codes.count(code) for code in sorted(set(codes))}
