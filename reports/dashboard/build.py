"""Builds a site: reads the runs that are new, counts their cells, compares runs, and writes every page.

A site keeps the runs that it already has. If several new runs are given, either all of them are added or, if one of
them is refused, none.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from datetime import datetime, timezone
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import TypeVar

import msgspec

from devices.errors import ConformError
from reports.dashboard import documents, pages, svg
from reports.dashboard.axes import Axis
from reports.dashboard.documents import FORMAT, ContractDocument, RunDocument, prune
from reports.dashboard.ingest import Refused, fingerprint, ingest
from reports.dashboard.pages import Site
from reports.dashboard.series import Series, device_document, series_of, write_history
from reports.model import RunError
from reports.run import RECORD_FILE, record_file
from reports.status_letters import table

GENERATOR = "torch-conformance dashboard"


@dataclass(frozen=True, slots=True)
class Options:
    """The options of ``conform dashboard``. ``details`` is the number of newest runs of each device whose messages and
    repro scripts are kept. ``labels`` are published with each run that the build reads. ``now`` is the current time,
    which decides how old a run is and whether a manifest block has expired. ``note`` is a text for the top of the
    overview."""

    title: str = "Compatibility dashboard"
    skip_refused: bool = False
    fresh: bool = False
    details: int = 2
    jobs: int | None = None
    labels: Mapping[str, str] = field(default_factory=dict)
    publish: bool = True
    note: str = ""
    now: datetime = field(default_factory=lambda: datetime.now(timezone.utc))


@dataclass(frozen=True, slots=True)
class Built:
    """The result of ``build``: the number of devices and runs on the site, the number of runs that were ``read`` by the
    build, and the reasons why runs were ``refused``."""

    devices: int
    runs: int
    read: int
    refused: tuple[str, ...]


def build(paths: Sequence[Path], folder: Path, options: Options | None = None) -> Built:
    """Builds or extends the site in ``folder`` from the runs in ``paths``.

    Raises RunError if the files of a run are damaged, Refused if a run must not be published, and SiteError if
    ``folder`` contains anything other than a site. After an error the site is unchanged.
    """
    options = options or Options()
    site = open_site(folder, fresh=options.fresh)
    bring_in(site, find_runs(paths), options)
    if not site.runs:
        raise Refused("no run to publish: " + "; ".join(site.refused))
    series = series_of(site.runs.values())
    _prune(site, series, max(options.details, 1))
    devices = [device_document(each) for each in series]
    write_history(folder, series, site.axes)
    pages.write(folder, series, devices, site, options.title, options.now, options.note)
    documents.write_downloads(folder, [(each.slug, each.latest) for each in series], site.axes)
    svg.write_badges(folder, devices)
    index = documents.IndexDocument(
        FORMAT, GENERATOR, options.now.strftime(documents.INSTANT), table(), devices
    )
    documents.write_json(folder / "v1" / "index.json", index)
    return Built(len(series), len(site.runs), len(site.read), tuple(site.refused))


def _prune(site: Site, series: Sequence[Series], details: int) -> None:
    """Removes files that belong to no run of the site, and the details of all runs except the newest ``details`` runs
    of each device."""
    public, data = site.folder / "v1", site.folder / "data"
    kept = [run.id for each in series for run in each.runs]
    for folder, names in (("runs", kept), ("axes", site.axes), ("contracts", site.contracts)):
        prune(public / folder, "*.json", {f"{name}.json" for name in names})
        prune(data / folder, "*.js", {f"{name}.js" for name in names})
    prune(data / "details", "*", {run.id for each in series for run in each.runs[-details:]})
    for parent in (data / "history", public / "devices"):
        prune(parent, "*", {each.slug for each in series})


# -- the folder

# If all records together are smaller than this, one process is faster than several.
_WORTH_PROCESSES = 2 << 20


class SiteError(ConformError):
    """The error for a folder that is not a dashboard, or for a file of the dashboard that cannot be read or written."""


def open_site(folder: Path, *, fresh: bool) -> Site:
    """Reads the runs of an existing site. If ``fresh`` is true, the site starts without runs.

    Raises SiteError if the folder contains anything other than a site.
    """
    if folder.exists() and not folder.is_dir():
        raise SiteError(f"{folder}: expected a folder for the site, found a file")
    marked = (folder / "v1" / "index.json").exists()
    if folder.exists() and any(folder.iterdir()) and not marked:
        raise SiteError(
            f"{folder}: the folder contains files that do not belong to a dashboard. Choose an empty or a new folder, so that "
            "nothing is overwritten"
        )
    site = Site(folder)
    if fresh:
        return site
    for path in sorted((folder / "v1" / "runs").glob("*.json")):
        document = _decoded(path, RunDocument)
        if document.format != FORMAT:
            raise SiteError(
                f"{path}: expected format {FORMAT}, found {document.format}, because another version built "
                "this site. Build the site again from all runs, with --fresh"
            )
        site.runs[document.id] = document
    _parts(site)
    return site


def bring_in(site: Site, paths: Iterable[Path], options: Options) -> None:
    """Adds the runs that the site does not have yet. The files of the site change only after all new runs were read.

    Raises RunError and Refused. With ``options.skip_refused``, runs that must not be published are listed in ``site.refused``
    instead.
    """
    known = {document.sha256 for document in site.runs.values()}
    wanted: dict[str, Path] = {}
    for path in paths:
        sha256 = fingerprint(path)
        if sha256 not in known:
            wanted.setdefault(sha256, path)
    if not wanted:
        return
    staging = site.folder / f".staging-{os.getpid()}"
    try:
        staging.mkdir(parents=True)
        site.read, site.refused = _ingest_all(list(wanted.values()), staging, options)
        _move(staging, site.folder)
    except OSError as error:
        where = error.filename or site.folder
        raise SiteError(f"{where}: cannot be written: {error.strerror or error}") from None
    finally:
        shutil.rmtree(staging, ignore_errors=True)
    for run in site.read:
        site.runs[run] = _decoded(site.folder / "v1" / "runs" / f"{run}.json", RunDocument)
    _parts(site)


def _ingest_all(
    paths: Sequence[Path], staging: Path, options: Options
) -> tuple[list[str], list[str]]:
    jobs = options.jobs
    read = partial(_ingest, staging=staging, labels=dict(options.labels), publish=options.publish)
    processes = min(jobs or _processors(), len(paths))
    size = sum(record_file(path).stat().st_size for path in paths)
    if processes > 1 and (jobs or size > _WORTH_PROCESSES):
        # Not forked: the caller may have threads (torch, tests).
        with ProcessPoolExecutor(processes, get_context("spawn")) as pool:
            answers = list(pool.map(read, paths))
    else:
        answers = [read(path) for path in paths]
    for answer in answers:
        skipped = options.skip_refused and isinstance(answer, Refused)
        if isinstance(answer, ConformError) and not skipped:
            raise answer
    return (
        [answer for answer in answers if isinstance(answer, str)],
        [str(answer) for answer in answers if isinstance(answer, Refused)],
    )


def _ingest(
    path: Path, staging: Path, labels: Mapping[str, str], publish: bool
) -> str | ConformError:
    """Adds one run to the staging folder, in a worker process. Returns the id of the run, or the error that should be
    shown to the user."""
    try:
        return ingest(path, staging, labels, publish=publish)
    except ConformError as error:
        return error


def _processors() -> int:
    if hasattr(os, "sched_getaffinity"):  # Linux: containers often allow fewer than there are
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _move(staging: Path, folder: Path) -> None:
    """Moves the files from the staging folder into the site. The documents by which a site recognises the runs that it
    has are moved last."""
    files = [path for path in staging.rglob("*") if path.is_file()]
    last = staging / "v1" / "runs"
    for path in sorted(files, key=lambda each: last in each.parents):
        target = folder / path.relative_to(staging)
        target.parent.mkdir(parents=True, exist_ok=True)
        path.replace(target)


def _parts(site: Site) -> None:
    """Loads into the site the axes and contracts to which its runs refer."""
    public, runs = site.folder / "v1", site.runs.values()
    for name in dict.fromkeys(run.axis for run in runs if run.axis not in site.axes):
        site.axes[name] = _decoded(public / "axes" / f"{name}.json", Axis)
    for name in dict.fromkeys(run.contract for run in runs if run.contract not in site.contracts):
        path = public / "contracts" / f"{name}.json"
        site.contracts[name] = _decoded(path, ContractDocument)


_T = TypeVar("_T")


def _decoded(path: Path, kind: type[_T]) -> _T:
    try:
        return msgspec.json.decode(path.read_bytes(), type=kind)
    except OSError as error:
        raise SiteError(f"{path}: cannot be read: {error.strerror or error}") from None
    except msgspec.DecodeError as error:
        raise SiteError(
            f"{path}: the file was changed after the site was built ({error}). Build the site again from all runs, with --fresh"
        ) from None


def find_runs(paths: Iterable[Path]) -> list[Path]:
    """Returns the results folders among ``paths``. A folder without a record is searched for results folders, two
    levels deep.

    Raises RunError if such a folder contains no results folder.
    """
    found: list[Path] = []
    for path in paths:
        if not path.is_dir() or record_file(path).is_file():
            found.append(path)
            continue
        records = (record for deep in ("*", "*/*") for record in path.glob(f"{deep}/{RECORD_FILE}"))
        below = sorted(record.parent for record in records)
        if not below:
            raise RunError(
                f"{path}: neither this folder nor its subfolders contain {RECORD_FILE}. Give the folder that a "
                "run wrote (--results), or a folder that contains such folders"
            )
        found += below
    return found
