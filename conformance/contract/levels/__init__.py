"""The levels of conformance: the cells that each level lists, frozen in files. The module does not import torch.

A result such as "level 1: 3,100 of 3,250" can be compared with other results only if 3,250 is the same for everybody.
So the cells of a level are listed in ``<number>.toml`` beside this module, and each file has a version. A listed cell
that a device does not declare, that its plan leaves out, or that was not run counts as not passed. A later version of
the suite, or a different version of torch, may add cells to a plan. These cells belong to no level until the level's
file is written again:

    conform freeze-levels VERSION
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import groupby, product
from pathlib import Path
from typing import Any, Final

import msgspec

from conformance.contract import LEVELS
from devices.cell import CellKey
from devices.errors import ConformError
from devices.files import read_toml

FOLDER: Final = Path(__file__).parent


@dataclass(frozen=True, slots=True)
class Level:
    """One level of conformance with the cells that its own file lists. The cells of the lower levels count for the
    level too, but are not in ``cells``."""

    number: int
    title: str
    version: str
    cells: frozenset[CellKey]


@cache
def levels(folder: Path = FOLDER) -> tuple[Level, ...]:
    """Returns the frozen levels, from the lowest to the highest. Raises ConformError if a file is malformed."""
    return tuple(read_level(folder / f"{number}.toml", number) for number in LEVELS)


@cache
def listed_units(folder: Path = FOLDER) -> frozenset[str]:
    """Returns the names of the ops and cases that the levels list, without the cells, which take much longer. Raises
    ConformError if a file is malformed."""
    files = (read_toml(folder / f"{number}.toml", _File, ConformError) for number in LEVELS)
    return frozenset(
        unit for file in files for block in file.cells for unit in (*block.ops, *block.cases)
    )


class _Block(msgspec.Struct, forbid_unknown_fields=True):
    """One table of a level's file. The table lists every combination of its clauses, ops and dtypes, or of its clauses
    and cases. A dtype may have ``@variant`` at its end."""

    clauses: list[str]
    ops: list[str] = []
    dtypes: list[str] = []
    cases: list[str] = []

    def __post_init__(self) -> None:
        if len({bool(self.ops), bool(self.dtypes), not self.cases}) > 1:
            raise ValueError(
                "expected a block with either clauses, ops and dtypes, or clauses and cases"
            )

    @property
    def cells(self) -> set[CellKey]:
        """The cells of the table; each use computes them."""
        each = product(self.clauses, self.ops or self.cases, self.dtypes or [""])
        return {CellKey.of_kind(*cell) for cell in each}


class _File(msgspec.Struct):
    version: str
    cells: list[_Block] = []


def read_level(path: Path, number: int) -> Level:
    """Reads the file of one level and returns the level. Raises ConformError if the file is malformed or lists a cell
    twice."""
    file = read_toml(path, _File, ConformError)
    cells: set[CellKey] = set()
    for place, block in enumerate(file.cells, 1):
        listed = block.cells
        if twice := cells & listed:
            raise ConformError(
                f"{path}: block {place} of [[cells]] lists {min(twice)}, which an earlier block lists already"
            )
        cells |= listed
    return Level(number, LEVELS[number], file.version, frozenset(cells))


def stated(cells: Sequence[CellKey], known: Iterable[Level] | None = None) -> list[dict[str, Any]]:
    """Returns the levels in the form in which the record of a run contains them.

    Each level has the number of cells that it lists, including the cells of lower levels, and the positions of these
    cells in the plan, as (first, length) pairs. A position is the number of the cell in the order in which the record
    lists the plan: clause by clause, op by op.
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
    """Returns the cells in the order in which the document of a plan lists them: clause by clause, op by op."""
    nested: dict[str, dict[str, list[CellKey]]] = {}
    for cell in cells:
        nested.setdefault(cell.clause, {}).setdefault(cell.unit, []).append(cell)
    return [cell for ops in nested.values() for cells in ops.values() for cell in cells]


def ranges(places: Iterable[int]) -> list[tuple[int, int]]:
    """Returns ascending positions as (first, length) pairs, one for each run of consecutive numbers."""
    runs = groupby(enumerate(places), key=lambda pair: pair[1] - pair[0])
    found = [[place for _, place in run] for _, run in runs]
    return [(run[0], len(run)) for run in found]


def blocks(cells: Iterable[CellKey]) -> list[dict[str, list[str]]]:
    """Returns the tables with which a level's file lists these cells. Ops (or cases) with the same clauses and dtypes
    share a table, so that the file needs few tables."""
    dtypes: dict[tuple[str, str], list[str]] = defaultdict(list)
    for cell in sorted(cells):
        dtypes[cell.unit, cell.clause].append(cell.kind)
    clauses: dict[tuple[str, tuple[str, ...]], list[str]] = defaultdict(list)
    for (op, clause), listed in dtypes.items():
        clauses[op, tuple(listed)].append(clause)
    ops: dict[tuple[tuple[str, ...], tuple[str, ...]], list[str]] = defaultdict(list)
    for (op, of), names in clauses.items():
        ops[tuple(names), of].append(op)
    return [
        {"clauses": [*names], "ops": alike, "dtypes": [*of]}
        if any(of)
        else {"clauses": [*names], "cases": alike}
        for (names, of), alike in sorted(ops.items())
    ]
