"""What the harness costs a cell beside what it checks: matching, journalling, recording, judging, keeping, writing."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

from benchmarks.running import verdict
from benchmarks.synthetic_runs import cells_of, write
from conformance.cells import Recorder
from conformance.contract import load
from conformance.flaky import observed_of
from conformance.isolation.guard import Watch
from conformance.isolation.journal import Journal
from conformance.isolation.limits import limits_for
from conformance.isolation.locks import DeviceLock
from conformance.isolation.lost import Guilty
from conformance.isolation.progress import Progress
from conformance.items import Item, items_of
from conformance.judging import verdict_of
from conformance.planner import known_layouts
from conformance.scale.shard import Shard
from conformance.scale.shard import cells_of as shard_cells
from devices import registry
from devices.cell import CellKey
from devices.expectations import Manifest, Matcher
from opinfo.plan import plan_hash
from reports.judgement import judge
from reports.run import load_run, write_run

_CALLS = 10  # of a cell, in the plan's mean: they are its group's
_GROUP = 3  # clauses that share their calls, in the plan's mean

_AFTER = ("judging", "writing", "gating")  # once a run, when all is done


def main() -> bool:
    cells = cells_of(ops=50)
    items = items_of(cells)
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        run = load_run(write(folder / "run", "synthetic", 1, 0, cells))
        matcher = _matcher()
        documents: list[list[dict[str, object]]] = []
        steps: dict[str, Callable[[], object]] = {
            "planning (items, hash, shards)": lambda: (
                items_of(cells), plan_hash(cells, {}), shard_cells(Shard(1, 4), cells, {})
            ),
            "matching": lambda: [matcher.expect(cell) for cell in cells],
            "journalling": lambda: _journal(folder, items),
            "recording": lambda: documents.extend(_record(item) for item in items),
            "judging": lambda: [
                verdict_of(matcher, CellKey(*d["cell"]), observed_of(d), d["ran"])  # type: ignore[misc]
                for found in documents
                for d in found
            ],
            "keeping": lambda: _keep(folder, documents),
            "writing": lambda: write_run(folder / "out", run.plan, run.results, run.provenance),
            "gating": lambda: judge(run),
        }  # fmt: skip
        budgeted = total = 0.0
        for name, step in steps.items():
            started = time.process_time()  # one thread, and other processes shall not count
            step()
            took = (time.process_time() - started) / len(cells) * 1e3
            total += took
            budgeted += took if name not in _AFTER else 0.0
            print(f"  {name:32} {took:.4f} ms a cell")
        print(f"  all {total:.3f} ms a cell, of {len(cells):,}")
        named = "planning, matching, journalling, recording, keeping: ms a cell"
        return verdict(named, budgeted, 0.05, at_least=False)


def _matcher() -> Matcher:
    cpu = registry.get("cpu")
    assert cpu.expectations is not None
    known = set(load().clauses)
    manifest = Manifest.load(
        cpu.expectations, known_clauses=known, known_layouts=known_layouts(cpu)
    )
    return Matcher(manifest.active(cpu.facts()))


def _journal(folder: Path, items: list[Item]) -> None:
    """Every cell begins and ends, and its group makes its calls."""
    journal = Journal(folder / "journal", "gw0")
    watch = Watch(
        journal, limits_for("full", 1.0), DeviceLock("bench", 0, folder / "locks"), _alive, _leave
    )
    guilty = Guilty()
    for item in items:
        recorder = Recorder(item.op, item.dtype, item.clauses)
        with watch.item(item.cells[0], guilty, alone=False):
            records = list(recorder.cells.values())
            for first in range(0, len(records), _GROUP):
                group = records[first : first + _GROUP]
                watch.begin([record.key.clause for record in group], group)
                for call in range(_CALLS * len(group)):
                    watch.call(f"{call}/transposed+offset")
                watch.done()


def _alive() -> None:
    """The device answers."""


_leave = partial(exit)


def _record(item: Item) -> list[dict[str, object]]:
    recorder = Recorder(item.op, item.dtype, item.clauses)
    for record in recorder.cells.values():
        for call in range(_CALLS):
            record.check(call, "transposed+offset")
    return [record.document() for record in recorder.cells.values()]


def _keep(folder: Path, documents: list[list[dict[str, object]]]) -> None:
    progress = Progress(folder)
    for found in documents:
        progress.cells("gw0", found)
    progress.close(complete=True)
