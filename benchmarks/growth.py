"""Measures how the cost of a run grows with its work: processor time of a check, memory of a worker, share of the
controller."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil

from benchmarks.figures import Figure
from benchmarks.idle import CELLS
from benchmarks.running import ROOT
from conformance.contract import load
from conformance.plan.planner import make_plan
from devices import registry
from opinfo.plan import plan_spec
from reports.run import load_run

#: The runs use one op in each of these numbers, in the database's order.
_ONE_IN = (8, 4, 2, 1)
_PLANS = ("quick", "core", "full")
_MANY = (50_000, 500_000)
_WORKERS = (8, 16)


@dataclass(frozen=True)
class Cost:
    """The cost of one run: processor seconds of all its processes and of the controller, and the memory of the largest
    worker."""

    cells: int
    checks: int
    processor: float
    controller: float
    worker_bytes: int

    @property
    def controller_a_cell(self) -> float:
        return self.controller / self.cells

    def __str__(self) -> str:
        return (
            f"{self.cells:,} cells, {self.checks:,} checks: {self.processor:.0f} s of processor time, "
            f"{self.controller:.1f} of them the controller's; largest worker {self.worker_bytes / 1e6:.0f} MB"
        )


def measured() -> Iterator[Figure]:
    """Measure with more ops, with more dtypes of some ops, and with more cells and more workers for a controller whose
    workers are idle."""
    ops = _ops()
    by_ops = [_run(f"one op in {n}", "-n", "2", _named(ops[::n])) for n in _ONE_IN]
    yield _marginal("the second half of ops / the second quarter", by_ops)
    grown = by_ops[-1].worker_bytes / by_ops[-2].worker_bytes
    yield Figure("largest worker: all ops / half of them", grown, 1.1, ratio=True)

    some = _named(ops[::16])
    by_plan = [_run(f"{plan}, one op in 16", "-n", "2", f"--plan={plan}", some) for plan in _PLANS]
    yield _marginal("what full adds to core / what core adds to quick", by_plan)

    cells, many_cells = _MANY
    workers, many_workers = _WORKERS
    idle = _idle(cells, workers)
    more_cells, more_workers = _idle(many_cells, workers), _idle(cells, many_workers)
    for more, name in (
        (more_cells, f"{many_cells:,} cells / {cells:,}"),
        (more_workers, f"{many_workers} workers / {workers}"),
    ):
        grown = more.controller_a_cell / idle.controller_a_cell
        yield Figure(f"controller, a cell: {name}", grown, 1.25, ratio=True)
    half, whole = by_ops[-2:]
    real = (whole.processor - half.processor) / (whole.cells - half.cells)
    share = 100 * more_cells.controller_a_cell / (more_cells.controller_a_cell + real)
    yield Figure(f"controller, share of {many_cells:,} cells, %", share, 2, ratio=True)


def _marginal(name: str, costs: Sequence[Cost]) -> Figure:
    """The processor time of a check that the last of three runs adds, divided by that of a check that the second adds.
    The time of starting, which is the same in all runs, cancels."""
    few, more, most = costs[-3:]
    added = (most.processor - more.processor) / (most.checks - more.checks)
    before = (more.processor - few.processor) / (more.checks - few.checks)
    return Figure(f"processor time a check: {name}", added / before, 1.25, ratio=True)


def _idle(cells: int, workers: int) -> Cost:
    plugin, asked = ("-p", "benchmarks.idle"), {CELLS: str(cells)}
    return _run(f"{workers} idle workers", "-n", str(workers), *plugin, environ=asked)


def _named(ops: Sequence[str]) -> str:
    return f"--ops={','.join(ops)}"


def _ops() -> list[str]:
    """The ops of plan quick."""
    plan = make_plan(plan_spec("quick"), registry.get("cpu"), load())
    return list(dict.fromkeys(cell.unit for cell in plan.cells if cell.dtype))


def _run(name: str, *arguments: str, environ: Mapping[str, str] | None = None) -> Cost:
    with tempfile.TemporaryDirectory() as scratch:
        command = [
            sys.executable,
            "-m",
            "pytest",
            "-q",
            "--device=cpu",
            f"--results={scratch}/run",
            *arguments,
        ]
        process = subprocess.Popen(
            command,
            cwd=ROOT,
            env={**os.environ, **(environ or {})},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.STDOUT,
        )
        used: dict[int, float] = {}
        peak = 0
        while process.poll() is None:
            for each in _family(process.pid):
                try:
                    times = each.cpu_times()
                    used[each.pid] = times.user + times.system
                    peak = max(peak, each.memory_info().rss if each.pid != process.pid else 0)
                except psutil.NoSuchProcess:
                    continue  # the process ended after it was listed
            time.sleep(0.1)
        if process.returncode not in (0, 1):
            raise RuntimeError(f"{' '.join(command)} exited {process.returncode}")
        results = load_run(Path(scratch, "run")).results.values()
        checks = sum(each.checks for each in results)
        cost = Cost(len(results), checks, sum(used.values()), used[process.pid], peak)
    print(f"{name}: {cost}", flush=True)
    return cost


def _family(pid: int) -> list[psutil.Process]:
    """A process and its descendants. Their times are read one by one, because the system adds up only those that are
    waited for."""
    try:
        first = psutil.Process(pid)
        return [first, *first.children(recursive=True)]
    except psutil.NoSuchProcess:
        return []
