"""One run into the site: its public document, its letters, and what is told of single cells."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from reports.dashboard import axes, documents
from reports.dashboard.examples import example_of, groups_in
from reports.dashboard.geometry import Geometry, example, guard_elements, of_script
from reports.dashboard.manifests import judged
from reports.dashboard.reading import ReadRun, read
from reports.junit import clean
from reports.levels import LevelCount
from reports.model import CellResult
from reports.plan import PLANNED

# A message or a script longer than this is cut, in characters.
LONGEST_TEXT = 20_000
LONGEST_SCRIPT = 100_000

# What names a machine stays out of a published site.
_PRIVATE = ("host", "device_uuid")

_SHOWN = {
    "key", "outcome", "verdict", "why", "checks", "samples", "layouts", "ran_layouts",
    "worst_error", "raises", "message", "repro", "seconds", "worker",
    "example",
}  # fmt: skip
_OTHERS = tuple(each.name for each in dataclasses.fields(CellResult) if each.name not in _SHOWN)


def ingest(path: Path, site: Path) -> str:
    """Read a run and write its files below ``site``. Returns its id.

    Raises RunError where its files are damaged, Refused where it is not a whole run.
    """
    run = read(path)
    manifest = judged(run)
    contract = documents.ContractDocument(_plain(run.document["clauses"]))
    contract_data = msgspec.json.encode(contract)
    contract_hash = hashlib.sha256(contract_data).hexdigest()[:16]
    axis_hash = run.axis.hash
    _both(site, "contracts", contract_hash, contract_data)
    _both(site, "axes", axis_hash, msgspec.json.encode(axes.as_data(run.axis)))
    for shard, data in _shards(run, manifest.deciding):
        documents.write_script(
            site / "data" / "details" / run.id / f"{shard}.js", f"details/{run.id}/{shard}", data
        )
    document = _document(run, axis_hash, contract_hash, manifest.manifest)
    _both(site, "runs", run.id, msgspec.json.encode(document))
    return run.id


def _both(site: Path, folder: str, name: str, data: bytes) -> None:
    """The public file, and the same for the pages. The public one goes last: it says "seen"."""
    documents.write_script(site / "data" / folder / f"{name}.js", f"{folder}/{name}", data)
    documents.write(site / "v1" / folder / f"{name}.json", data)


def _document(
    run: ReadRun, axis: str, contract: str, manifest: documents.Manifest
) -> documents.RunDocument:
    parsed = run.plan.document
    provenance = {
        name: clean(value) if isinstance(value, str) else value
        for name, value in dataclasses.asdict(run.provenance).items()
        if name not in _PRIVATE
    }
    provenance["expectations"] = Path(run.provenance.expectations).name
    return documents.RunDocument(
        format=documents.FORMAT,
        id=run.id,
        sha256=run.sha256,
        provenance=provenance,
        start=run.start.strftime("%Y-%m-%dT%H:%M:%SZ"),
        axis=axis,
        contract=contract,
        codes=run.codes,
        counts=axes.count(run.axis, run.codes),
        checks=sum(run.checks),
        layouts=run.layouts,
        facts={
            clean(name): clean(value) if isinstance(value, str) else value
            for name, value in parsed.facts.items()
        },
        capabilities={
            clean(name): {"declared": state.declared, "probed": state.probed}
            for name, state in parsed.capabilities.items()
        },
        undeclared=_undeclared(run),
        exclusions=[
            documents.Exclusion(
                clean(each.clause), [clean(op) for op in each.ops], clean(each.reason)
            )
            for each in parsed.exclusions
        ],
        manifest=manifest,
        levels=[_level(each) for each in run.levels],
    )


def _level(count: LevelCount) -> documents.Level:
    return documents.Level(
        level=count.level,
        title=clean(count.title),
        version=clean(count.version),
        passed=count.passed,
        listed=count.listed,
        unplanned=count.unplanned,
        clauses=count.clauses,
        open=count.open,
        reached=count.reached,
    )


def _undeclared(run: ReadRun) -> dict[str, list[str]]:
    """Clauses that are checked and do not apply: what they require is not declared."""
    states = run.plan.document.capabilities
    found: dict[str, list[str]] = {}
    for clause in run.document["clauses"]:
        requires = clause.get("requires")
        if clause.get("status") == PLANNED or not isinstance(requires, list):
            continue
        missing = [
            clean(name)
            for name in map(str, requires)
            if name not in states or not states[name].declared
        ]
        if missing and clause["id"] not in run.axis.clauses:
            found[clause["id"]] = missing
    return found


def _shards(run: ReadRun, deciding: Any) -> Iterator[tuple[int, bytes]]:
    """The details of the run's cells, in SHARDS files by operator."""
    shards: dict[int, _Shard] = {}
    groups = groups_in(run.folder)
    for op, _, start, end in axes.slices(run.axis):
        shard = shards.setdefault(axes.shard_of(op), _Shard())
        shard.counts[op] = (run.checks[start:end], run.samples[start:end])
    for position, result in run.told.items():
        shard = shards[axes.shard_of(result.key.op)]
        detail = _detail(run, result, shard, deciding.get(position))
        if (group := groups.get(str(result.key))) is not None:
            detail["group"] = group
        shard.cells[str(position)] = detail
    for number, shard in shards.items():
        yield (
            number,
            msgspec.json.encode(
                {
                    "counts": shard.counts,
                    "cells": shard.cells,
                    "lines": list(shard.lines),
                    "sets": [list(names) for names in shard.sets],
                    "pictures": shard.pictures,
                }
            ),
        )


@dataclasses.dataclass(slots=True)
class _Shard:
    """A file in the making. ``lines`` and ``sets`` are numbered: repro scripts share most lines."""

    counts: dict[str, tuple[list[int], list[int]]] = dataclasses.field(default_factory=dict)
    cells: dict[str, dict[str, Any]] = dataclasses.field(default_factory=dict)
    lines: dict[str, int] = dataclasses.field(default_factory=dict)
    sets: dict[tuple[str, ...], int] = dataclasses.field(default_factory=dict)
    pictures: dict[str, list[dict[str, Any]]] = dataclasses.field(default_factory=dict)

    def picture(self, layout: str) -> None:
        """Note how an example of a failing layout lies."""
        if layout not in self.pictures:
            self.pictures[layout] = [_geometry(each) for each in example(layout)]


def _detail(
    run: ReadRun, result: CellResult, shard: _Shard, blocks: list[int] | None
) -> dict[str, Any]:
    detail: dict[str, Any] = {"seconds": round(result.seconds, 6)}
    for name in ("why", "message", "raises", "repro"):
        text = getattr(result, name)
        if text:
            detail[name] = _cut(clean(text), LONGEST_TEXT)
    if result.layouts:
        detail["layouts"] = [clean(name) for name in result.layouts]
        for name in detail["layouts"]:
            shard.picture(name)
    if result.ran_layouts:
        ran = tuple(map(clean, result.ran_layouts))
        detail["ran"] = shard.sets.setdefault(ran, len(shard.sets))
    if result.worst_error is not None:
        detail["worst"] = f"{result.worst_error:g}"
    if blocks:
        detail["blocks"] = blocks
    script = _script(run.folder, result)
    if script is not None:
        detail["script"] = [
            shard.lines.setdefault(line, len(shard.lines)) for line in script.split("\n")
        ]
        if tensors := of_script(script):
            detail["tensors"] = [_geometry(each) for each in tensors]
    if (smallest := example_of(result)) is not None:
        detail["example"] = smallest
    if more := _more(result):
        detail["more"] = more
    return detail


def _geometry(geometry: Geometry) -> dict[str, Any]:
    return {**msgspec.to_builtins(geometry), "guard": guard_elements(geometry)}


def _more(result: CellResult) -> dict[str, Any]:
    """What later versions of the suite tell of a cell besides, under the names of their fields."""
    found: dict[str, Any] = {}
    for name in _OTHERS:
        value = getattr(result, name)
        if value:
            text = value if isinstance(value, str) else json.dumps(value, default=str, indent=2)
            found[name] = _cut(clean(text), LONGEST_TEXT)
    return found


def _script(folder: Path, result: CellResult) -> str | None:
    """The text of the cell's repro. ``problem_with`` has held its path to be inside the folder."""
    if not result.repro:
        return None
    path = f"{folder}/{result.repro}"
    try:
        with open(path, "rb") as stream:
            if not Path(path).resolve().is_relative_to(folder.resolve()):  # through a link
                return None
            raw = stream.read(LONGEST_SCRIPT + 1)
    except (OSError, ValueError):
        return None  # the run was moved without its repros: the page gives the path alone
    return None if len(raw) > LONGEST_SCRIPT else clean(raw.decode("utf-8", "replace"))


def _cut(text: str, longest: int) -> str:
    if len(text) <= longest:
        return text
    return f"{text[:longest]}\n… and {len(text) - longest:,} more characters"


def _plain(value: Any) -> Any:
    """JSON data with every text cleaned."""
    if isinstance(value, str):
        return clean(value)
    if isinstance(value, list):
        return [_plain(each) for each in value]
    if isinstance(value, dict):
        return {clean(str(name)): _plain(each) for name, each in value.items()}
    return value
