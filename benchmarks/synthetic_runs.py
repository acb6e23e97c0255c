"""Synthetic runs of the size of a real fleet, for the benchmarks of the dashboard.

A run has 700 operators x 30 clauses x 12 dtypes = 252,000 cells. A few per cent do not simply pass: expected failures
that stay, and cells that change from date to date. The number of the device and the date determine every result.
"""

from __future__ import annotations

import random
from datetime import datetime, timedelta, timezone
from pathlib import Path

import msgspec

from conformance.contract import load
from devices.cell import CellKey, Outcome, Verdict
from devices.failure import Difference, Failure, Kind
from reports.model import CellResult, PlanDocument, Provenance, fold
from reports.run import write_run

DTYPES = (
    "bool", "uint8", "int8", "int16", "int32", "int64",
    "float16", "bfloat16", "float32", "float64", "complex64", "complex128",
)  # fmt: skip
LAYOUTS = ("contiguous", "transposed+offset", "channels_last", "reversed+step_outer+offset")
EXPECTED = 0.02  # the fraction of cells that fail as a block of the manifest expects
CHANGING = 0.002  # the fraction of cells that fail on this date and pass on the next


def cells_of(ops: int = 700, clauses: int = 30) -> list[CellKey]:
    """The cells of a synthetic plan, clause by clause."""
    names = [clause.id for clause in load().clauses.values()][:clauses]
    return [
        CellKey(clause, f"op{number:03d}.variant{number % 7}", dtype)
        for clause in names
        for number in range(ops)
        for dtype in DTYPES
    ]


def write(folder: Path, device: str, number: int, date: int, cells: list[CellKey]) -> Path:
    """Write one complete run of ``device``, which has this number, ``date`` days after the first."""
    steady = random.Random(number)
    daily = random.Random(f"{number}/{date}")
    results: dict[CellKey, CellResult] = {}
    for cell in cells:
        layouts = LAYOUTS[: 2 + (len(cell.unit) + len(cell.dtype)) % 3]
        fails, changes = steady.random() < EXPECTED, daily.random() < CHANGING
        if fails or changes:
            results[cell] = _failed(
                cell, layouts, Verdict.EXPECTED if fails else Verdict.REGRESSION
            )
        else:
            results[cell] = CellResult(
                cell, Outcome.PASS, Verdict.OK, checks=12 + hash_of(cell) % 40, samples=3,
                ran_layouts=layouts, seconds=round(0.001 + hash_of(cell) % 900 / 1e6, 6),
                worker=f"gw{hash_of(cell) % 8}",
            )  # fmt: skip
    start = datetime(2026, 1, 1, 12, tzinfo=timezone.utc) + timedelta(days=date)
    plan = _document(device, cells, date)
    write_run(folder, plan, results, _provenance(plan, device, start, date))
    return folder


def hash_of(cell: CellKey) -> int:
    """A hash of the cell that is the same in every process, unlike ``hash``."""
    return sum(map(ord, cell.unit)) * 31 + sum(map(ord, cell.clause)) * 7 + len(cell.dtype)


def _failed(cell: CellKey, layouts: tuple[str, ...], verdict: Verdict) -> CellResult:
    return CellResult(
        cell, Outcome.FAIL, verdict,
        why="kernel: reads its input as if it were contiguous (expected.toml:12)"
        if verdict is Verdict.EXPECTED
        else "fail, but the manifest does not list it",
        checks=40, samples=5, layouts=layouts[1:], ran_layouts=layouts, worst_error=0.25,
        raises="AssertionError" if hash_of(cell) % 3 else None,
        failure=Failure(
            kind=Kind.VALUES, subject="output 0", expected="1.25", found="1.5", layout=layouts[1],
            where=Difference(3, 12, (0, 1), 0.25), call=f"{cell.unit}(t[0])",
        ),
        failed=7, seconds=0.0125, worker="gw1", repro=f"repro/{cell.clause}/{cell.unit}-{cell.dtype}.py",
    )  # fmt: skip


def _document(device: str, cells: list[CellKey], date: int) -> PlanDocument:
    return msgspec.convert(
        {
            "hash": f"{len(cells):016x}",
            "device": device,
            "plan": "full",
            "torch": f"2.{11 + date // 12}.0",
            "suite": "0.1.0",
            "partial": False,
            "selection": {},
            "clauses": [
                {**clause.snapshot(), "status": "checked"} for clause in load().clauses.values()
            ],
            "capabilities": {"strides": {"declared": True, "probed": True}},
            "facts": {"os": "linux", "arch": "x86_64", "driver": f"26.{date}"},
            "layouts_version": 1,
            "exclusions": [],
            "cells": fold(cells),
        },
        PlanDocument,
    )


def _provenance(plan: PlanDocument, device: str, start: datetime, date: int) -> Provenance:
    return Provenance(
        plan_hash=plan.hash, suite_version="0.1.0", suite_commit="", torch=plan.torch,
        driver=f"26.{date}", device_name=f"Synthetic {device}", device_uuid="", os="linux",
        arch="x86_64", python="3.11.7", seed=0, manifest_hash="", start=start.isoformat(), host="",
        shard="", device=device, plan="full", partial=False, expectations="none",
        reference_cache="warm",
    )  # fmt: skip
