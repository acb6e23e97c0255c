"""Writes the pages of a site, and the scripts and styles that the pages load."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from html import escape
from pathlib import Path
from typing import NamedTuple
from urllib.parse import quote, urlencode

import msgspec
from markupsafe import Markup

from reports.dashboard import documents, markup, svg
from reports.dashboard.alarms import Alarm, alarm_of, kind_of, urgency
from reports.dashboard.axes import SHARDS, Axis, letters_in, slices
from reports.dashboard.documents import DeviceDocument, RunDocument
from reports.dashboard.replays import MEANING as MEANING_OF_CALLS
from reports.dashboard.replays import SHAPE
from reports.dashboard.replays import Page as Replayed
from reports.dashboard.replays import pages_of as replays_of
from reports.dashboard.series import Series, changed, counted, slug
from reports.dashboard.suspects import suspect_causes
from reports.diff import MEANING, WORSE, Change, Changes
from reports.diff import table as changes
from reports.gate import Level, Tally
from reports.status_letters import ABSENT, KIND_OF, KINDS, LABELS, Status, tally
from reports.status_letters import table as statuses

STATIC = Path(__file__).with_name("static")

# The most cells of each kind of change on the overview. The pages that it links to show all.
SHOWN = 6

# The most causes on the first screen of the overview, of all devices and of one; a device has at least two.
CAUSES_IN_VIEW = 14
CAUSES_OF_DEVICE = 6

# The group of manifest blocks that do nothing in a run.
UNUSED = "expired, or without a cell in this plan"

# The most causes on the page of all causes that are not folded away.
CAUSES_OPEN = 36


@dataclass(slots=True)
class Site:
    """The runs, axes and contracts of a site, by id. ``read`` has the ids of the runs that the current build added,
    ``refused`` the reasons why runs were left out."""

    folder: Path
    runs: dict[str, RunDocument] = field(default_factory=dict)
    axes: dict[str, Axis] = field(default_factory=dict)
    contracts: dict[str, documents.ContractDocument] = field(default_factory=dict)
    read: list[str] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Row:
    """A device's row on the overview page."""

    series: Series
    document: DeviceDocument
    total: Tally
    families: dict[str, Tally]
    age: int  # days
    changed: Changes | None  # None for a first run

    @property
    def levels(self) -> dict[int, Level]:
        return {each.level: each for each in self.document.levels}


@dataclass(frozen=True, slots=True)
class Health:
    """The state of a device's manifest: each block with its problems, and the number of blocks with each problem."""

    series: Series
    manifest: documents.Manifest
    blocks: list[tuple[documents.Block, list[str]]]
    faults: Counter[str]

    @property
    def groups(self) -> dict[str, list[tuple[documents.Block, list[str]]]]:
        """The blocks as the page shows them: those that are expired or match no cell, then those of each kind."""
        found: dict[str, list[tuple[documents.Block, list[str]]]] = {}
        for block, faults in self.blocks:
            unused = {"expired", "stale"}.intersection(faults)
            name = UNUSED if unused else block.kind or "no kind given"
            found.setdefault(name, []).append((block, faults))
        return dict(sorted(found.items(), key=lambda each: (each[0] != UNUSED, each[0])))


def write(
    folder: Path,
    series: Sequence[Series],
    devices: Sequence[DeviceDocument],
    site: Site,
    title: str,
    now: datetime,
    note: str = "",
) -> None:
    """Writes every page of a site, and the scripts, styles and data that all pages load. ``note`` stands on the
    overview."""
    for path in sorted(STATIC.iterdir()):
        if path.is_file():
            documents.write(folder / "assets" / path.name, path.read_bytes())
    documents.write(folder / "assets" / "statuses.css", svg.style_sheet().encode())
    rows = [_row(each, document, site, now) for each, document in zip(series, devices)]
    alarms = _alarms(rows, site)
    urgent = alarms[0].series.slug
    documents.write_script(folder, "site", site_data(site, series, devices, urgent, now))
    documents.write_script(folder, "search", search_index(site, series))
    lacking = [(each, text) for each in series for text in each.latest.lacking]
    ops = _write_op_pages(folder, series, site, title, lacking)
    replays = replays_of(series)
    _write_replays(folder, replays, title)
    levels = dict(sorted((each.level, each.title) for one in devices for each in one.levels))
    newest = max((each.latest for each in series), key=lambda run: run.id)
    suspects = suspect_causes(series, site.axes)
    shared = {
        "root": "",
        "is_suspect": lambda each, cause: (each.slug, cause.example) in suspects,
        "site_title": title,
        "built": now.strftime("%Y-%m-%d %H:%M UTC"),
        "lacking": lacking,
    }
    contexts: dict[str, dict[str, object]] = {
        "index": {
            "rows": rows, "families": _families(rows, site), "meaning": MEANING, "shown": SHOWN,
            "worse": WORSE, "fixed": Change.FIXED, "runs": len(site.runs),
            "parts": sum(bool(run.lacking) for run in site.runs.values()), "note": note,
            "levels": levels, "bar": svg.bar, "replays": replays, **_board(rows, alarms),
        },
        "grid": {}, "explore": {}, "cell": {}, "compare": {}, "cause": {}, "bug": {},
        "ops": {"series": series, "groups": _grouped(ops, site, series), "count": len(ops)},
        "trends": {"trends": [_trend(each) for each in series]},
        "causes": {"series": series, "kind_of": kind_of, "open": max(CAUSES_OPEN // len(series), 3)},
        "bugs": {"reports": _reports(series), "series": series},
        "manifest": {"healths": [_health(each, now) for each in series]},
        "contract": {"clauses": site.contracts[newest.contract].clauses},
        "methodology": {"rows": rows, "meaning": MEANING},
    }  # fmt: skip
    for page, context in contexts.items():
        text = markup.render(f"{page}.html", page=page, **shared, **context)
        documents.write(folder / f"{page}.html", text.encode("utf-8"))


def _row(series: Series, document: DeviceDocument, site: Site, now: datetime) -> Row:
    total, families = counted(series.latest)
    previous = series.previous
    return Row(
        series,
        document,
        total,
        families,
        max((now - markup.instant(series.latest.start)).days, 0),
        changed(previous, series.latest, site.axes) if previous is not None else None,
    )


def _board(rows: Sequence[Row], alarms: Sequence[Alarm]) -> dict[str, object]:
    """Returns what the first screen of the overview shows: each device's alarm with its row, the most urgent device
    first, and how many causes of each device fit on it."""
    of_device = {row.series.slug: row for row in rows}
    each = CAUSES_IN_VIEW // max(sum(alarm.red for alarm in alarms), 1)
    return {
        "board": [(alarm, of_device[alarm.series.slug]) for alarm in alarms],
        "shown_causes": max(2, min(each, CAUSES_OF_DEVICE)),
    }


def _alarms(rows: Sequence[Row], site: Site) -> list[Alarm]:
    """Returns an ``Alarm`` for each device: the cells of its newest run that need attention. The most urgent device
    comes first."""
    found = [
        alarm_of(row.series, row.changed or {}, site.axes[row.series.latest.axis]) for row in rows
    ]
    return sorted(found, key=urgency)


def _families(rows: Sequence[Row], site: Site) -> list[str]:
    """Returns the clause families that have cells on any device, in the order of the contract."""
    having = {name for row in rows for name in row.families}
    known = [clause.family for contract in site.contracts.values() for clause in contract.clauses]
    return [name for name in dict.fromkeys([*known, *sorted(having)]) if name in having]


@dataclass(frozen=True, slots=True)
class Report:
    """A public bug, and the devices whose newest run is about it: each with its entry in the run, and the reasons that
    its manifest gives."""

    name: str
    url: str
    backend: str
    devices: list[tuple[Series, documents.PublicBug, list[str]]]

    @property
    def listed(self) -> bool:
        """True if the manifest of a device names the bug."""
        return any(bug.blocks for _, bug, _ in self.devices)

    @property
    def cells(self) -> int:
        """The number of cells, of all devices, that fail as the manifests say or, if none does, that would find the
        bug elsewhere."""
        places = (bug.expected if self.listed else bug.seen for _, bug, _ in self.devices)
        return sum(map(len, places))


def _reports(series: Sequence[Series]) -> list[Report]:
    """Returns the public bugs of the newest runs. Bugs that a manifest names come first, those with most cells first."""
    found: dict[str, Report] = {}
    for each in series:
        blocks = each.latest.manifest.blocks
        for bug in each.latest.bugs:
            report = found.setdefault(bug.url, Report(bug.name, bug.url, bug.backend, []))
            reasons = list(dict.fromkeys(blocks[number].reason for number in bug.blocks))
            report.devices.append((each, bug, reasons))
    return sorted(found.values(), key=lambda each: (not each.listed, -each.cells, each.name))


@dataclass(frozen=True, slots=True)
class Trend:
    """The number of cells that do not pass in each run of a device, shown as a chart for all cells (``narrow`` is that
    for phones), a chart for each clause family of which a cell failed in some run, and a table. ``calm`` are the families
    of which every judged cell passed, ``untried`` those without a judged cell."""

    series: Series
    chart: Markup
    narrow: Markup
    families: list[tuple[str, Tally, Markup]]
    calm: list[str]
    untried: list[str]
    names: list[str]
    table: list[tuple[RunDocument, Tally, list[Tally | None]]]


def _trend(series: Series) -> Trend:
    counts = [counted(run) for run in series.runs]
    dates = [series.moment(run) for run in series.runs]
    families = list(dict.fromkeys(name for _, parts in counts for name in parts))
    small: list[tuple[str, Tally, Markup]] = []
    calm: list[str] = []
    untried: list[str] = []
    for family in families:
        of_family = [parts.get(family, Tally()) for _, parts in counts]
        if all(count.judged == count.passed for count in of_family):
            (calm if any(count.judged for count in of_family) else untried).append(family)
            continue
        points = _points(series, dates, of_family)
        chart = svg.line(points, svg.SMALL, f"{family}: cells that do not pass")
        small.append((family, points[-1].counts, chart))
    label = (
        f"{series.title}: cells that do not pass, run by run (number of runs: {len(series.runs)})"
    )
    points = _points(series, dates, [total for total, _ in counts])
    chart, narrow = (svg.line(points, size, label) for size in (svg.WIDE, svg.NARROW))
    table = [
        (run, total, [parts.get(family) for family in families])
        for run, (total, parts) in zip(series.runs, counts, strict=True)
    ]
    return Trend(series, chart, narrow, small, calm, untried, families, table[::-1])


def _points(series: Series, dates: Sequence[str], counts: Sequence[Tally]) -> list[svg.Point]:
    points: list[svg.Point] = []
    before = series.runs[0]
    one_day = before.start[:10] == series.latest.start[:10]
    for run, day, total in zip(series.runs, dates, counts, strict=True):
        origin = run.provenance
        changes = [
            f"{name} {origin[name]}"
            for name in ("torch", "driver")
            if origin[name] != before.provenance[name]
        ]
        note = f"{day}: {total.passed:,} of {total.judged:,} pass; torch {origin['torch']}"
        date = run.start[11:16] if one_day and len(series.runs) > 1 else day
        if origin["driver"]:
            note += f", driver {origin['driver']}"
        href = f"compare.html#a={before.id}&b={run.id}"
        when = markup.instant(run.start).timestamp()
        note += "".join(f"; {text}" for text in markup.label_texts(run.labels))
        points.append(svg.Point(when, date, total, note, ", ".join(changes), href))
        before = run
    return points


def _health(series: Series, now: datetime) -> Health:
    manifest = series.latest.manifest
    today = now.date().isoformat()
    blocks = [(block, _faults(block, today)) for block in manifest.blocks]
    faults = Counter(fault for _, found in blocks for fault in found)
    return Health(series, manifest, blocks, faults)


def _faults(block: documents.Block, today: str) -> list[str]:
    """Returns the problems of a manifest block: the block is expired, matches no planned cell, has no issue, or does
    not apply to the machine of the run."""
    faults = {
        "expired": block.expires is not None and block.expires < today,
        "stale": block.active and not block.cells,
        "without issue": markup.web(block.issue) is None,
        "does not apply to this machine": not block.active,
    }
    return [fault for fault, holds in faults.items() if holds]


# -- the page of each replayed program, which needs no scripts


def _write_replays(folder: Path, replays: Sequence[Replayed], title: str) -> None:
    """Writes ``replay/<slug>.html`` for each program that was replayed on a device, and removes the pages of
    programs that are no longer on the site."""
    for each in replays:
        text = markup.render(
            "replay.html", page="replay", root="../", site_title=title, replayed=each,
            meaning=MEANING_OF_CALLS, shape=SHAPE,
        )  # fmt: skip
        documents.write(folder / "replay" / f"{each.slug}.html", text.encode("utf-8"))
    documents.prune(folder / "replay", "*.html", {f"{each.slug}.html" for each in replays})


# -- the page of each operator, which needs no scripts: every clause and dtype on every device


@dataclass(frozen=True, slots=True)
class Table:
    """The cells of one operator on a device. ``body`` is safe markup, made of constants and escaped names."""

    series: Series
    counts: Tally
    dtypes: list[str]
    body: Markup


@dataclass(frozen=True, slots=True)
class OpLink:
    """An operator in the list of operators. ``counts`` has an entry for each series; the entry is None if the series
    does not have the operator."""

    name: str
    slug: str
    counts: list[Tally | None]  # by series


@dataclass(frozen=True, slots=True)
class OpGroup:
    """A family in the list of operators: operators of one family, or the cases of one clause family. ``failing`` has
    the number of cells that do not pass for each device that has any."""

    name: str
    cases: bool
    ops: list[OpLink]
    failing: list[tuple[Series, int]]


# Families with fewer operators stand together in the list of operators.
_SMALL_FAMILY = 3


def _grouped(ops: Sequence[OpLink], site: Site, series: Sequence[Series]) -> list[OpGroup]:
    """Returns the operators and cases by family: first the operators, then the cases."""
    of_op: dict[str, tuple[bool, str]] = {}
    for axis in (site.axes[each.latest.axis] for each in series):
        for name, pattern in axis.ops:
            case, clause = _is_case(axis, pattern), axis.clauses[axis.patterns[pattern][0][0]]
            family = clause.partition(".")[0] if case else axis.families.get(name, "")
            if family or name not in of_op:
                of_op[name] = case, family
    sizes = Counter(of_op.values())
    groups: dict[tuple[bool, str], list[OpLink]] = {}
    for op in ops:
        case, family = of_op[op.name]
        small = not case and sizes[case, family] < _SMALL_FAMILY
        groups.setdefault((case, "" if small else family), []).append(op)

    def place(key: tuple[bool, str]) -> tuple[bool, bool, str]:
        return key[0], not key[1], key[1]

    return [
        OpGroup(
            name or "other operators",
            case,
            groups[case, name],
            _failing(groups[case, name], series),
        )
        for case, name in sorted(groups, key=place)
    ]


def _is_case(axis: Axis, pattern: int) -> bool:
    """True if the cells of a pattern are those of a case, which have no dtype."""
    _, dtypes = axis.patterns[pattern][0]
    return axis.dtypes[dtypes[0]].partition("@")[0] == ""


def _failing(ops: Sequence[OpLink], series: Sequence[Series]) -> list[tuple[Series, int]]:
    found = []
    for place, each in enumerate(series):
        counts = [op.counts[place] for op in ops]
        failing = sum(one.judged - one.passed for one in counts if one is not None)
        if failing:
            found.append((each, failing))
    return found


def _write_op_pages(
    folder: Path,
    series: Sequence[Series],
    site: Site,
    title: str,
    lacking: Sequence[tuple[Series, str]],
) -> list[OpLink]:
    """Writes ``op/<slug>.html`` for each operator of the newest runs, and removes the pages of other operators.
    ``lacking`` says what the runs lack to be complete."""
    axes = [site.axes[each.latest.axis] for each in series]
    spans = [{op: span for op, *span in slices(axis)} for axis in axes]
    rows = [_rows(axis) for axis in axes]
    links = []
    for op in sorted({op for of_series in spans for op in of_series}):
        tables = []
        for each, of_series, patterns in zip(series, spans, rows, strict=True):
            if op in of_series:
                pattern, start, end = of_series[op]
                tables.append(_table(each, op, patterns[pattern], each.latest.codes[start:end]))
        counts = {table.series.slug: table.counts for table in tables}
        links.append(OpLink(op, slug(op), [counts.get(each.slug) for each in series]))
        text = markup.render(
            "op.html",
            page="op",
            root="../",
            site_title=title,
            op=op,
            tables=tables,
            lacking=lacking,
        )
        documents.write(folder / "op" / f"{slug(op)}.html", text.encode("utf-8"))
    documents.prune(folder / "op", "*.html", {f"{link.slug}.html" for link in links})
    return links


class _Rows(NamedTuple):
    """The part of an operator's table that is the same for all operators with the same clauses and dtypes (a pattern of
    the axis): the dtypes, and for each clause its name, the beginning of its row and the columns in which it has cells."""

    dtypes: list[str]
    clauses: list[tuple[str, str, list[int]]]


def _rows(axis: Axis) -> list[_Rows]:
    """Returns the parts of the operator tables that are the same for all operators with a pattern, one part for each
    pattern of the axis."""
    made = []
    for pattern in axis.patterns:
        used = sorted({dtype for _, dtypes in pattern for dtype in dtypes})
        place = {dtype: column for column, dtype in enumerate(used)}
        clauses = []
        for clause, dtypes in pattern:
            id_ = axis.clauses[clause]
            name = escape(id_)
            head = f'<tr><th scope="row"><a href="../contract.html#{name}">{name}</a>'
            clauses.append((id_, head, [place[dtype] for dtype in dtypes]))
        made.append(_Rows([axis.dtypes[dtype] for dtype in used], clauses))
    return made


_SQUARES = {
    code: f'<td class="k-{kind}"><i>{LABELS[kind]}</i>' if code != ABSENT else "<td>"
    for code, kind in KIND_OF.items()
}

# Cells with one of these kinds of status link to their pages. The others are not links, so that the pages of large plans stay small.
_LINKED = {
    code: f'<td class="k-{kind}"><a href="../cell.html#%s"><i>{LABELS[kind]}</i></a>'
    for code, kind in KIND_OF.items()
    if kind not in ("pass", "undeclared", "absent", "not-run")
}


def _table(series: Series, op: str, rows: _Rows, codes: str) -> Table:
    parts: list[str] = []
    letters = iter(codes)
    for clause, head, columns in rows.clauses:
        row = ["<td>"] * len(rows.dtypes)
        for column, code in zip(columns, letters):
            if code in _LINKED:
                names = {
                    "device": series.slug, "clause": clause, "op": op, "dtype": rows.dtypes[column],
                }  # fmt: skip
                row[column] = _LINKED[code] % escape(urlencode(names, quote_via=quote, safe=""))
            else:
                row[column] = _SQUARES[code]
        parts += [head, *row]
    return Table(series, tally(letters_in(codes)), rows.dtypes, Markup("".join(parts)))


# -- data that every page loads

# The provenance that a comparison shows, the likeliest causes of a difference first.
ENVIRONMENT = (
    "torch", "driver", "device_name", "suite_version", "suite_commit", "os", "arch", "python",
    "manifest_hash", "expectations", "plan_hash", "seed", "reference_cache",
    "left_behind",
)  # fmt: skip


class _Change(msgspec.Struct):
    name: str
    meaning: str


class _Run(msgspec.Struct):
    id: str
    start: str
    environment: dict[str, str | int | bool]
    passed: int
    judged: int
    details: bool
    labels: dict[str, str]


class _Device(msgspec.Struct):
    slug: str
    device: str
    name: str
    plan: str
    levels: list[Level]
    runs: list[_Run]


class _SiteData(msgspec.Struct, rename="camel"):
    """The content of ``data/site.js``, which every page needs: devices and runs, the meaning of the status letters, and
    the kinds of change. ``urgent`` is the device on which pages open whose address names none."""

    built: str
    statuses: list[dict[str, str]]
    kinds: tuple[Status, ...]
    changes: dict[str, str]
    change_kinds: list[_Change]
    shards: int
    slugs: dict[
        str, str
    ]  # the file name of each operator's page, where it is not the operator's name
    urgent: str
    devices: list[_Device]


def site_data(
    site: Site,
    series: Sequence[Series],
    devices: Sequence[DeviceDocument],
    urgent: str,
    now: datetime,
) -> bytes:
    """Returns the content of ``data/site.js`` as JSON."""
    told = {path.name for path in (site.folder / "data" / "details").glob("*")}
    ops = (op for each in series for op, _ in site.axes[each.latest.axis].ops)
    slugs = {op: slug(op) for op in ops if slug(op) != op}
    return msgspec.json.encode(
        _SiteData(
            now.strftime(documents.INSTANT),
            statuses(),
            KINDS,
            changes(),
            [_Change(what.value, meaning) for what, meaning in MEANING.items()],
            SHARDS,
            slugs,
            urgent,
            [
                _Device(
                    each.slug, each.device, each.device_name, each.plan, document.levels,
                    [_run(run, run.id in told) for run in each.runs],
                )
                for each, document in zip(series, devices, strict=True)
            ],
        )
    )  # fmt: skip


def _run(document: RunDocument, told: bool) -> _Run:
    total, _ = counted(document)
    environment = {name: document.provenance.get(name, "") for name in ENVIRONMENT}
    return _Run(
        document.id, document.start, environment, total.passed, total.judged, told, document.labels
    )


# -- what the search box of every page finds


class _Named(msgspec.Struct):
    """A cause or a public bug that the search box finds. ``cells`` counts its cells on all devices, ``devices`` are
    positions in ``_Index.devices``."""

    id: str
    text: str
    cells: int
    devices: list[int]
    note: str


class _Index(msgspec.Struct):
    """The content of ``data/search.js``: the names on the newest runs. ``slugs`` has the file names of the pages of
    operators and cases whose name is no file name. A device is its slug, its title, the axis of its newest run, and its
    name."""

    ops: list[str]
    cases: list[str]
    slugs: dict[str, str]
    clauses: list[str]
    causes: list[_Named]
    bugs: list[_Named]
    devices: list[tuple[str, str, str, str]]


def search_index(site: Site, series: Sequence[Series]) -> bytes:
    """Returns the content of ``data/search.js`` as JSON."""
    axes = [site.axes[each.latest.axis] for each in series]
    kinds = {op: _is_case(axis, pattern) for axis in axes for op, pattern in axis.ops}
    clauses = dict.fromkeys(
        clause.id for each in series for clause in site.contracts[each.latest.contract].clauses
    )
    causes: dict[str, _Named] = {}
    bugs: dict[str, _Named] = {}
    for place, each in enumerate(series):
        for cause in each.latest.causes:
            if cause.id:
                note = "cause" if cause.verdict == "regression" else f"cause, {cause.verdict}"
                found = causes.setdefault(cause.id, _Named(cause.id, cause.sentence, 0, [], note))
                found.cells += cause.cells
                found.devices += [place] if place not in found.devices else []
        for bug in each.latest.bugs:
            note = f"public bug of {bug.backend}" if bug.backend else "public bug"
            found = bugs.setdefault(bug.url, _Named(bug.url, bug.name, 0, [], note))
            found.cells += len(bug.expected) or len(bug.seen)
            found.devices.append(place)
    return msgspec.json.encode(
        _Index(
            sorted(op for op, case in kinds.items() if not case),
            sorted(op for op, case in kinds.items() if case),
            {op: slug(op) for op in kinds if slug(op) != op},
            list(clauses),
            sorted(causes.values(), key=lambda one: -one.cells),
            list(bugs.values()),
            [(each.slug, each.title, each.latest.axis, each.device) for each in series],
        )
    )
