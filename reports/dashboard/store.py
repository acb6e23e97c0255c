"""The site's folder: the runs that it holds, and new ones brought in all together or not at all."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from multiprocessing import get_context
from pathlib import Path
from typing import TypeVar

import msgspec

from devices.errors import ConformError
from reports.dashboard.axes import Axis
from reports.dashboard.documents import FORMAT, ContractDocument, RunDocument
from reports.dashboard.ingest import ingest
from reports.dashboard.reading import Refused, fingerprint, plan_file
from reports.plan import RunError
from reports.run import PLAN_FILE

# Below this much JUnit, starting processes costs more than they save.
_WORTH_PROCESSES = 8 << 20


class SiteError(ConformError):
    """A folder that is no site of ours, or one that cannot be written."""


@dataclass(slots=True)
class Site:
    """What ``v1/`` of a site holds. ``refused`` are the reasons of runs that were left out."""

    folder: Path
    runs: dict[str, RunDocument] = field(default_factory=dict)
    axes: dict[str, Axis] = field(default_factory=dict)
    contracts: dict[str, ContractDocument] = field(default_factory=dict)
    read: list[str] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)


def open_site(folder: Path, *, fresh: bool) -> Site:
    """Read the runs that a site holds; with ``fresh``, forget them.

    Raises SiteError where the folder holds something that is not a site.
    """
    if folder.exists() and not folder.is_dir():
        raise SiteError(f"{folder}: is a file; expected a folder for the site")
    marked = (folder / "v1" / "index.json").exists()
    if folder.exists() and any(folder.iterdir()) and not marked:
        raise SiteError(
            f"{folder}: holds files, and none of a site: choose an empty folder, so that nothing "
            "of yours is overwritten"
        )
    site = Site(folder)
    if fresh:
        return site
    for path in sorted((folder / "v1" / "runs").glob("*.json")):
        document = _decoded(path, RunDocument)
        if document.format != FORMAT:
            raise SiteError(
                f"{path}: of format {document.format}, expected {FORMAT}: it was built by another "
                "version; build with --fresh from all runs"
            )
        site.runs[document.id] = document
    _parts(site)
    return site


def bring_in(site: Site, paths: Iterable[Path], *, skip_refused: bool, jobs: int | None) -> None:
    """Read the runs that the site does not hold. The site's files are touched once all are read.

    Raises RunError and Refused; with ``skip_refused`` refusals are noted instead.
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
        site.read, site.refused = _ingest_all(list(wanted.values()), staging, skip_refused, jobs)
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
    paths: Sequence[Path], staging: Path, skip_refused: bool, jobs: int | None
) -> tuple[list[str], list[str]]:
    processes = min(jobs or _processors(), len(paths))
    if processes > 1 and (jobs or _size(paths) > _WORTH_PROCESSES):
        # Not forked: the caller may have threads (torch, tests).
        with ProcessPoolExecutor(processes, get_context("spawn")) as pool:
            answers = list(pool.map(_ingest, paths, [staging] * len(paths)))
    else:
        answers = [_ingest(path, staging) for path in paths]
    for answer in answers:
        if isinstance(answer, ConformError) and not (skip_refused and isinstance(answer, Refused)):
            raise answer
    return (
        [answer for answer in answers if isinstance(answer, str)],
        [str(answer) for answer in answers if isinstance(answer, Refused)],
    )


def _ingest(path: Path, staging: Path) -> str | ConformError:
    """Ingest in a worker process. Errors for people go back as values."""
    try:
        return ingest(path, staging)
    except ConformError as error:
        return error


def _processors() -> int:
    if hasattr(os, "sched_getaffinity"):  # Linux: containers often allow fewer than there are
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _size(paths: Iterable[Path]) -> int:
    return sum(
        junit.stat().st_size for path in paths for junit in plan_file(path).parent.glob("*.xml")
    )


def _move(staging: Path, folder: Path) -> None:
    """Move files to their places, those that say "this run is here" last."""
    files = [path for path in staging.rglob("*") if path.is_file()]
    last = staging / "v1" / "runs"
    for path in sorted(files, key=lambda each: last in each.parents):
        target = folder / path.relative_to(staging)
        target.parent.mkdir(parents=True, exist_ok=True)
        path.replace(target)


def _parts(site: Site) -> None:
    """The axes and contracts that the runs name."""
    for document in site.runs.values():
        folder = site.folder / "v1"
        if document.axis not in site.axes:
            site.axes[document.axis] = _decoded(folder / "axes" / f"{document.axis}.json", Axis)
        if document.contract not in site.contracts:
            site.contracts[document.contract] = _decoded(
                folder / "contracts" / f"{document.contract}.json", ContractDocument
            )


_T = TypeVar("_T")


def _decoded(path: Path, kind: type[_T]) -> _T:
    try:
        return msgspec.json.decode(path.read_bytes(), type=kind)
    except OSError as error:
        raise SiteError(f"{path}: cannot be read: {error.strerror or error}") from None
    except msgspec.DecodeError as error:
        raise SiteError(
            f"{path}: not what was built ({error}): build with --fresh from all runs"
        ) from None


def find_runs(paths: Iterable[Path]) -> list[Path]:
    """The results folders that are named, or that lie below a named folder, two levels at most."""
    found: list[Path] = []
    for path in paths:
        if not path.is_dir() or plan_file(path).is_file():
            found.append(path)
            continue
        below = sorted(
            {plan.parent for deep in ("*", "*/*") for plan in path.glob(f"{deep}/{PLAN_FILE}")}
        )
        if not below:
            raise RunError(
                f"{path}: holds no {PLAN_FILE}, and no folder in it does: expected the folder that "
                "a run wrote with --results, or a folder of such folders"
            )
        found += below
    return found
