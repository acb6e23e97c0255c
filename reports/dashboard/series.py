"""Groups runs into series, one for each device and plan, and computes the history, counts and levels of each series."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import msgspec

from devices.cell import CellKey
from reports.dashboard.axes import SHARDS, Axis, cells_of, shard_of, slices
from reports.dashboard.documents import Count, DeviceDocument, RunDocument, write_script
from reports.diff import Changes, changes
from reports.gate import Tally
from reports.status_letters import tally

_HARMLESS: Final = re.compile(r"[a-z0-9](?:[a-z0-9._-]{0,78}[a-z0-9_-])?")
# Windows cannot have files of these names, whatever their ending.
_RESERVED: Final = re.compile(r"(con|prn|aux|nul|com\d|lpt\d)(\..*)?")


def slug(name: str) -> str:
    """Returns a safe file name for a text: the text itself if it is a safe file name, otherwise the safe characters of
    the text and a hash.

    Different texts get different names, even on file systems that ignore case.
    """
    if _HARMLESS.fullmatch(name) and not _RESERVED.fullmatch(name):
        return name
    kept = re.sub(r"[^a-z0-9._]+", "-", name.lower()).strip("-._")[:40]
    return f"{kept or 'x'}~{_digest(name)}"


def _digest(name: str) -> str:
    return hashlib.sha256(name.encode("utf-8", "surrogatepass")).hexdigest()[:8]


@dataclass(frozen=True, slots=True)
class Series:
    """The runs of one device and plan, oldest run first."""

    slug: str
    device: str
    device_name: str
    plan: str
    runs: tuple[RunDocument, ...]

    @property
    def latest(self) -> RunDocument:
        return self.runs[-1]

    @property
    def previous(self) -> RunDocument | None:
        return self.runs[-2] if len(self.runs) > 1 else None

    @property
    def title(self) -> str:
        return f"{self.device} · {self.plan}"

    def moment(self, run: RunDocument) -> str:
        """The date of one of the runs, with its time (UTC) if another run has the same date."""
        day = run.start[:10]
        shared = sum(each.start.startswith(day) for each in self.runs) > 1
        return run.start[:16].replace("T", " ") if shared else day


def series_of(documents: Iterable[RunDocument]) -> list[Series]:
    """Groups runs by device, device name and plan. The series are sorted by slug.

    The slug of a series is ``device-plan``. If several series have the same device and plan but different device names,
    the series with the earliest run has that slug. The slugs of the other series end with a hash of the device name, so
    that existing slugs never change.
    """
    groups: dict[tuple[str, str, str], list[RunDocument]] = {}
    for document in sorted(documents, key=lambda each: each.id):
        origin = document.provenance
        key = str(origin["device"]), str(origin["plan"]), str(origin["device_name"])
        groups.setdefault(key, []).append(document)
    found: dict[str, Series] = {}
    for (device, plan, name), runs in groups.items():
        chosen = slug(f"{device}-{plan}")
        if chosen in found:
            chosen = f"{chosen}~{_digest(name)}"
        found[chosen] = Series(chosen, device, name, plan, tuple(runs))
    return sorted(found.values(), key=lambda each: each.slug)


def counted(document: RunDocument) -> tuple[Tally, dict[str, Tally]]:
    """Returns the counts of a run's cells as the gate computes them: the counts of all cells, and the counts by clause
    family."""
    families: dict[str, list[Tally]] = {}
    for clause, counts in document.counts.items():
        part = tally(counts)
        if clause in document.provisional:
            part.set_aside()
        families.setdefault(clause.partition(".")[0], []).append(part)
    by_family = {name: Tally.sum(parts) for name, parts in families.items()}
    return Tally.sum(by_family.values()), by_family


def count_of(counts: Tally) -> Count:
    return Count(*(getattr(counts, name) for name in Count.__struct_fields__))


def device_document(series: Series) -> DeviceDocument:
    """Returns the entry of a series in ``v1/index.json``."""
    latest = series.latest
    total, families = counted(latest)
    return DeviceDocument(
        slug=series.slug,
        device=series.device,
        device_name=series.device_name,
        plan=series.plan,
        latest=latest.id,
        runs=[run.id for run in series.runs],
        torch=str(latest.provenance["torch"]),
        driver=str(latest.provenance["driver"]),
        suite=str(latest.provenance["suite_version"]),
        start=latest.start,
        total=count_of(total),
        families={name: count_of(counts) for name, counts in families.items()},
        levels=latest.levels,
    )


def changed(before: RunDocument, after: RunDocument, axes: Mapping[str, Axis]) -> Changes:
    """Returns the cells that changed from one run to another, by kind of change."""
    old, new = _blocks(before, axes), _blocks(after, axes)
    ops = [op for op in sorted({**old, **new}) if old.get(op) != new.get(op)]
    return changes(_letters(old, ops, axes), _letters(new, ops, axes))


_Block = tuple[str, int, str]  # axis, pattern, letters


def _blocks(document: RunDocument, axes: Mapping[str, Axis]) -> dict[str, _Block]:
    return {
        op: (document.axis, pattern, document.codes[start:end])
        for op, pattern, start, end in slices(axes[document.axis])
    }


def _letters(
    blocks: Mapping[str, _Block], ops: Iterable[str], axes: Mapping[str, Axis]
) -> dict[CellKey, str]:
    """Returns the status letter (``reports.status_letters``) of each cell of the given operators."""
    found: dict[CellKey, str] = {}
    for op in ops:
        if op in blocks:
            axis, pattern, letters = blocks[op]
            found.update(zip(cells_of(axes[axis], op, pattern), letters, strict=True))
    return found


# -- the status of every cell in every run, by operator: the page of a cell loads it


def write_history(folder: Path, series: Sequence[Series], axes: Mapping[str, Axis]) -> None:
    """Writes the status letters of every cell in every run. Each series has SHARDS files; the hash of an operator's
    name selects the file that stores the operator.

    Most operators have the same letters in most runs, so each distinct string of letters is stored once. ``ops[op]`` is
    a pair. Its first part lists the distinct [axis, pattern, letters]; its second part has for each run the position of
    its entry in that list, or -1 if the run does not have the operator.
    """
    spans = {name: list(slices(axis)) for name, axis in axes.items()}
    for each in series:
        runs = [run.id for run in each.runs]
        used = list(dict.fromkeys(run.axis for run in each.runs))
        shards: list[dict[str, _History]] = [{} for _ in range(SHARDS)]
        ops: dict[str, _History] = {}
        for position, run in enumerate(each.runs):
            axis, codes = used.index(run.axis), run.codes
            for op, pattern, start, end in spans[run.axis]:
                found = ops.get(op)
                if found is None:
                    found = ops[op] = shards[shard_of(op)][op] = {}, [-1] * len(runs)
                blocks, at = found
                at[position] = blocks.setdefault((axis, pattern, codes[start:end]), len(blocks))
        for place, shard in enumerate(shards):
            listed = {op: (list(blocks), at) for op, (blocks, at) in shard.items()}
            data = msgspec.json.encode({"runs": runs, "axes": used, "ops": listed})
            write_script(folder, f"history/{each.slug}/{place}", data)


#: The distinct blocks of one operator with their numbers, and the number that each run has.
_History = tuple[dict[tuple[int, int, str], int], list[int]]
