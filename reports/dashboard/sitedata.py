"""What every page knows: the devices and their runs, the letters, and what counts as a change."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import Any

import msgspec

from reports.dashboard.axes import SHARDS
from reports.dashboard.documents import DeviceDocument, RunDocument
from reports.dashboard.series import Series, counted, slug
from reports.dashboard.shapes import COLOURS, SHAPES
from reports.dashboard.store import Site
from reports.diff import MEANING, Change
from reports.diff import table as changes
from reports.statuses import KINDS, Kind, table

# The provenance that a reader of a comparison asks about, the likeliest causes first.
ENVIRONMENT = (
    "torch", "driver", "device_name", "suite_version", "suite_commit", "os", "arch", "python",
    "manifest_hash", "expectations", "plan_hash", "seed", "reference_cache",
)  # fmt: skip


def site_data(
    site: Site, series: Sequence[Series], devices: Sequence[DeviceDocument], now: datetime
) -> bytes:
    """``data/site.js``, as JSON."""
    told = {path.name for path in (site.folder / "data" / "details").glob("*")}
    return msgspec.json.encode(
        {
            "built": now.strftime("%Y-%m-%dT%H:%M:%SZ"),
            "statuses": table(),
            "kinds": [_kind(kind) for kind in KINDS],
            "changes": changes(),
            "changeKinds": [{"name": what.value, "meaning": MEANING[what]} for what in Change],
            "shards": SHARDS,
            "slugs": dict(_slugs(site, series)),
            "devices": [
                {
                    "slug": each.slug,
                    "device": each.device,
                    "name": each.device_name,
                    "plan": each.plan,
                    "levels": document.levels,
                    "runs": [_run(run, run.id in told) for run in each.runs],
                }
                for each, document in zip(series, devices, strict=True)
            ],
        }
    )


def _kind(kind: Kind) -> dict[str, Any]:
    """A kind of status with its shape (an SVG path on 16 x 16, filled by even-odd) and colours."""
    told = {"name": kind.name, "label": kind.label, "meaning": kind.meaning}
    if kind.name not in SHAPES:
        return told
    light, dark = COLOURS[kind.name]
    return {**told, "path": SHAPES[kind.name], "light": light, "dark": dark}


def _run(document: RunDocument, told: bool) -> dict[str, Any]:
    total, _ = counted(document)
    return {
        "id": document.id,
        "start": document.start,
        "environment": {name: document.provenance.get(name, "") for name in ENVIRONMENT},
        "passed": total.passed,
        "judged": total.judged,
        "details": told,
    }


def _slugs(site: Site, series: Sequence[Series]) -> Iterator[tuple[str, str]]:
    """The operators whose pages are not called as they are."""
    for each in series:
        for op, _ in site.axes[each.latest.axis].ops:
            if slug(op) != op:
                yield op, slug(op)
