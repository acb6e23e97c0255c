"""What the site keeps of a run: the public files under ``v1/``, and how they are written.

These names and forms are public: what is here may gain a key, and loses or changes one only with a
new folder ``v2/``. ``v1/schema/`` holds their JSON schemas, generated from the classes below.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import Any

import msgspec

from reports.dashboard.axes import Axis
from reports.plan import RunError

FORMAT = 1


class Block(msgspec.Struct, frozen=True):
    """A block of the manifest that a run was judged by, and what it met there.

    ``cells`` is how many planned cells it matches (none: it is stale), ``met`` how many came out as
    it says. ``active`` is false where its ``when`` does not hold on the run's machine.
    """

    line: int
    clause: list[str]
    op: list[str]
    dtype: list[str]
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


class Exclusion(msgspec.Struct, frozen=True):
    """Operators that a clause leaves out, and why; no operators means all of them."""

    clause: str
    ops: list[str]
    reason: str


class Manifest(msgspec.Struct, frozen=True):
    """The expected failures that a run was judged by.

    ``state`` is ``read``, ``none`` (the run had no manifest), or ``unknown`` (the run names one that
    is not in its folder and not where it was). ``problems`` are conflicts that lint finds.
    """

    state: str
    path: str = ""
    blocks: list[Block] = []
    problems: list[str] = []


class Level(msgspec.Struct, frozen=True):
    """A level of conformance: how many of the cells that its frozen list, in that version, has passed.

    ``unplanned`` cells of the list are not in the run's plan, and count against the device. ``open``
    are clauses, of the level's ``clauses``, that the suite does not check yet. ``reached`` is true only
    if there are none of these and every listed cell passes.
    """

    level: int
    title: str
    version: str
    passed: int
    listed: int
    unplanned: int
    clauses: int
    open: int
    reached: bool


class RunDocument(msgspec.Struct, frozen=True):
    """``v1/runs/<id>.json``: a run. ``codes`` has a letter for each cell of its axis."""

    format: int
    id: str
    sha256: str  # of the run's plan.json
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
    levels: list[Level] = []  # none in a run of a suite that states none


class ContractDocument(msgspec.Struct, frozen=True):
    """``v1/contracts/<hash>.json``: the contract as a run's plan.json has it."""

    clauses: list[dict[str, Any]]


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
    crashes: int
    hangs: int


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


SCHEMAS = {
    "index": IndexDocument,
    "run": RunDocument,
    "axis": Axis,
    "contract": ContractDocument,
}


def schema(name: str) -> dict[str, Any]:
    """The JSON schema (draft 2020-12) of a document."""
    made = msgspec.json.schema(SCHEMAS[name])
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": name, **made}


def write(path: Path, data: bytes) -> None:
    """Write a file in one step: readers see the old one or the new one."""
    with contextlib.suppress(OSError):  # not there yet; or not readable, which is told below
        if path.stat().st_size == len(data) and path.read_bytes() == data:
            return  # replacing a file makes some file systems write it out at once
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        temporary.write_bytes(data)
        temporary.replace(path)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        raise RunError(f"{path}: cannot be written: {error.strerror or error}") from None


def write_json(path: Path, document: Any) -> bytes:
    """Write a JSON file. Returns its content."""
    data = msgspec.json.encode(document)
    write(path, data)
    return data


def write_script(path: Path, key: str, data: bytes) -> None:
    """Write JSON as a script that hands it over under a key.

    Pages opened from a file may load scripts, and may not read other files. ``key`` is a slug of
    our own making. The JSON stands in a string, because an object in a script takes the key
    ``__proto__`` for its prototype, and JSON.parse does not.
    """
    text = data.replace(b"\\", b"\\\\").replace(b"'", b"\\'")
    write(path, b'conform.give("' + key.encode("ascii") + b"\",'" + text + b"');\n")
