"""A site from runs: read what is new, count, compare, and write every page."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime, timezone
from pathlib import Path

from reports.dashboard import badges, documents, downloads, history, oppages, pages
from reports.dashboard.series import Series, device_document, series_of
from reports.dashboard.sitedata import site_data
from reports.dashboard.store import Site, bring_in, find_runs, open_site
from reports.statuses import table

GENERATOR = "torch-conformance dashboard"


@dataclass(frozen=True, slots=True)
class Options:
    """What the command line asks for. ``details`` is how many runs of a device keep messages and
    repros; ``now`` is what freshness and expiry are measured from."""

    title: str = "Compatibility dashboard"
    skip_refused: bool = False
    fresh: bool = False
    details: int = 2
    jobs: int | None = None
    now: datetime = field(default_factory=lambda: datetime.now(timezone.utc))


@dataclass(frozen=True, slots=True)
class Built:
    """What was built: ``runs`` on the site, of which ``read`` are new; and what was left out."""

    devices: int
    runs: int
    read: int
    refused: tuple[str, ...]


def build(paths: Sequence[Path], folder: Path, options: Options | None = None) -> Built:
    """Build or extend the site in ``folder``.

    Raises RunError (a run's files are damaged), Refused (a run must not be published) and SiteError
    (the folder is not a site's); the site is then as it was.
    """
    options = options or Options()
    site = open_site(folder, fresh=options.fresh)
    bring_in(site, find_runs(paths), skip_refused=options.skip_refused, jobs=options.jobs)
    if not site.runs:
        from reports.dashboard.reading import Refused

        raise Refused("no run is left to publish: " + "; ".join(site.refused))
    series = series_of(site.runs.values())
    _prune(site, series, max(options.details, 1))
    _write(site, series, options)
    return Built(len(series), len(site.runs), len(site.read), tuple(site.refused))


def _write(site: Site, series: Sequence[Series], options: Options) -> None:
    folder = site.folder
    devices = [device_document(each) for each in series]
    pages.copy_assets(folder)
    documents.write_script(
        folder / "data" / "site.js", "site", site_data(site, series, devices, options.now)
    )
    history.write(folder, series, site.axes)
    oppages.write(folder, series, site, options.title)
    pages.write(folder, series, devices, site, options)
    downloads.write(folder, series, site.axes)
    badges.write(folder, devices)
    index = documents.IndexDocument(
        documents.FORMAT,
        GENERATOR,
        options.now.strftime("%Y-%m-%dT%H:%M:%SZ"),
        table(),
        devices,
    )
    documents.write_json(folder / "v1" / "index.json", index)


def _prune(site: Site, series: Sequence[Series], details: int) -> None:
    """Remove what belongs to no run, and the details of all but each device's newest runs."""
    kept = {run.id for each in series for run in each.runs}
    told = {run.id for each in series for run in each.runs[-details:]}
    for folder, names in (
        ("runs", kept), ("axes", set(site.axes)), ("contracts", set(site.contracts)),
    ):  # fmt: skip
        for place, ending in (("v1", "json"), ("data", "js")):
            for path in (site.folder / place / folder).glob(f"*.{ending}"):
                if path.stem not in names:
                    path.unlink()
    for path in (site.folder / "data" / "details").glob("*"):
        if path.name not in told:
            shutil.rmtree(path)
    slugs = {each.slug for each in series}
    for parent in (site.folder / "data" / "history", site.folder / "v1" / "devices"):
        for path in parent.glob("*"):
            if path.name not in slugs:
                shutil.rmtree(path)
