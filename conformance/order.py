"""The order in which items run when time is short: the most informative first. Pure.

1. Items with a cell that was a regression, an improvement or missing in the run that the results folder
   held before: what was being worked on.
2. Items with a cell that the manifest expects to fail: where the device is known to be weak, and where
   anything that changed shows.
3. The others, one op of every family in turn, and of these the op with the most clauses first: what is
   left out is then spread over all families.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from conformance.items import Item
from devices.cell import CellKey


def informative_first(
    items: Sequence[Item],
    failed: Collection[CellKey],
    expected: Collection[CellKey],
    families: Mapping[str, str],
) -> list[Item]:
    """The items in that order; within a rank they keep the plan's."""
    by_rank: list[list[Item]] = [[], [], []]
    for item in items:
        cells = item.cells
        rank = (
            0 if any(c in failed for c in cells) else 1 if any(c in expected for c in cells) else 2
        )
        by_rank[rank].append(item)
    return [*by_rank[0], *by_rank[1], *_in_turns(by_rank[2], families)]


def _in_turns(items: Sequence[Item], families: Mapping[str, str]) -> list[Item]:
    """One item of every family after another."""
    grouped: dict[str, list[Item]] = {}
    for item in items:
        grouped.setdefault(families.get(item[0], item[0]), []).append(item)
    turns: list[tuple[int, Item]] = []
    for members in grouped.values():
        members.sort(key=lambda item: -len(item[2]))
        turns += enumerate(members)
    turns.sort(key=lambda pair: pair[0])
    return [item for _, item in turns]
