"""Runs made up for the tests of the reports."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import msgspec

from devices.cell import CellKey, Outcome, Verdict
from devices.failure import Failure, Kind
from reports.model import CellResult, PlanDocument, Provenance, fold
from reports.run import RECORD_FILE

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
) -> PlanDocument:
    """A plan as the suite writes it."""
    document: dict[str, Any] = {
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
    return msgspec.convert({**document, **changed}, PlanDocument)


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
    return changed_result(plain, **changed)


def failed(cell: CellKey, verdict: Verdict = Verdict.REGRESSION, **changed: Any) -> CellResult:
    plain = CellResult(
        cell,
        Outcome.FAIL,
        verdict,
        why="the manifest does not list it",
        checks=12,
        samples=3,
        layouts=("transposed",),
        ran_layouts=("contiguous", "transposed"),
        worst_error=0.5,
        raises="AssertionError",
        failure=failure("values differ\nat (0, 1)"),
        repro="repro/0001.py",
        seconds=0.25,
        worker="gw1",
    )
    return changed_result(plain, **changed)


def failure(text: str, **changed: Any) -> Failure:
    """A failure that is described by a sentence."""
    return Failure(**{"kind": Kind.VALUES, "detail": text, **changed})


def changed_result(result: CellResult, message: str | None = None, **changed: Any) -> CellResult:
    """The result with other fields; ``message`` is the text of its failure, or its note."""
    if message is not None:
        passes = changed.get("outcome", result.outcome) is not Outcome.FAIL
        changed |= {"failure": None if passes else failure(message)}
        changed |= {"note": message if passes else ""}
    return msgspec.structs.replace(result, **changed)


def results(*given: CellResult, cells: Iterable[CellKey] = CELLS) -> dict[CellKey, CellResult]:
    """A pass for every cell, but for the results given."""
    return {cell: passed(cell) for cell in cells} | {result.key: result for result in given}


def body(folder: Path) -> bytes:
    """The body of a run's record."""
    return (folder / RECORD_FILE).read_bytes().partition(b"\n")[2]


def forge(folder: Path, body: bytes) -> None:
    """Put another body into a record, with a checksum that fits, as a forger would."""
    path = folder / RECORD_FILE
    head = path.read_bytes().partition(b"\n")[0].rpartition(b" ")[0]
    path.write_bytes(head + b" " + hashlib.sha256(body).hexdigest().encode() + b"\n" + body)
