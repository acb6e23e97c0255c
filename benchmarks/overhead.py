"""Measures what the harness costs for each cell besides the checks: matching, journalling, recording, judging, sending,
storing and writing."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

from benchmarks.figures import Figure
from benchmarks.synthetic_runs import cells_of, write
from conformance.checks.cells import Recorder
from conformance.contract import load
from conformance.plan.selection import Item, Machine, Shard, items_of
from conformance.plan.selection import cells_of as shard_cells
from conformance.plan.usage import known_layouts
from conformance.run.isolation.watch import DeviceLock, Journal, Watch, limits_for
from conformance.run.item_report import (
    Guilty,
    ItemReport,
    read_report,
    verdict_of,
    write_report,
)
from conformance.run.progress import Begun, Done, Finished, Identity, Progress
from devices import registry
from devices.cell import CallKey
from devices.manifest import Manifest
from devices.verdicts import Matcher
from opinfo.plan import plan_hash
from reports.gate import gate
from reports.run import load_run, write_run

_CALLS = 10  # calls of a cell, the mean of the plan; cells of a group share them
_GROUP = 3  # clauses that share their calls, the mean of the plan

_NOT_BUDGETED = ("judging", "sending", "writing", "gating")


def measured() -> Iterator[Figure]:
    cells = cells_of(ops=50)
    items = items_of(cells)
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        run = load_run(write(folder / "run", "synthetic", 1, 0, cells))
        matcher = _matcher()
        recorded: list[ItemReport] = []
        steps: dict[str, Callable[[], object]] = {
            "planning (items, hash, shards)": lambda: (
                items_of(cells), plan_hash(cells, {}), shard_cells(Shard(1, 4), cells, {})
            ),
            "matching": lambda: [matcher.expect(cell) for cell in cells],
            "journalling": lambda: _journal(folder, items),
            "recording": lambda: recorded.extend(_record(item) for item in items),
            "judging": lambda: [
                verdict_of(matcher, told) for report in recorded for told in report.cells
            ],
            "sending": lambda: [read_report(write_report(report)) for report in recorded],
            "keeping": lambda: _keep(folder, recorded),
            "writing": lambda: write_run(folder / "out", run.plan, run.results, run.provenance),
            "gating": lambda: gate(run),
        }  # fmt: skip
        budgeted = total = 0.0
        for name, step in steps.items():
            started = time.process_time()  # there is one thread, and other processes must not count
            step()
            took = (time.process_time() - started) / len(cells) * 1e3
            total += took
            budgeted += took if name not in _NOT_BUDGETED else 0.0
            print(f"  {name:32} {took:.4f} ms a cell")
        print(f"  all {total:.3f} ms a cell, of {len(cells):,}")
        named = "planning, matching, journalling, recording, keeping: ms a cell"
        yield Figure(named, budgeted, 0.05)


def _matcher() -> Matcher:
    cpu = registry.get("cpu")
    assert cpu.expectations is not None
    known = {"clause": load().clauses, "layouts": known_layouts(cpu)}
    manifest = Manifest.load(cpu.expectations, known)
    return Matcher(manifest.active(cpu.facts()))


def _journal(folder: Path, items: list[Item]) -> None:
    """Write the journal of a run: each cell begins and ends, and each group of cells makes its calls."""
    journal = Journal(folder / "journal", "gw0")
    watch = Watch(
        journal, limits_for("full", 1.0), DeviceLock("bench", 0, folder / "locks"), _alive, _leave
    )
    guilty = Guilty()
    for item in items:
        recorder = Recorder(item.unit, item.dtype, item.clauses)
        with watch.item(item.cells[0], guilty, alone=False):
            records = list(recorder.cells.values())
            for first in range(0, len(records), _GROUP):
                group = records[first : first + _GROUP]
                watch.begin([record.key.clause for record in group], group)
                for call in range(_CALLS * len(group)):
                    watch.call(CallKey(call, "transposed+offset"))
                watch.end()


def _alive() -> None:
    """Stands for the check that the device still answers."""


_leave = partial(exit)


def _record(item: Item) -> ItemReport:
    recorder = Recorder(item.unit, item.dtype, item.clauses)
    for record in recorder.cells.values():
        for call in range(_CALLS):
            record.check(call, "transposed+offset")
    return ItemReport(tuple(record.to_outcome() for record in recorder.cells.values()))


def _keep(folder: Path, reports: list[ItemReport]) -> None:
    machine = Machine("", "", "", "")
    head = Begun(Identity("cpu", "", machine, {}, ""), "")
    progress = Progress(folder, head, Done(), None, False)
    for report in reports:
        progress.add(Finished("gw0", report))
    progress.close(complete=True)
