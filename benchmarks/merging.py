"""Measures merging: 16 shards of 16,000 cells each are read, merged and written."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import msgspec

from benchmarks.figures import Figure
from benchmarks.synthetic_runs import cells_of, write
from reports.merge import merge
from reports.model import fold
from reports.run import collector_paused, load_run, write_run

_SHARDS = 16
_CELLS = 16_000


def measured() -> Iterator[Figure]:
    with tempfile.TemporaryDirectory() as scratch:
        paths = _shards(Path(scratch))
        with collector_paused():
            started = time.perf_counter()
            merged = merge([load_run(path) for path in paths])
            read = time.perf_counter() - started
            write_run(
                Path(scratch) / "out",
                merged.document,
                merged.results,
                merged.provenance,
                like=merged.plan,
            )
        took = time.perf_counter() - started
        print(f"{_SHARDS} shards, {len(merged.results):,} cells: read and joined in {read:.2f} s")
        assert len(merged.results) == _SHARDS * _CELLS
        yield Figure("merging 16 shards of 16,000 cells, s", took, 5)


def _shards(scratch: Path) -> list[Path]:
    """Write one run of 256,000 cells as shards."""
    cells = cells_of(ops=712)[: _SHARDS * _CELLS]
    whole = load_run(write(scratch / "whole", "synthetic", 1, 0, cells))
    found = []
    for number in range(1, _SHARDS + 1):
        mine = cells[number - 1 :: _SHARDS]
        document = msgspec.structs.replace(whole.plan, selected=fold(mine))
        origin = replace(whole.provenance, shard=f"{number}/{_SHARDS}")
        folder = scratch / f"shard-{number}"
        write_run(folder, document, {cell: whole.results[cell] for cell in mine}, origin)
        found.append(folder)
    return found
