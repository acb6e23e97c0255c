"""The site's pages: what each is given, and the scripts and styles beside them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, Protocol

from markupsafe import Markup

from reports.dashboard import charts, documents, markup, oppages, shapes
from reports.dashboard.documents import Block, DeviceDocument, Level, Manifest
from reports.dashboard.series import Changed, Series, changed, counted
from reports.dashboard.store import Site
from reports.diff import MEANING, WORSE, Change
from reports.judgement import Tally

STATIC = Path(__file__).with_name("static")

# Shown of each kind of change on the overview; the page of the comparison has all.
SHOWN = 6


class PageOptions(Protocol):
    """What the pages need of the build's options."""

    @property
    def title(self) -> str: ...
    @property
    def now(self) -> datetime: ...


@dataclass(frozen=True, slots=True)
class Row:
    """A device on the overview."""

    series: Series
    document: DeviceDocument
    total: Tally
    families: dict[str, Tally]
    bars: dict[str, Markup]
    age: int  # days
    changed: Changed | None  # None for a first run

    @property
    def levels(self) -> dict[int, Level]:
        return {each.level: each for each in self.document.levels}


@dataclass(frozen=True, slots=True)
class Health:
    """A device's manifest: its blocks, with what is wrong with each."""

    series: Series
    manifest: Manifest
    blocks: list[tuple[Block, list[str]]]
    expired: int
    stale: int
    without_issue: int
    kinds: dict[str, int]


def copy_assets(folder: Path) -> None:
    """Copy scripts, styles and licences as they are."""
    for path in sorted(STATIC.iterdir()):
        if path.is_file():
            documents.write(folder / "assets" / path.name, path.read_bytes())
    documents.write(folder / "assets" / "statuses.css", shapes.style_sheet().encode())


def write(
    folder: Path,
    series: Sequence[Series],
    devices: Sequence[DeviceDocument],
    site: Site,
    options: PageOptions,
) -> None:
    """Render every page but those of the operators."""
    rows = [_row(each, document, site, options.now) for each, document in zip(series, devices)]
    families = _families(rows, site)
    contract = _newest_contract(series, site)
    shared: dict[str, Any] = {
        "root": "",
        "site_title": options.title,
        "built": options.now.strftime("%Y-%m-%d %H:%M UTC"),
    }
    contexts: dict[str, dict[str, Any]] = {
        "index": {
            "rows": rows, "families": families, "meaning": MEANING, "shown": SHOWN,
            "worse": WORSE, "fixed": Change.FIXED, "runs": len(site.runs),
            "levels": _titles(devices),
        },
        "grid": {}, "explore": {}, "cell": {}, "compare": {},
        "ops": {"series": series, "ops": oppages.index(series, site.axes)},
        "trends": {"trends": [_trend(each) for each in series]},
        "manifest": {"healths": [_health(each, options.now) for each in series]},
        "contract": {
            "families": _by_family(contract),
            "checked": sum(clause.get("status") == "checked" for clause in contract),
            "clauses": len(contract),
        },
        "methodology": {"rows": rows, "meaning": MEANING},
    }  # fmt: skip
    for page, context in contexts.items():
        text = (
            markup.environment().get_template(f"{page}.html").render(page=page, **shared, **context)
        )
        documents.write(folder / f"{page}.html", text.encode("utf-8"))


def _row(series: Series, document: DeviceDocument, site: Site, now: datetime) -> Row:
    total, families = counted(series.latest)
    previous = series.previous
    return Row(
        series,
        document,
        total,
        families,
        {name: charts.bar(counts) for name, counts in families.items()},
        markup.age(series.latest.start, now),
        changed(previous, series.latest, site.axes) if previous is not None else None,
    )


def _families(rows: Sequence[Row], site: Site) -> list[str]:
    """The families with cells on any device, in the order of the contract."""
    having = {name for row in rows for name in row.families}
    known = [
        str(clause.get("family", ""))
        for contract in site.contracts.values()
        for clause in contract.clauses
    ]
    return [name for name in dict.fromkeys([*known, *sorted(having)]) if name in having]


def _titles(devices: Sequence[DeviceDocument]) -> dict[int, str]:
    """The levels that any device's newest run states, by number."""
    found = {each.level: each.title for device in devices for each in device.levels}
    return dict(sorted(found.items()))


def _newest_contract(series: Sequence[Series], site: Site) -> list[dict[str, Any]]:
    newest = max((each.latest for each in series), key=lambda run: run.id)
    return [_clause(clause) for clause in site.contracts[newest.contract].clauses]


def _clause(clause: dict[str, Any]) -> dict[str, Any]:
    """A clause with every key that the page shows, whatever an older suite wrote."""
    listed = {
        name: [str(each) for each in clause.get(name) or []] for name in ("requires", "faults")
    }
    plain = {
        name: str(clause.get(name) or "")
        for name in ("id", "family", "statement", "source", "status", "unit", "since", "level")
    }
    return {**plain, **listed, "provisional": bool(clause.get("provisional"))}


def _by_family(contract: list[dict[str, Any]]) -> dict[str, list[dict[str, Any]]]:
    found: dict[str, list[dict[str, Any]]] = {}
    for clause in contract:
        found.setdefault(clause["family"], []).append(clause)
    return found


def _trend(series: Series) -> dict[str, Any]:
    """One device's runs as lines: all cells, and each family."""
    counts = [counted(run) for run in series.runs]
    families = list(dict.fromkeys(name for _, parts in counts for name in parts))
    whole = _points(series, [total for total, _ in counts])
    small = []
    for family in families:
        points = _points(series, [parts.get(family, Tally()) for _, parts in counts])
        small.append(
            (family, points[-1].counts, charts.line(points, charts.SMALL, f"{family}, not passing"))
        )
    label = f"{series.title}: cells that do not pass, {len(series.runs)} runs"
    return {
        "series": series,
        "chart": charts.line(whole, charts.WIDE, label),
        "families": small,
        "table": [
            (run, total, [parts.get(family) for family in families])
            for run, (total, parts) in reversed(list(zip(series.runs, counts, strict=True)))
        ],
        "names": families,
    }


def _points(series: Series, counts: Sequence[Tally]) -> list[charts.Point]:
    points: list[charts.Point] = []
    before: tuple[str, str] | None = None
    previous = ""
    for run, total in zip(series.runs, counts, strict=True):
        torch, driver = str(run.provenance["torch"]), str(run.provenance["driver"])
        changes = [] if before is None else [
            f"{name} {now}" for name, was, now in (
                ("torch", before[0], torch), ("driver", before[1], driver)
            ) if was != now
        ]  # fmt: skip
        when = datetime.strptime(run.start, "%Y-%m-%dT%H:%M:%SZ").replace(tzinfo=timezone.utc)
        points.append(
            charts.Point(
                when.timestamp(),
                total,
                f"{run.start[:10]}: {total.passed:,} of {total.judged:,} pass; torch {torch}"
                + (f", driver {driver}" if driver else ""),
                ", ".join(changes),
                f"compare.html#a={previous or run.id}&b={run.id}",
            )
        )
        before, previous = (torch, driver), run.id
    return points


def _health(series: Series, now: datetime) -> Health:
    manifest = series.latest.manifest
    today = now.date().isoformat()
    blocks = [(block, _faults(block, today)) for block in manifest.blocks]
    kinds: dict[str, int] = {}
    for block in manifest.blocks:
        name = block.kind or "no kind given"
        kinds[name] = kinds.get(name, 0) + 1
    return Health(
        series,
        manifest,
        blocks,
        sum("expired" in faults for _, faults in blocks),
        sum("stale" in faults for _, faults in blocks),
        sum("without issue" in faults for _, faults in blocks),
        dict(sorted(kinds.items())),
    )


def _faults(block: Block, today: str) -> list[str]:
    """What a reader should look at: past its day, matching nothing, without an issue."""
    found = []
    if block.expires is not None and block.expires < today:
        found.append("expired")
    if block.active and not block.cells:
        found.append("stale")
    if markup.web(block.issue) is None:
        found.append("without issue")
    if not block.active:
        found.append("not on this machine")
    return found
