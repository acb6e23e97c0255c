"""What a worker runs at once: one op and dtype with its clauses of a suite, or one case of one clause."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from conformance.suites import suite_of
from devices.cell import CellKey


class ItemId(NamedTuple):
    """The identity of an item: its suite, and the name that pytest shows in brackets."""

    suite: str
    name: str


class Item(NamedTuple):
    """An item. All its cells have the same ``op`` (for a case, its name) and ``dtype`` (then empty)."""

    op: str
    dtype: str
    clauses: list[str]

    @property
    def cells(self) -> list[CellKey]:
        return [CellKey(clause, self.op, self.dtype) for clause in self.clauses]

    @property
    def id(self) -> ItemId:
        return item_of(self.cells[0])


def is_case(cell: CellKey) -> bool:
    """Whether a cell is clause × case: those of ops have a dtype."""
    return not cell.dtype


def item_of(cell: CellKey) -> ItemId:
    """The item that a cell belongs to."""
    clause, op, dtype = cell
    name = f"{clause}-{op}" if is_case(cell) else f"{op}-{dtype}"
    return ItemId(suite_of(clause), name)


def items_of(cells: Iterable[CellKey]) -> list[Item]:
    """The items of these cells, in the cells' order."""
    grouped: dict[ItemId, Item] = {}
    for cell in cells:
        found = grouped.setdefault(item_of(cell), Item(cell.op, cell.dtype, []))
        found.clauses.append(cell.clause)
    return list(grouped.values())


def named(items: Iterable[Item], last: Iterable[Item]) -> dict[ItemId, Item]:
    """Items by id: those in order, then those that run last and alone. Of an op and dtype there may be both:
    the latter are told apart by their clause."""
    found = {item.id: item for item in items}
    for item in last:
        suite, name = item.id
        found[ItemId(suite, name if is_case(item.cells[0]) else f"{name}@{item.clauses[0]}")] = item
    return found
