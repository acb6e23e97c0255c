"""A pytest plugin that measures the controller alone: a plan with any number of cells, and workers that report a pass
for each cell immediately. The plan repeats the ops of the device's own plan under other names."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import replace
from itertools import count, islice
from typing import Any

import pytest

from conformance.checks.cells import Recorder
from conformance.plan import planner
from conformance.run.item_report import ItemReport
from conformance.run.worker import Task, Worker
from devices.cell import CellKey
from opinfo.plan import Plan, plan_hash

#: The environment variable that sets the number of cells.
CELLS = "CONFORMANCE_BENCHMARK_CELLS"
_CHECKS = 75  # checks of a cell, the mean of plan quick
_LAYOUTS = ("contiguous", "transposed+offset", "channels_last")

_make_plan = planner.make_plan


def _plan(*given: Any, **more: Any) -> Plan:
    plan, wanted = _make_plan(*given, **more), int(os.environ[CELLS])
    cells = tuple(islice(_renamed([cell for cell in plan.cells if cell.dtype]), wanted))
    families = {cell.unit: plan.families[cell.unit.rsplit("-", 1)[0]] for cell in cells}
    return replace(plan, cells=cells, families=families, hash=plan_hash(cells, plan.recipe))


def _renamed(cells: list[CellKey]) -> Iterator[CellKey]:
    for turn in count():
        yield from (CellKey(cell.clause, f"{cell.unit}-{turn}", cell.dtype) for cell in cells)


def _do(worker: Worker, task: Task) -> tuple[ItemReport, list[str]]:
    item = worker.items[task.item]
    recorder = Recorder(item.unit, item.dtype, item.clauses)
    for record in recorder.cells.values():
        for call in range(_CHECKS):
            record.check(call // 3, _LAYOUTS[call % 3])
    return ItemReport(tuple(record.to_outcome() for record in recorder.cells.values())), []


def pytest_addoption(parser: pytest.Parser) -> None:
    """Replaces the plan and the workers. This is the first hook that pytest calls."""
    planner.make_plan = _plan
    Worker.do = _do  # type: ignore[method-assign, assignment]
