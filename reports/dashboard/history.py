"""What every cell was in every run, by operator: read by the page of a cell."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from reports.dashboard import documents
from reports.dashboard.axes import SHARDS, Axis, shard_of, slices
from reports.dashboard.series import Series


def write(folder: Path, series: Sequence[Series], axes: Mapping[str, Axis]) -> None:
    """Write SHARDS files for each series; a file holds the operators that hash to its number.

    Most of an operator's cells are the same from run to run, so each distinct text of letters is
    kept once: ``ops[op]`` is (the distinct [axis, pattern, letters], and which of them each run
    has, -1 for none).
    """
    spans = {name: list(slices(axis)) for name, axis in axes.items()}
    for each in series:
        shards: list[dict[str, _History]] = [{} for _ in range(SHARDS)]
        number: dict[str, dict[str, _History]] = {}
        used = list(dict.fromkeys(run.axis for run in each.runs))
        for position, run in enumerate(each.runs):
            axis, codes = used.index(run.axis), run.codes
            for op, pattern, start, end in spans[run.axis]:
                shard = number.get(op)
                if shard is None:
                    shard = number[op] = shards[shard_of(op)]
                found = shard.get(op)
                if found is None:
                    found = shard[op] = _History(len(each.runs))
                found.note(position, (axis, pattern, codes[start:end]))
        for place, shard in enumerate(shards):
            data: dict[str, Any] = {
                "runs": [run.id for run in each.runs],
                "axes": used,
                "ops": {op: (list(found.blocks), found.at) for op, found in shard.items()},
            }
            documents.write_script(
                folder / "data" / "history" / each.slug / f"{place}.js",
                f"history/{each.slug}/{place}",
                msgspec.json.encode(data),
            )


class _History:
    """The distinct blocks of one operator, numbered, and which one each run has."""

    __slots__ = ("at", "blocks")

    def __init__(self, runs: int) -> None:
        self.blocks: dict[tuple[int, int, str], int] = {}
        self.at = [-1] * runs

    def note(self, run: int, block: tuple[int, int, str]) -> None:
        self.at[run] = self.blocks.setdefault(block, len(self.blocks))
