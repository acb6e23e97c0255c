"""The public files of a site under ``v1/``: their forms, downloads and schemas, and how files are written.

These names and forms are public: what is here may gain a key, and loses or changes one only with a
new folder ``v2/``. ``v1/schema/`` holds their JSON schemas, generated from the classes below.
"""

from __future__ import annotations

import contextlib
import csv
import io
import json
import shutil
from collections.abc import Container, Iterable, Mapping
from pathlib import Path
from typing import Any

import msgspec

from devices.cell import CellKey
from reports.dashboard.axes import Axis, keys
from reports.gate import Level
from reports.model import Clause, Exclusion, write_file
from reports.statuses import ABSENT, LETTERS

FORMAT = 1

#: Dates of the documents, for ``strftime``: ISO 8601, UTC.
INSTANT = "%Y-%m-%dT%H:%M:%SZ"


class Block(msgspec.Struct, frozen=True):
    """A block of the manifest that a run was judged by, and what it met there.

    ``cells`` is how many planned cells it matches (none: it is stale), ``met`` how many came out as
    it says. ``active`` is false where its ``when`` does not hold on the run's machine.
    """

    line: int
    clause: tuple[str, ...]
    op: tuple[str, ...]
    dtype: tuple[str, ...]
    outcome: str
    reason: str
    active: bool
    cells: int
    met: int
    kind: str | None = None
    issue: str | None = None
    expires: str | None = None  # the last day on which it holds, ISO 8601
    layouts: list[str] | None = None
    raises: str | None = None
    match: str | None = None
    when: list[str] = []
    min_pass_rate: float | None = None


class Manifest(msgspec.Struct, frozen=True):
    """The expected failures that a run was judged by.

    ``state`` is ``read``, ``none`` (the run had no manifest), or ``unknown`` (the run names one that
    is not in its folder and not where it was). ``problems`` are conflicts that lint finds.
    """

    state: str
    path: str = ""
    blocks: list[Block] = []
    problems: list[str] = []


class Cause(msgspec.Struct, frozen=True):
    """Why cells fail, and what to do. ``checks`` failed in all ``cells`` of it; ``clauses`` are theirs."""

    verdict: str
    sentence: str
    todo: str
    cells: int
    checks: int
    clauses: list[str]
    example: CellKey
    gates: bool = True  # false for cells of provisional clauses


class RunDocument(msgspec.Struct, frozen=True):
    """``v1/runs/<id>.json``: a run. ``codes`` has a letter for each cell of its axis."""

    format: int
    id: str
    sha256: str  # of the run's record
    provenance: dict[str, str | int | bool]
    start: str  # ISO 8601, UTC
    axis: str  # v1/axes/<axis>.json
    contract: str  # v1/contracts/<contract>.json
    codes: str
    counts: dict[str, dict[str, int]]  # by clause, by letter
    checks: int
    layouts: int
    facts: dict[str, str | int | float | bool | None]
    capabilities: dict[str, dict[str, bool | None]]
    undeclared: dict[str, list[str]]  # clause to the capabilities that are not declared
    exclusions: list[Exclusion]
    manifest: Manifest
    provisional: list[str] = []  # the clauses that do not gate
    levels: list[Level] = []  # none in a run of a suite that states none
    causes: list[Cause] = []  # of the cells that fail, the largest first


class ContractDocument(msgspec.Struct, frozen=True):
    """``v1/contracts/<hash>.json``: the contract as a run's record has it."""

    clauses: list[Clause]


class Count(msgspec.Struct, frozen=True):
    """Cells counted as the gate does. ``judged`` is the denominator: planned less ambiguous, and less
    ``declared``, the cells that were not tried by declaration (no ``unsupported`` ones)."""

    passed: int
    judged: int
    planned: int
    ambiguous: int
    expected: int
    regressions: int
    improvements: int
    flaky: int
    unsupported: int
    declared: int
    errors: int
    blocked: int
    crashes: int
    hangs: int
    not_gating: int = 0  # regressions and improvements of provisional clauses, not counted as such


class DeviceDocument(msgspec.Struct, frozen=True):
    """A device, a plan and the runs of it: an entry of ``v1/index.json``."""

    slug: str
    device: str
    device_name: str
    plan: str
    latest: str  # id of the newest run
    runs: list[str]  # ids, oldest first
    torch: str
    driver: str
    suite: str
    start: str
    total: Count
    families: dict[str, Count]
    levels: list[Level]


class IndexDocument(msgspec.Struct, frozen=True):
    """``v1/index.json``: what the site holds."""

    format: int
    generator: str
    built: str  # ISO 8601, UTC
    statuses: list[dict[str, str]]
    devices: list[DeviceDocument]


SCHEMAS = {"index": IndexDocument, "run": RunDocument, "axis": Axis, "contract": ContractDocument}


def schema(name: str) -> dict[str, Any]:
    """The JSON schema (draft 2020-12) of a document."""
    made = msgspec.json.schema(SCHEMAS[name])
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": name, **made}


def write(path: Path, data: bytes) -> None:
    """Write a file in one step: readers see the old one or the new one."""
    with contextlib.suppress(OSError):  # not there yet; or not readable, which is reported below
        if path.stat().st_size == len(data) and path.read_bytes() == data:
            return  # replacing a file makes some file systems write it out at once
    write_file(path, data)


def write_json(path: Path, document: Any) -> bytes:
    """Write a JSON file. Returns its content."""
    data = msgspec.json.encode(document)
    write(path, data)
    return data


def write_script(folder: Path, key: str, data: bytes) -> None:
    """Write JSON as the script ``data/<key>.js``, which hands it over under that key.

    Pages opened from a file may load scripts, and may not read other files. ``key`` is made of slugs. The JSON is in a string, because an object in a script takes the key
    ``__proto__`` for its prototype, and JSON.parse does not.
    """
    text = data.replace(b"\\", b"\\\\").replace(b"'", b"\\'")
    script = b'conform.give("' + key.encode("ascii") + b"\",'" + text + b"');\n"
    write(folder / "data" / f"{key}.js", script)


def prune(folder: Path, pattern: str, kept: Container[str]) -> None:
    """Remove the files and folders that match a pattern, but for those of the names to keep."""
    for path in folder.glob(pattern):
        if path.name not in kept:
            shutil.rmtree(path) if path.is_dir() else path.unlink()


# -- downloads

HEADER = "clause,op,dtype,outcome,verdict\r\n"

# Spreadsheets take a field that begins so for a formula.
_FORMULA = ("=", "+", "-", "@", "\t")


def write_downloads(
    folder: Path, latest: Iterable[tuple[str, RunDocument]], axes: Mapping[str, Axis]
) -> None:
    """Write ``v1/devices/<slug>/cells.csv`` of each slug's newest run, and ``v1/schema/<name>.schema.json``."""
    lines: dict[str, list[str]] = {}  # runs of one plan share theirs
    endings = {code: f"{each.outcome},{each.verdict}\r\n" for code, each in LETTERS.items()}
    for slug, run in latest:
        if run.axis not in lines:
            lines[run.axis] = beginnings(axes[run.axis])
        rows = [
            beginning + endings[code]
            for beginning, code in zip(lines[run.axis], run.codes, strict=True)
            if code != ABSENT
        ]
        write(folder / "v1" / "devices" / slug / "cells.csv", (HEADER + "".join(rows)).encode())
    for name in SCHEMAS:
        text = json.dumps(schema(name), indent=2) + "\n"
        write(folder / "v1" / "schema" / f"{name}.schema.json", text.encode())


def beginnings(axis: Axis) -> list[str]:
    """The first three fields of each cell's row, with the comma after them."""
    names = (*axis.clauses, *axis.dtypes, *(op for op, _ in axis.ops))
    fields = {name: _field(name) for name in names}
    return [f"{fields[clause]},{fields[op]},{fields[dtype]}," for clause, op, dtype in keys(axis)]


def _field(text: str) -> str:
    """A field as RFC 4180 writes it. A text that a spreadsheet would run gets an apostrophe."""
    if text.startswith(_FORMULA):
        text = f"'{text}"
    stream = io.StringIO()
    csv.writer(stream, lineterminator="").writerow([text])
    return stream.getvalue()
