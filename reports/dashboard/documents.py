"""The public files of a site below ``v1/``: their formats, the downloads and the JSON schemas, and the functions that
write files.

Names and formats are public. A format may gain a key. If a format has to lose or change a key, all files move to a new
folder ``v2/``. ``v1/schema/`` has the JSON schemas, which are generated from the classes below.
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

from devices.cell import CellKey, Use
from reports.dashboard.axes import Axis, keys
from reports.gate import Level
from reports.model import Clause, Exclusion, write_file
from reports.replayed_calls import CallOutcome
from reports.status_letters import ABSENT, LETTERS

FORMAT = 1

#: Dates of the documents, for ``strftime``: ISO 8601, UTC.
INSTANT = "%Y-%m-%dT%H:%M:%SZ"


class Block(msgspec.Struct, frozen=True):
    """A block of the manifest of a run, with the results of the cells that it matches.

    ``cells`` is the number of planned cells that the block matches; a block that matches none is stale. ``met`` is the
    number of these cells whose outcome is the one that the block expects. ``active`` is false if the block's ``when``
    excludes the machine of the run.
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
    expires: str | None = None  # the last day on which the block applies, ISO 8601
    variant: tuple[str, ...] | None = None  # None: any variant
    layouts: list[str] | None = None
    raises: str | None = None
    match: str | None = None
    when: list[str] = []
    min_pass_rate: float | None = None


class Manifest(msgspec.Struct, frozen=True):
    """The manifest by which the verdicts of a run were decided.

    ``state`` is ``read`` if the manifest was read, ``none`` if the run had no manifest, and ``unknown`` if the file
    that the run names was not found or has changed since the run. ``problems`` are conflicts between blocks.
    """

    state: str
    path: str = ""
    blocks: list[Block] = []
    problems: list[str] = []


class Cause(msgspec.Struct, frozen=True):
    """The reason why some cells of a run fail, with advice.

    ``cells`` is the number of cells that fail for the reason, ``checks`` the number of checks that failed in them,
    ``clauses`` the clauses of the cells, and ``example`` the cell to read first. ``outcome`` is the outcome of the
    example, and ``positions`` are the positions of the cells in the run's axis; documents of suite 0.1 have neither
    ``outcome`` nor ``positions``. ``gating`` is false if all cells belong to provisional clauses, which do not fail the
    gate.
    """

    verdict: str
    sentence: str
    todo: str
    cells: int
    checks: int
    clauses: list[str]
    example: CellKey
    outcome: str = "fail"
    positions: list[int] = []
    gating: bool = True  # false for cells of provisional clauses
    used: str = ""  # how many public models call the most used op; empty if none does
    called_by: Use | None = None  # the same in numbers
    id: str = ""  # the same for the same cause in every run and on every device; documents of suite 0.1 have none


class PublicBug(msgspec.Struct, frozen=True):
    """A public bug report that a run is about.

    ``blocks`` are the positions of the manifest's blocks that give its address as their issue, and ``expected`` the
    positions, in the run's axis, of the cells that fail as these blocks expect. ``backend`` is the device that the bug
    was reported for, and ``seen`` has the positions of the cells that fail here and would find the bug on that
    device. ``name`` is a short name, such as ``pytorch#139006``.
    """

    url: str
    name: str
    backend: str = ""
    blocks: list[int] = []
    expected: list[int] = []
    seen: list[int] = []


class ReplayedCall(msgspec.Struct, frozen=True):
    """A distinct call of a replayed program. ``times`` is the number of times that the program makes the call,
    ``line`` and ``module`` say where the program makes it most often; they are empty if the recording does not say.
    ``cell`` is the cell that decides the outcome; None for a call that was not judged, or whose cells have no
    failing check. ``expected`` is true if the manifest lists the failure."""

    call: str
    op: str
    dtype: str
    outcome: CallOutcome
    times: int
    line: str = ""
    module: str = ""
    why: str = ""
    cell: CellKey | None = None
    expected: bool = False


class ReplayCause(msgspec.Struct, frozen=True):
    """The reason why some calls of a replayed program fail: ``calls`` distinct calls, which the program makes
    ``times`` times. ``further`` is the number of those distinct calls that no earlier cause in the list affects.
    ``line`` and ``module`` say where the program makes the most frequent of these calls."""

    sentence: str
    todo: str
    verdict: str
    calls: int
    further: int
    times: int
    line: str
    module: str
    example: CellKey


class WorstError(msgspec.Struct, frozen=True):
    """The call with the largest absolute error in the clause ``layout.values``, among the calls whose operands are
    in the recorded ranges. ``error`` is a number as text, because it may be ``inf``."""

    call: str
    error: str
    cell: CellKey


class Replay(msgspec.Struct, frozen=True):
    """A program whose recorded calls were replayed on a device. ``program`` is the recorded command, or the name of
    the recording's file. ``calls`` are the program's distinct calls, the worst outcomes first. ``causes`` are the
    reasons why calls fail, in the order in which to fix them: causes that the manifest does not list come first, and
    each time the cause that affects most calls that no earlier cause affects."""

    program: str
    calls: list[ReplayedCall]
    causes: list[ReplayCause]
    worst: WorstError | None = None


class RunDocument(msgspec.Struct, frozen=True):
    """The document of a run, ``v1/runs/<id>.json``. ``codes`` has one status letter for each cell of the run's axis."""

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
    replay: Replay | None = None  # of a run of ``conform replay``
    bugs: list[PublicBug] = []  # those with most cells first
    labels: dict[str, str] = {}  # given to ``conform dashboard --label``: branch, commit, pr, …
    lacking: list[
        str
    ] = []  # what the run lacks to be complete; only on a site that is not published


class ContractDocument(msgspec.Struct, frozen=True):
    """The contract as a run recorded it, in ``v1/contracts/<hash>.json``."""

    clauses: list[Clause]


class Count(msgspec.Struct, frozen=True):
    """Numbers of cells, counted as the gate counts them. ``judged`` is the denominator: all planned cells except the
    ``ambiguous`` and the ``declared`` cells. ``declared`` cells were not tried, because they need something that the
    descriptor does not declare or that the machine does not have."""

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
    """An entry of ``v1/index.json``: a device, a plan, and the runs of that plan on the device."""

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
    """The document ``v1/index.json``: the devices of the site, and the meaning of each status letter."""

    format: int
    generator: str
    built: str  # ISO 8601, UTC
    statuses: list[dict[str, str]]
    devices: list[DeviceDocument]


SCHEMAS = {"index": IndexDocument, "run": RunDocument, "axis": Axis, "contract": ContractDocument}


def schema(name: str) -> dict[str, Any]:
    """Returns the JSON schema (draft 2020-12) of the document with the given name."""
    made = msgspec.json.schema(SCHEMAS[name])
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": name, **made}


def write(path: Path, data: bytes) -> None:
    """Replaces a file atomically, so that a reader sees either the old content or the new one."""
    with contextlib.suppress(
        OSError
    ):  # the file does not exist yet, or cannot be read; write_file reports the latter
        if path.stat().st_size == len(data) and path.read_bytes() == data:
            return  # replacing a file forces some file systems to flush it, which is slow
    write_file(path, data)


def write_json(path: Path, document: Any) -> bytes:
    """Writes an object as a JSON file. Returns the content of the file."""
    data = msgspec.json.encode(document)
    write(path, data)
    return data


def write_script(folder: Path, key: str, data: bytes) -> None:
    """Writes JSON as the script ``data/<key>.js``. When a page loads the script, it passes the JSON to ``conform.give``
    under that key.

    A page that is opened from a local file may load scripts, but must not read other files. ``key`` is made of slugs.
    The JSON is in a string, because an object literal treats the key ``__proto__`` as its prototype, and JSON.parse
    does not.
    """
    text = data.replace(b"\\", b"\\\\").replace(b"'", b"\\'")
    script = b'conform.give("' + key.encode("ascii") + b"\",'" + text + b"');\n"
    write(folder / "data" / f"{key}.js", script)


def prune(folder: Path, pattern: str, kept: Container[str]) -> None:
    """Removes the files and folders in ``folder`` that match a pattern and are not in ``kept``."""
    for path in folder.glob(pattern):
        if path.name not in kept:
            shutil.rmtree(path) if path.is_dir() else path.unlink()


# -- downloads

HEADER = "clause,op,dtype,outcome,verdict\r\n"

# A spreadsheet takes a field that begins with one of these for a formula.
_FORMULA = ("=", "+", "-", "@", "\t")


def write_downloads(
    folder: Path, latest: Iterable[tuple[str, RunDocument]], axes: Mapping[str, Axis]
) -> None:
    """Writes ``v1/devices/<slug>/cells.csv`` and ``latest.json`` (the document of the run) for the newest run of each
    slug, and ``v1/schema/<name>.schema.json``."""
    lines: dict[str, list[str]] = {}  # runs of one plan share theirs
    endings = {code: f"{each.outcome},{each.verdict}\r\n" for code, each in LETTERS.items()}
    for slug, run in latest:
        write_json(folder / "v1" / "devices" / slug / "latest.json", run)
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
    """Returns the first three fields (clause, op, and dtype with variant) of each cell's line in a CSV file, each followed
    by a comma."""
    names = (*axis.clauses, *axis.dtypes, *(op for op, _ in axis.ops))
    fields = {name: _field(name) for name in names}
    return [
        f"{fields[cell.clause]},{fields[cell.unit]},{fields[cell.kind]}," for cell in keys(axis)
    ]


def _field(text: str) -> str:
    """Returns a CSV field, quoted as RFC 4180 requires. Text that a spreadsheet would run as a formula gets an
    apostrophe in front."""
    if text.startswith(_FORMULA):
        text = f"'{text}"
    stream = io.StringIO()
    csv.writer(stream, lineterminator="").writerow([text])
    return stream.getvalue()
