"""Levels of conformance: which cells each one takes, frozen in files. Needs no torch.

A verdict such as "level 1: 3,100 of 3,250" means something only if 3,250 is the same for everybody. So
a level's cells are listed in ``<number>.toml`` beside this module, under a version: a listed cell that a
device does not declare, that its plan leaves out, or that was not run counts against it. What a later
version of the suite, or another torch, plans besides changes no level until its file is written anew:

    conform freeze-levels VERSION
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any, Final

from conformance.contract import LEVELS
from devices.cell import CellKey
from devices.errors import ConformError
from devices.files import tomllib

FOLDER: Final = Path(__file__).parent


class LevelError(ConformError):
    """A level's file is malformed. The text names the file and the place."""


@dataclass(frozen=True, slots=True)
class Level:
    """A level's own cells; those of the levels below it are theirs, and count for it too."""

    number: int
    title: str
    version: str
    cells: frozenset[CellKey]


@cache
def levels(folder: Path = FOLDER) -> tuple[Level, ...]:
    """The frozen levels, the lowest first. Raises LevelError."""
    return tuple(read(folder / f"{number}.toml", number) for number in LEVELS)


def read(path: Path, number: int) -> Level:
    """One level's file: a version, and blocks of clauses × (ops × dtypes, or cases)."""
    try:
        data = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise LevelError(f"{path}: the list of a level's cells cannot be read: {error}") from None
    version, blocks = data.get("version"), data.get("cells", [])
    if not isinstance(version, str) or not isinstance(blocks, list):
        raise LevelError(f'{path}: expected version = "…" and [[cells]], got {sorted(data)}')
    cells: set[CellKey] = set()
    for place, block in enumerate(blocks, 1):
        listed = _cells(block, f"{path}: block {place} of [[cells]]")
        if twice := cells & listed:
            raise LevelError(f"{path}: block {place} of [[cells]] lists {min(twice)} again")
        cells |= listed
    return Level(number, LEVELS[number], version, frozenset(cells))


def _cells(block: Any, where: str) -> set[CellKey]:
    names = set(block) if isinstance(block, dict) else set()
    if names not in ({"clauses", "ops", "dtypes"}, {"clauses", "cases"}):
        raise LevelError(
            f"{where}: expected clauses, ops and dtypes, or clauses and cases, got {sorted(names)}"
        )
    for name, listed in block.items():
        if not isinstance(listed, list) or not all(isinstance(each, str) for each in listed):
            raise LevelError(f"{where}: {name} must be a list of strings, got {listed!r}")
    return {
        CellKey(*cell)
        for cell in product(
            block["clauses"], block.get("ops") or block["cases"], block.get("dtypes", [""])
        )
    }


def stated(cells: Sequence[CellKey], known: Iterable[Level] | None = None) -> list[dict[str, Any]]:
    """What a run's record says about levels: how many cells each lists, including those of lower levels, and
    which of the plan's cells they are, as (first, length) in the plan's order.

    The order is that in which the document is read back: clause by clause, op by op.
    """
    found: list[dict[str, Any]] = []
    listed: set[CellKey] = set()
    places = {cell: place for place, cell in enumerate(as_read(cells))}
    for level in levels() if known is None else known:
        listed |= level.cells
        planned = sorted(places[cell] for cell in listed if cell in places)
        found.append(
            {
                "level": level.number,
                "title": level.title,
                "version": level.version,
                "listed": len(listed),
                "planned": ranges(planned),
            }
        )
    return found


def as_read(cells: Iterable[CellKey]) -> list[CellKey]:
    """Cells in the order in which a plan's document gives them back."""
    nested: dict[str, dict[str, list[CellKey]]] = {}
    for cell in cells:
        nested.setdefault(cell.clause, {}).setdefault(cell.op, []).append(cell)
    return [cell for ops in nested.values() for cells in ops.values() for cell in cells]


def ranges(places: Iterable[int]) -> list[tuple[int, int]]:
    """Ascending places as (first, length)."""
    found: list[tuple[int, int]] = []
    for place in places:
        if found and sum(found[-1]) == place:
            found[-1] = (found[-1][0], found[-1][1] + 1)
        else:
            found.append((place, 1))
    return found


def blocks(cells: Iterable[CellKey]) -> list[dict[str, list[str]]]:
    """Cells as few blocks: ops (or cases) that have the same clauses and dtypes stand together."""
    of_op: dict[tuple[str, bool], dict[str, list[str]]] = {}
    for clause, op, dtype in sorted(cells):
        of_op.setdefault((op, bool(dtype)), {}).setdefault(clause, []).append(dtype)
    alike: dict[tuple[tuple[tuple[str, ...], tuple[str, ...]], bool], list[str]] = {}
    for (op, with_dtypes), clauses in of_op.items():
        for group in _same_dtypes(clauses):
            alike.setdefault((group, with_dtypes), []).append(op)
    return [
        {"clauses": list(clauses), "ops": ops, "dtypes": list(dtypes)}
        if with_dtypes
        else {"clauses": list(clauses), "cases": ops}
        for ((clauses, dtypes), with_dtypes), ops in sorted(alike.items())
    ]


def _same_dtypes(
    clauses: Mapping[str, list[str]],
) -> list[tuple[tuple[str, ...], tuple[str, ...]]]:
    """An op's clauses, those with the same dtypes together."""
    found: dict[tuple[str, ...], list[str]] = {}
    for clause, dtypes in clauses.items():
        found.setdefault(tuple(dtypes), []).append(clause)
    return [(tuple(names), dtypes) for dtypes, names in found.items()]
