"""Runs made up for the tests of the reports."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from devices.cell import CellKey, Outcome, Verdict
from reports.model import CellResult, Provenance
from reports.plan import fold

#: Not declared by the plan below: the cells of these clauses may be unsupported by declaration.
NEEDS = ["storage"]

CLAUSES: list[dict[str, Any]] = [
    {
        "id": "layout.values",
        "family": "layout",
        "status": "checked",
        "provisional": False,
        "requires": NEEDS,
    },
    {
        "id": "layout.bounds",
        "family": "layout",
        "status": "checked",
        "provisional": False,
        "requires": NEEDS,
    },
    {
        "id": "streams.query",
        "family": "streams",
        "status": "checked",
        "provisional": True,
        "requires": NEEDS,
    },
    {"id": "graphs.pool", "family": "graphs", "status": "planned", "provisional": False},
    {"id": "events.record", "family": "events", "status": "checked", "provisional": False},
]

ADD = CellKey("layout.values", "add", "float32")
ADD_INT = CellKey("layout.values", "add", "int64")
CONV = CellKey("layout.values", "nn.functional.conv2d", "float32")
BOUNDS = CellKey("layout.bounds", "add", "float32")
QUERY = CellKey("streams.query", "query is false while busy", "")
CELLS = (ADD, ADD_INT, CONV, BOUNDS, QUERY)

PROVENANCE = Provenance(
    plan_hash="00112233aabbccdd",
    suite_version="0.1.0",
    suite_commit="",
    torch="2.13.0+cpu",
    driver="",
    device_name="Some <Device> & Co",
    device_uuid="GPU-1234",
    os="linux",
    arch="x86_64",
    python="3.11.7",
    seed=0,
    manifest_hash="none",
    start="2026-01-31T12:00:00+00:00",
    host="builder7",
    shard="",
    device="cpu",
    plan="quick",
    partial=False,
    expectations="none",
    reference_cache="warm",
)


def plan_document(
    cells: Iterable[CellKey] = CELLS, selected: Iterable[CellKey] | None = None, **changed: Any
) -> dict[str, Any]:
    """A plan as the suite writes it."""
    document: dict[str, Any] = {
        "format": 1,
        "hash": PROVENANCE.plan_hash,
        "device": "cpu",
        "plan": "quick",
        "torch": "2.13.0+cpu",
        "suite": "0.1.0",
        "partial": selected is not None,
        "selection": {},
        "clauses": CLAUSES,
        "capabilities": {"strides": {"declared": True, "probed": None}},
        "facts": {"os": "linux", "device_name": "on builder7"},
        "layouts_version": 1,
        "exclusions": [{"clause": "layout.values", "ops": ["empty"], "reason": "free answer"}],
        "cells": [list(entry) for entry in fold(cells)],
    }
    if selected is not None:
        document["selected"] = [list(entry) for entry in fold(selected)]
    return {**document, **changed}


def passed(cell: CellKey, **changed: Any) -> CellResult:
    plain = CellResult(
        cell,
        Outcome.PASS,
        Verdict.OK,
        checks=12,
        samples=3,
        ran_layouts=("contiguous", "transposed"),
        seconds=0.0015,
        worker="gw0",
    )
    return replace(plain, **changed)


def failed(cell: CellKey, verdict: Verdict = Verdict.REGRESSION, **changed: Any) -> CellResult:
    plain = CellResult(
        cell,
        Outcome.FAIL,
        verdict,
        why="no block of the manifest expects it",
        checks=12,
        samples=3,
        layouts=("transposed",),
        ran_layouts=("contiguous", "transposed"),
        worst_error=0.5,
        raises="AssertionError",
        message="values differ\nat (0, 1)",
        repro="repro/0001.py",
        seconds=0.25,
        worker="gw1",
    )
    return replace(plain, **changed)


def results(*given: CellResult, cells: Iterable[CellKey] = CELLS) -> dict[CellKey, CellResult]:
    """A pass for every cell, but for the results given."""
    return {cell: passed(cell) for cell in cells} | {result.key: result for result in given}


def sign(folder: Path) -> None:
    """Write the checksums of the JUnit files into plan.json again, as a forger would."""
    plan = folder / "plan.json"
    document: Mapping[str, Any] = json.loads(plan.read_text())
    files = {
        name: hashlib.sha256((folder / name).read_bytes()).hexdigest()
        for name in document["files"]
        if (folder / name).exists()
    }
    plan.write_text(json.dumps({**document, "files": {**document["files"], **files}}))


def edit(path: Path, old: str, new: str, count: int = 1) -> None:
    """Replace a text that must be there."""
    text = path.read_text(encoding="utf-8")
    assert old in text, f"{old!r} is not in {path.name}"
    path.write_text(text.replace(old, new, count), encoding="utf-8")
