"""Merges the shards of a run, and refuses shards of different runs. The module writes no files.

Shards belong to one run if they have the same plan, torch, driver, device, manifest and selection. A cell that several
shards ran (every shard runs the identity cells, which identify the device) must have the same result in all of them. If
the results differ, the shards ran on different devices, or on an unreliable one.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, Final

import msgspec

from devices.cell import CellKey, Outcome
from reports.model import (
    CellResult,
    Plan,
    PlanDocument,
    Provenance,
    Run,
    RunError,
    fold,
    problem_with,
)

#: The fields that must be the same in all shards, the likeliest causes of a mix-up first.
_SAME: Final = (
    *("plan_hash", "plan", "device", "torch", "driver", "device_name", "suite_version"),
    *("manifest_hash", "partial", "seed", "os", "arch"),
)
#: The value of a field of the merged run if the shards differ in it; other fields are left empty.
_DIFFER: Final = {"reference_cache": "mixed"}
#: Fields of the plan's document that may differ from shard to shard.
_OWN: Final = frozenset({"selected", "facts", "untried"})
_SHARD: Final = re.compile(r"(\d{1,6})/(\d{1,6})", re.ASCII)


class CannotMerge(RunError):
    """The error for runs that are not shards of one run. The text of the error says in what they differ."""


@dataclass(frozen=True, slots=True)
class Merged:
    """The merged run, which ``write_run`` can write: its parameter ``plan`` takes ``document``, and its parameter
    ``like`` takes ``plan``. ``absent`` has the numbers of the shards that were not given, ``missing`` the planned cells
    without an outcome, in plan order."""

    document: PlanDocument
    provenance: Provenance
    results: dict[CellKey, CellResult]
    plan: Plan
    absent: tuple[int, ...]
    missing: tuple[CellKey, ...]


def merge(runs: Sequence[Run]) -> Merged:
    """Merges the given shards of a run. Their order does not matter, and some shards may be missing. Raises
    CannotMerge."""
    if not runs:
        raise CannotMerge(
            "there is nothing to merge: expected the results folders of a run's shards"
        )
    numbered = _numbered(runs)
    for run in runs[1:]:
        _same(runs[0], run)
    count = _shard(runs[0])[1]
    absent = tuple(number for number in range(1, count + 1) if number not in numbered)
    ordered = [numbered[number] for number in sorted(numbered)]
    results = _joined(ordered)
    first = ordered[0]
    selected = None
    planned: Iterable[CellKey] = first.parsed.cells
    if first.provenance.partial:
        chosen = {cell for run in runs for cell in run.parsed.selected}
        planned = [cell for cell in first.parsed.cells if cell in chosen]
        selected = fold(planned)
    untried: dict[str, dict[str, str]] = {}
    for run in ordered:
        for clause, of_op in run.plan.untried.items():
            untried.setdefault(clause, {}).update(of_op)
    document = msgspec.structs.replace(first.plan, selected=selected, untried=untried)
    missing = tuple(cell for cell in planned if cell not in results)
    provenance = _provenance([run.provenance for run in ordered], absent)
    return Merged(document, provenance, results, first.parsed, absent, missing)


def _shard(run: Run) -> tuple[int, int]:
    said = run.provenance.shard
    match = _SHARD.fullmatch(said)
    if match is None or not 1 <= int(match[1]) <= int(match[2]):
        what = (
            f"{run.folder} states the shard number {said!r}"
            if said
            else f"{run.folder} is a whole run, not a shard"
        )
        raise CannotMerge(f"{what}; expected a run with --shard I/N")
    return int(match[1]), int(match[2])


def _numbered(runs: Sequence[Run]) -> dict[int, Run]:
    """Returns the shards by number. Raises CannotMerge if a shard is given twice, or if the shards state different
    numbers of shards."""
    found: dict[int, Run] = {}
    count = _shard(runs[0])[1]
    for run in runs:
        number, of = _shard(run)
        if of != count:
            raise CannotMerge(
                f"{run.folder} is shard {number}/{of}, but {runs[0].folder} is one of {count} shards: expected shards "
                "of one run, which have the same N in --shard I/N"
            )
        if number in found:
            raise CannotMerge(
                f"{run.folder} and {found[number].folder} are both shard {number}/{of}: give each shard once"
            )
        found[number] = run
    return found


def _same(one: Run, other: Run) -> None:
    refused = f"{one.folder} and {other.folder} are not shards of one run: "
    for name in _SAME:
        here, there = getattr(one.provenance, name), getattr(other.provenance, name)
        if here != there:
            raise CannotMerge(
                f"{refused}{name} is {here!r} in the first run and {there!r} in the second run"
            )
    for name in one.plan.__struct_fields__:
        if name not in _OWN and getattr(one.plan, name) != getattr(other.plan, name):
            raise CannotMerge(f"{refused}their plans differ in {name!r}")


def _joined(runs: Sequence[Run]) -> dict[CellKey, CellResult]:
    """Returns the results of all shards by cell. If a shard was to run a cell and has no outcome for it, the merged
    run has no outcome for that cell either, because that shard may have run on a different device."""
    found: dict[CellKey, CellResult] = {}
    for run in runs:
        for cell, result in run.results.items():
            before = found.setdefault(cell, result)
            ran = Outcome.NOT_RUN not in (before.outcome, result.outcome)
            if before is not result and ran and _comparable(before) != _comparable(result):
                origin = next(each for each in runs if each.results.get(cell) is before)
                raise CannotMerge(
                    f"{origin.folder} and {run.folder} disagree on {cell}: "
                    f"{before.outcome} ({before.verdict}) and {result.outcome} ({result.verdict}). "
                    "The shards ran on different devices, or the device is unreliable"
                )
    for run in runs:
        for cell in run.parsed.selected:
            own = run.results.get(cell)
            if own is None or own.outcome is Outcome.NOT_RUN:
                found.pop(cell, None)
    return found


def _comparable(result: CellResult) -> object:
    rest = (result.rest.outcome, result.rest.layouts) if result.rest is not None else None
    return result.outcome, result.verdict, result.layouts, rest, problem_with(result)


def _provenance(origins: Sequence[Provenance], absent: tuple[int, ...]) -> Provenance:
    """Returns the provenance of the merged run: its start is that of the first shard, and it names the hosts of all
    shards."""
    first = origins[0]
    hosts = dict.fromkeys(host for origin in origins for host in origin.host.split(", ") if host)
    changed: dict[str, Any] = {}
    for field in fields(Provenance):
        if field.name not in _SAME:
            values = {getattr(origin, field.name) for origin in origins}
            changed[field.name] = values.pop() if len(values) == 1 else _DIFFER.get(field.name, "")
    changed |= {"start": min(each.start for each in origins), "host": ", ".join(hosts), "shard": ""}
    if absent:  # so that the gate refuses the run even if no cell is missing
        numbers = ",".join(origin.shard.partition("/")[0] for origin in origins)
        changed["shard"] = f"{numbers}/{first.shard.partition('/')[2]}"
    return replace(first, **changed)
