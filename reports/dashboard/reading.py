"""A results folder read for the site: refused unless it is a whole run, with every cell judged."""

from __future__ import annotations

import gc
import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import msgspec

from devices.cell import CellKey, Outcome
from devices.errors import ConformError
from reports.dashboard.axes import Axis, order
from reports.junit_read import layout_sets, provenance_of
from reports.levels import LevelCount, count_levels
from reports.model import CellResult, Provenance, check_provenance, problem_with
from reports.plan import ADDED, Plan, RunError, digest, parse_document, read_plan
from reports.run import PLAN_FILE, junit_file
from reports.scan import Scanned, scan_suite
from reports.statuses import ERROR, MISSING, OUTCOME_OF, PASS, code_of


class Refused(ConformError):
    """A run that must not be published: partial, a lone shard, incomplete, empty, or a dead machine's.

    Exits 2, as the gate does for an incomplete run.
    """

    exit_code = 2


@dataclass(frozen=True, slots=True)
class ReadRun:
    """A whole run in the order of its axis. ``told`` has what is no plain pass, by position."""

    folder: Path
    sha256: str
    start: datetime  # in UTC
    document: dict[str, Any]
    plan: Plan
    provenance: Provenance
    axis: Axis
    codes: str
    checks: list[int]
    samples: list[int]
    told: dict[int, CellResult]
    layouts: int
    levels: list[LevelCount]

    @property
    def id(self) -> str:
        return run_id(self.start, self.sha256)


def plan_file(path: Path) -> Path:
    """The run's ``plan.json``, from its folder or from the file itself."""
    return path / PLAN_FILE if path.is_dir() else path


def fingerprint(path: Path) -> str:
    """SHA-256 of a run's ``plan.json``, which names the checksums of all its other files."""
    source = plan_file(path)
    try:
        return hashlib.sha256(source.read_bytes()).hexdigest()
    except FileNotFoundError:
        raise RunError(
            f"{source}: not found; expected the folder that a run wrote with --results"
        ) from None
    except OSError as error:
        raise RunError(f"{source}: cannot be read: {error.strerror or error}") from None


def run_id(start: datetime, sha256: str) -> str:
    """The run's name on the site: sorts by date, and is a file name everywhere."""
    return f"{start:%Y%m%dt%H%M%Sz}-{sha256[:10]}"


def read(path: Path) -> ReadRun:
    """Read a run. Raises RunError where its files are damaged, Refused where it is not whole."""
    enabled = gc.isenabled()
    gc.disable()  # a million live objects and no cycles: looking through them takes a third
    try:
        return _read(plan_file(path))
    finally:
        if enabled:
            gc.enable()


def _read(source: Path) -> ReadRun:
    try:
        raw = source.read_bytes()
    except OSError as error:
        raise RunError(f"{source}: cannot be read: {error.strerror or error}") from None
    document = parse_document(raw, str(source))
    provenance, files = _added(document, source)
    plan = read_plan(document, str(source))
    check_provenance(plan, provenance, str(source))
    _whole(plan, provenance, source)
    families = _by_family(plan)
    scanned = _scan(source, plan, families, provenance, files, digest(document))
    ordered = order(plan.document.cells)
    place = {position: place for place, position in enumerate(ordered.positions)}
    codes = [PASS] * len(plan.cells)
    checks, samples = [0] * len(plan.cells), [0] * len(plan.cells)
    told: dict[int, CellResult] = {}
    for family, positions in families.items():
        of_family = scanned[family]
        for position, made, inputs in zip(
            positions, of_family.checks, of_family.samples, strict=True
        ):
            checks[position], samples[position] = made, inputs
        for index, result in of_family.told.items():
            code = codes[positions[index]] = code_of(result)
            if code == ERROR and (problem := problem_with(result)) is not None:
                raise Refused(f"{source}: not evidence: {result.key} {problem}")
            told[place[positions[index]]] = result
        for index in of_family.missing:
            codes[positions[index]] = MISSING
    _complete(plan, codes, told, source)
    layouts = {name for each in scanned.values() for ran in _sets(each, source) for name in ran}
    return ReadRun(
        source.parent,
        hashlib.sha256(raw).hexdigest(),
        _date(provenance.start, source),
        document,
        plan,
        provenance,
        ordered.axis,
        "".join([codes[position] for position in ordered.positions]),
        [checks[position] for position in ordered.positions],
        [samples[position] for position in ordered.positions],
        dict(sorted(told.items())),
        len(layouts),
        count_levels(plan, lambda position: OUTCOME_OF[codes[position]] is Outcome.PASS),
    )


def _sets(scanned: Scanned, source: Path) -> list[tuple[str, ...]]:
    return layout_sets(scanned.properties, source)


def _added(document: dict[str, Any], source: Path) -> tuple[Provenance, dict[str, str]]:
    for name in ADDED:
        if name not in document:
            raise RunError(f"{source}: has no {name!r}: a plan, but not that of a finished run")
    try:
        return (
            msgspec.convert(document.pop("provenance"), Provenance),
            msgspec.convert(document.pop("files"), dict[str, str]),
        )
    except msgspec.ValidationError as error:
        raise RunError(f"{source}: malformed provenance or files: {error}") from None


def _whole(plan: Plan, provenance: Provenance, source: Path) -> None:
    """Refuse what can never be published, before its files are read."""
    if not plan.cells:
        raise Refused(f"{source}: empty: no cells are planned, so there is no evidence")
    if provenance.partial:
        chosen = ", ".join(plan.document.selection) or "a selection"
        raise Refused(
            f"{source}: a partial run ({chosen}): {len(plan.selected):,} of {len(plan.cells):,} "
            "planned cells were selected; publish a run of all of them"
        )
    if provenance.shard not in ("", "1/1"):
        raise Refused(
            f"{source}: shard {provenance.shard} alone: join all shards with `conform merge` first"
        )


def _by_family(plan: Plan) -> dict[str, list[int]]:
    """The positions of each family's cells."""
    family_of = {clause.id: clause.family for clause in plan.clauses.values()}
    found: dict[str, list[int]] = {}
    position = 0
    for clause, ops in plan.document.cells:
        size = sum(map(len, ops.values()))
        found.setdefault(family_of[clause], []).extend(range(position, position + size))
        position += size
    return {family: positions for family, positions in found.items() if positions}


def _scan(
    source: Path,
    plan: Plan,
    families: Mapping[str, list[int]],
    provenance: Provenance,
    files: Mapping[str, str],
    bound: str,
) -> dict[str, Scanned]:
    scanned: dict[str, Scanned] = {}
    if strangers := files.keys() - {junit_file(family) for family in families}:
        raise RunError(f"{source}: lists {min(strangers)!r}, which no family of its plan has")
    for family, positions in families.items():
        name = junit_file(family)
        if name not in files:
            raise RunError(f"{source}: lists no {name}, though the plan has its cells")
        cells: list[CellKey] = [plan.cells[position] for position in positions]
        path = source.parent / name
        found = scan_suite(path, family, cells, plan, files[name], bound)
        if provenance_of(found.properties, path) != provenance:
            raise RunError(f"{path}: its properties are not those of {source}")
        scanned[family] = found
    return scanned


def _complete(plan: Plan, codes: list[str], told: Mapping[int, CellResult], source: Path) -> None:
    missing = codes.count(MISSING)
    if missing:
        first = plan.cells[codes.index(MISSING)]
        raise Refused(
            f"{source}: incomplete: {missing:,} of {len(codes):,} planned cells have no outcome, "
            f"{first} first"
        )
    if len(told) == len(codes) and all(r.outcome is Outcome.ERROR for r in told.values()):
        said = next((result.message for result in told.values() if result.message), "no message")
        raise Refused(
            f"{source}: not one of {len(codes):,} cells could be checked: the machine is at fault, "
            f"not the device's operators; the first says: {said.partition(chr(10))[0][:200]}"
        )


def _date(text: str, source: Path) -> datetime:
    try:
        found = datetime.fromisoformat(text.replace("Z", "+00:00"))
    except ValueError:
        raise RunError(f"{source}: its start {text!r} is no date in ISO 8601") from None
    if found.tzinfo is None:
        found = found.replace(tzinfo=timezone.utc)
    return found.astimezone(timezone.utc)
