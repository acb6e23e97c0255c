"""Dividing a plan's cells among shards: by the time that each item took in an earlier run. Pure.

All shards of a run divide alike: they are given the same plan and the same times. The longest items go first,
each to the shard that has least to do so far (longest processing time first: at worst a third above the best).
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from statistics import median
from typing import Any, Final

from conformance.items import ItemId, item_of
from devices._toml import tomllib
from devices.cell import CellKey
from devices.errors import ConformError

_FILE: Final = Path(__file__).with_name("identity.toml")
#: Seconds of an item beside its cells: pytest's.
_ITEM_SECONDS: Final = 0.002


class BadShard(ConformError):
    """``--shard`` does not fit."""


@dataclass(frozen=True, slots=True)
class Shard:
    """The ``number``-th of ``count`` shards, from 1."""

    number: int
    count: int

    @classmethod
    def parse(cls, text: str) -> Shard:
        """Read ``2/8``. Raises BadShard."""
        match = re.fullmatch(r"(\d{1,6})/(\d{1,6})", text, re.ASCII)
        if match is None or not 1 <= int(match[1]) <= int(match[2]):
            raise BadShard(f"--shard {text!r}: expected a shard and their number, such as 2/8")
        return cls(int(match[1]), int(match[2]))

    def __str__(self) -> str:
        return f"{self.number}/{self.count}"


@cache
def _identity() -> Mapping[str, Any]:
    table: dict[str, Any] = tomllib.loads(_FILE.read_text(encoding="utf-8"))
    return table


def is_identity(cell: CellKey) -> bool:
    """Whether every shard runs this cell."""
    table = _identity()
    return cell.clause in table["clauses"] or item_of(cell).name in table["items"]


def seconds_by_item(
    cells: Sequence[CellKey], seconds: Mapping[CellKey, float]
) -> dict[ItemId, float]:
    """How long each item takes. A cell that the earlier run did not have takes the median of its cells; with
    no earlier run all cells take the same."""
    usual = median(seconds.values()) if seconds else 1.0
    found: dict[ItemId, float] = {}
    for cell in cells:
        item = item_of(cell)
        found[item] = found.get(item, _ITEM_SECONDS) + max(seconds.get(cell, usual), 0.0)
    return found


def cells_of(
    shard: Shard, cells: Sequence[CellKey], seconds: Mapping[CellKey, float]
) -> list[CellKey]:
    """The cells that a shard takes, in the plan's order. Raises BadShard where there are fewer items than
    shards."""
    mine = {name for name, number in divided(shard.count, cells, seconds).items()
            if number == shard.number}  # fmt: skip
    return [cell for cell in cells if is_identity(cell) or item_of(cell) in mine]


def divided(
    count: int, cells: Sequence[CellKey], seconds: Mapping[CellKey, float]
) -> dict[ItemId, int]:
    """The shard (from 1) of each item that is not every shard's."""
    times = seconds_by_item([cell for cell in cells if not is_identity(cell)], seconds)
    if count > max(len(times), 1):
        raise BadShard(
            f"--shard …/{count}: there are {len(times):,} items to divide; expected at most as many shards"
        )
    load = [0.0] * count
    found: dict[ItemId, int] = {}
    for item in sorted(times, key=lambda item: (-times[item], item)):
        lightest = min(range(count), key=load.__getitem__)
        load[lightest] += times[item]
        found[item] = lightest + 1
    return found
