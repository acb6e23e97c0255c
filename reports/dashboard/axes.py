"""The cells of a plan in the order in which the site keeps them: operator by operator.

Plans go clause by clause. Kept by operator, what belongs to one operator is one slice of a run's
letters, so that its history over any number of runs is that many slices. Runs of one plan share
their axis, which is known by the hash of its content.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator
from typing import NamedTuple

import msgspec

from devices.cell import CellKey
from reports.model import Folded

SHARDS = 32

Pattern = tuple[tuple[int, tuple[int, ...]], ...]


def shard_of(op: str) -> int:
    """Which of the SHARDS files of a run holds an operator: FNV-1a of its UTF-8 bytes."""
    value = 0x811C9DC5
    for byte in op.encode("utf-8", "surrogatepass"):
        value = (value ^ byte) * 0x01000193 & 0xFFFFFFFF
    return value % SHARDS


class Axis(msgspec.Struct, frozen=True):
    """Names, and which cells there are.

    ``patterns`` say which dtypes each clause has for an operator, as positions in ``clauses`` and
    ``dtypes``; ``ops`` are (name, position in ``patterns``), sorted by name. The cells are those of
    the first operator, clause by clause and dtype by dtype, then those of the second, and so on.
    """

    clauses: list[str]
    dtypes: list[str]
    patterns: list[list[tuple[int, list[int]]]]
    ops: list[tuple[str, int]]

    @property
    def hash(self) -> str:
        """The name of the axis: SHA-256 of its content, the first 16 digits."""
        text = json.dumps(msgspec.to_builtins(self), separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()[:16]


class Ordered(NamedTuple):
    """An axis, and where each of its cells stands in the plan."""

    axis: Axis
    positions: list[int]


def _dtype_order(name: str) -> tuple[int, int, str]:
    """Case cells, bool, unsigned and signed integers, floats, complex; the narrow before the wide."""
    kinds = ("bool", "uint", "int", "bfloat", "float", "complex")
    kind = next((place for place, start in enumerate(kinds, 1) if name.startswith(start)), 9)
    bits = re.search(r"\d+", name)
    return (0 if not name else 4 if kind == 5 else kind, int(bits[0]) if bits else 0, name)


def order(folded: Folded) -> Ordered:
    """Sort the cells of a plan by operator; within one they keep the plan's order.

    ``folded`` are the cells as the plan's document has them.
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
    return Ordered(Axis(list(clauses), list(dtypes), unfolded, ops), positions)


def slices(axis: Axis) -> Iterator[tuple[str, int, int, int]]:
    """Each operator with its pattern and where its cells begin and end."""
    sizes = [sum(len(dtypes) for _, dtypes in pattern) for pattern in axis.patterns]
    start = 0
    for op, pattern in axis.ops:
        yield op, pattern, start, start + sizes[pattern]
        start += sizes[pattern]


def keys(axis: Axis) -> Iterator[CellKey]:
    """Every cell, in order."""
    for op, pattern in axis.ops:
        yield from cells_of(axis, op, pattern)


def cells_of(axis: Axis, op: str, pattern: int) -> Iterator[CellKey]:
    """The cells of an operator, in order."""
    for clause, dtypes in axis.patterns[pattern]:
        for dtype in dtypes:
            yield CellKey(axis.clauses[clause], op, axis.dtypes[dtype])


def count(axis: Axis, codes: str) -> dict[str, dict[str, int]]:
    """How often each letter stands in the cells of each clause.

    Counts text by text: the cells of a clause are put together first, which is faster than looking
    at them one by one.
    """
    parts: list[list[str]] = [[] for _ in axis.clauses]
    for _, number, start, _ in slices(axis):
        for clause, dtypes in axis.patterns[number]:
            parts[clause].append(codes[start : start + len(dtypes)])
            start += len(dtypes)
    return {name: letters_in("".join(found)) for name, found in zip(axis.clauses, parts)}


def letters_in(codes: str) -> dict[str, int]:
    """How often each letter stands in a text."""
    return {code: codes.count(code) for code in sorted(set(codes))}
