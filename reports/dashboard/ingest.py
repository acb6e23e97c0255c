"""Adds one run to a site: refuses an incomplete run, then writes the run's public document with one status letter for
each cell, and the details of the cells that did not pass."""

from __future__ import annotations

import hashlib
import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import datetime, timezone
from pathlib import Path
from typing import NamedTuple, TypeVar

import msgspec

from devices.cell import CellKey, Use, Verdict
from devices.errors import ConformError
from devices.manifest import Block, Manifest, ManifestError
from devices.verdicts import Matcher, conflict_text
from reports.advice import sentence, todo, use_of
from reports.causes import Cause, causes_of, unexpected
from reports.dashboard import axes, documents
from reports.dashboard.axes import Axis
from reports.dashboard.geometry import Placement, laid_out, placement
from reports.dashboard.replays import published
from reports.gate import Level, levels_of, not_whole, nothing_checked, without_outcome
from reports.junit import clean
from reports.model import (
    PLANNED,
    CellResult,
    Clause,
    Example,
    Exclusion,
    Run,
    RunError,
    fold,
    problem_with,
)
from reports.run import (
    MANIFEST_FILE,
    collector_paused,
    load_run,
    manifest_of,
    record_file,
    repro_script,
)
from reports.status_letters import ERROR, PASS, code_of

# Longest message and script, in characters. A longer message is cut, a longer script is left out.
LONGEST_TEXT = 20_000
LONGEST_SCRIPT = 100_000

# The most cells of a cause that a page lists, and the most tensors of a call that it draws.
_NAMED = 12
_PICTURES = 6

_ISSUE = re.compile(r"https://github\.com/([\w.-]+)/([\w.-]+)/(?:issues|pull)/(\d+)")

# Fields that identify a machine. They are never published.
_PRIVATE = ("host", "device_uuid")


_T = TypeVar("_T")


class Refused(ConformError):
    """The error for a run that must not be published: it is partial, one shard of several, incomplete or empty, or no
    cell could be checked.

    The command exits with 2, as the gate does for an incomplete run.
    """

    exit_code = 2


# -- reading


@dataclass(frozen=True, slots=True)
class ReadRun:
    """A run, with its cells in the order of its axis. ``not_passed`` has the results of all cells that did not pass, by
    the position of the cell. ``lacking`` says what the run lacks to be complete; it is empty for a complete run."""

    run: Run
    sha256: str
    start: datetime  # in UTC
    axis: Axis
    codes: str
    checks: list[int]
    samples: list[int]
    not_passed: dict[int, CellResult]
    layouts: int
    lacking: tuple[str, ...] = ()

    @property
    def id(self) -> str:
        return run_id(self.start, self.sha256)


def run_id(start: datetime, sha256: str) -> str:
    """Returns the name of a run on the site. Names sort by date, and each name is a valid file name on every system."""
    return f"{start:%Y%m%dt%H%M%Sz}-{sha256[:10]}"


def fingerprint(path: Path) -> str:
    """Returns the SHA-256 of a run's record. Raises RunError if the run has no record."""
    source = record_file(path)
    try:
        return hashlib.sha256(source.read_bytes()).hexdigest()
    except OSError:
        load_run(path)  # raises the error that says what is wrong
        raise


def read_publishable(path: Path) -> ReadRun:
    """Reads a run. Raises RunError if its record is damaged, and Refused if the run is incomplete."""
    return _read(path, load_run(path), [])


def read_any(path: Path) -> ReadRun:
    """Reads a run that need not be complete: those of its cells that have an outcome.

    Raises RunError if its record is damaged, and Refused if no cell has an outcome.
    """
    run = load_run(path)
    lacking = [text.partition(";")[0] for text in not_whole(run)]
    missing = run.missing
    if missing and not run.provenance.partial:
        lacking.append(without_outcome(missing, len(run.parsed.cells)).partition(";")[0])
    return _read(path, run, lacking)


def _read(path: Path, run: Run, lacking: Sequence[str]) -> ReadRun:
    """Puts the cells of a run in the order of its axis. ``lacking`` says what the run lacks to be complete, if that is
    no reason to refuse it."""
    source, cells, planned = record_file(path), run.parsed.cells, run.plan.cells
    if lacking:
        absent = set(run.missing)
        cells = tuple(cell for cell in cells if cell not in absent)
        planned = fold(cells)
        if not cells:
            raise Refused(f"{source}: no cell has an outcome")
    elif reasons := not_whole(run):
        raise Refused(f"{source}: {reasons[0]}")
    elif missing := run.missing:
        raise Refused(f"{source}: incomplete: {without_outcome(missing, len(cells))}")
    ordered = axes.order(planned, run.plan.families)
    results = [run.results[cells[position]] for position in ordered.positions]
    codes = "".join(
        [PASS if result.passed_without_remark else code_of(result) for result in results]
    )
    not_passed = {place: results[place] for place, code in enumerate(codes) if code != PASS}
    for result in not_passed.values():
        if (problem := problem_with(result)) is not None:
            raise Refused(f"{source}: the result of {result.key} contradicts itself: {problem}")
    if set(codes) == {ERROR}:
        raise Refused(f"{source}: {nothing_checked(results)}".partition("\n")[0])
    # A run that was read has one object for equal sets of layouts, so comparing identities is enough.
    ran = {id(result.ran_layouts): result.ran_layouts for result in results}
    return ReadRun(
        run,
        fingerprint(path),
        _date(run.provenance.start, source),
        ordered.axis,
        codes,
        [result.checks for result in results],
        [result.samples for result in results],
        not_passed,
        len({name for names in ran.values() for name in names}),
        tuple(lacking),
    )


def _date(text: str, source: Path) -> datetime:
    try:
        found = datetime.fromisoformat(text.replace("Z", "+00:00"))
    except ValueError:
        raise RunError(
            f"{source}: the start of the run, {text!r}, is not a date in ISO 8601"
        ) from None
    if found.tzinfo is None:
        found = found.replace(tzinfo=timezone.utc)
    return found.astimezone(timezone.utc)


# -- the manifest that the run was judged by


class Judged(NamedTuple):
    """The manifest of a run in its published form. ``deciding`` maps the position of a cell that did not pass to the
    positions of the blocks that decide its verdict; it has no entry for a cell to which no block applies."""

    manifest: documents.Manifest
    deciding: Mapping[int, list[int]]


def matched_manifest(read: ReadRun) -> Judged:
    """Finds the manifest of a run, and counts the cells that each block of the manifest matches.

    The manifest is the copy in the results folder or, if there is none, the file that the run names. A file is used
    only if its hash equals the hash that the run recorded.
    """
    run, origin = read.run, read.run.provenance
    if not origin.manifest_hash:
        return Judged(documents.Manifest("none"), {})
    name = Path(origin.expectations).name
    paths = (run.folder / MANIFEST_FILE, Path(origin.expectations))
    raw = next((found for path in paths if (found := manifest_of(run, path)) is not None), None)
    if raw is None:
        return Judged(documents.Manifest("unknown", name), {})
    facts = {name: str(value) for name, value in run.plan.facts.items()}
    try:
        text = raw.decode("utf-8-sig", "replace")
        manifest = Manifest.parse(text, Path(name)).active(facts)
    except ManifestError as error:
        return Judged(documents.Manifest("unknown", name, [], [str(error)]), {})
    return _matched(read, manifest, name)


def _matched(read: ReadRun, manifest: Manifest, name: str) -> Judged:
    matcher = Matcher(manifest)
    blocks = sorted((*manifest.blocks, *manifest.inactive), key=lambda block: block.line)
    place = {block.line: number for number, block in enumerate(blocks)}
    # Cells that the same blocks match share one object. Its identity is the key, because hashing it takes longer than matching.
    matched: Counter[int] = Counter()
    kept = {}
    deciding: dict[int, list[int]] = {}
    met: Counter[int] = Counter()
    problems: dict[str, None] = {}
    for position, key in enumerate(axes.keys(read.axis)):
        match = matcher.match(key)
        if not match.blocks:
            continue
        kept[id(match)] = match
        matched[id(match)] += 1
        if match.conflict is not None:
            problems.setdefault(conflict_text(match.conflict, key))
        if match.expectation is not None and (result := read.not_passed.get(position)) is not None:
            parts = match.expectation.parts
            found = deciding[position] = [place[e.line] for part in parts for e in part.deciding]
            if result.verdict in (Verdict.EXPECTED, Verdict.FLAKY):
                met.update(found)
    cells: Counter[int] = Counter()
    for number, times in matched.items():
        cells.update({place[block.line]: times for block in kept[number].blocks})
    active = {block.line for block in manifest.blocks}
    published = [
        _published(block, block.line in active, cells[number], met[number])
        for number, block in enumerate(blocks)
    ]
    return Judged(documents.Manifest("read", name, published, list(problems)[:20]), deciding)


def _published(block: Block, active: bool, cells: int, met: int) -> documents.Block:
    return documents.Block(
        block.line, block.clause, block.op, block.dtype, block.outcome.value, block.reason,
        active, cells, met,
        kind=block.kind.value if block.kind else None,
        issue=block.issue,
        expires=block.expires.isoformat() if block.expires else None,
        variant=None if block.variant == ("*",) else block.variant,
        layouts=None if block.layouts is None else sorted(block.layouts),
        raises=block.raises,
        match=block.match.pattern if block.match else None,
        when=[f"{each.fact} {each.wanted}" for each in block.when],
        min_pass_rate=block.min_pass_rate,
    )  # fmt: skip


# -- writing


def ingest(
    path: Path, site: Path, labels: Mapping[str, str] | None = None, *, publish: bool = True
) -> str:
    """Reads a run and writes its files below ``site``. Returns the run's id. ``labels`` are published with the run.

    Raises RunError if the record is damaged, and Refused if the run is incomplete and the site is to be published.
    """
    with collector_paused():
        run = read_publishable(path) if publish else read_any(path)
    manifest = matched_manifest(run)
    contract = documents.ContractDocument(_cleaned(run.run.plan.clauses, list[Clause]))
    contract_data = msgspec.json.encode(contract)
    contract_hash = hashlib.sha256(contract_data).hexdigest()[:16]
    axis_hash = run.axis.hash
    _both(site, f"contracts/{contract_hash}", contract_data)
    _both(site, f"axes/{axis_hash}", msgspec.json.encode(run.axis))
    for number, shard in _shards(run, manifest.deciding).items():
        documents.write_script(site, f"details/{run.id}/{number}", shard.encoded())
    document = _document(run, axis_hash, contract_hash, manifest, labels or {})
    _both(site, f"runs/{run.id}", msgspec.json.encode(document))
    return run.id


def _both(site: Path, name: str, data: bytes) -> None:
    """Writes a document for the pages, and the same document under ``v1/``. The public document is written last,
    because a site has a run as soon as the run's public document exists."""
    documents.write_script(site, name, data)
    documents.write(site / "v1" / f"{name}.json", data)


def _cleaned(value: object, kind: type[_T]) -> _T:
    """Returns a value in which all characters that a page cannot show are escaped."""
    return msgspec.convert(_clean_texts(msgspec.to_builtins(value)), kind)


def _clean_texts(value: object) -> object:
    if isinstance(value, str):
        return clean(value)
    if isinstance(value, (list, tuple)):
        return [_clean_texts(each) for each in value]
    if isinstance(value, dict):
        return {clean(str(name)): _clean_texts(each) for name, each in value.items()}
    return value


def _document(
    read: ReadRun, axis: str, contract: str, manifest: Judged, labels: Mapping[str, str]
) -> documents.RunDocument:
    run, plan = read.run, read.run.plan
    origin = {name: each for name, each in asdict(run.provenance).items() if name not in _PRIVATE}
    origin["expectations"] = Path(run.provenance.expectations).name
    causes = causes_of(run, _failing(read))
    return documents.RunDocument(
        format=documents.FORMAT,
        id=read.id,
        sha256=read.sha256,
        provenance=_cleaned(origin, dict[str, str | int | bool]),
        start=read.start.strftime(documents.INSTANT),
        axis=axis,
        contract=contract,
        codes=read.codes,
        counts=axes.count(read.axis, read.codes),
        checks=sum(read.checks),
        layouts=read.layouts,
        facts=_cleaned(plan.facts, dict[str, str | int | float | bool | None]),
        capabilities=_cleaned(plan.capabilities, dict[str, dict[str, bool | None]]),
        undeclared=_undeclared(read),
        provisional=[clause.id for clause in plan.clauses if clause.provisional],
        exclusions=_cleaned(plan.exclusions, list[Exclusion]),
        manifest=manifest.manifest,
        levels=_cleaned(levels_of(run), list[Level]),
        causes=_published_causes(read, causes),
        replay=published(run, causes),
        bugs=public_bugs(read, manifest.manifest.blocks, manifest.deciding),
        labels=_cleaned(dict(labels), dict[str, str]),
        lacking=[clean(text) for text in read.lacking],
    )


def public_bugs(
    read: ReadRun, blocks: Sequence[documents.Block], deciding: Mapping[int, list[int]]
) -> list[documents.PublicBug]:
    """Returns the public bugs that a run is about: the issues that its manifest's blocks name, and the bugs of other
    devices that its failing cells would find."""
    found: dict[str, documents.PublicBug] = {}
    for number, block in enumerate(blocks):
        if block.issue is not None and block.issue.startswith(("http://", "https://")):
            url = clean(block.issue)
            if url not in found:
                found[url] = documents.PublicBug(url, name_of_issue(url), "", [], [], [])
            found[url].blocks.append(number)
    of_block = {number: bug for bug in found.values() for number in bug.blocks}
    for place, numbers in deciding.items():
        if read.not_passed[place].verdict not in (Verdict.EXPECTED, Verdict.FLAKY):
            continue
        for bug in {of_block[number].url for number in numbers if number in of_block}:
            found[bug].expected.append(place)
    for place, result in read.not_passed.items():
        for seen in result.seen:
            url = clean(seen.url)
            if url not in found:
                name, backend = clean(seen.reference), clean(seen.backend)
                found[url] = documents.PublicBug(url, name, backend, [], [], [])
            found[url].seen.append(place)
    return sorted(found.values(), key=lambda bug: (-len(bug.expected), -len(bug.seen), bug.name))


def name_of_issue(url: str) -> str:
    """Returns a short name for the address of an issue: ``pytorch#123`` for an issue of pytorch/pytorch,
    ``owner/repository#123`` for others on GitHub, else the address without its scheme."""
    match = _ISSUE.fullmatch(url)
    if match is None:
        return url.partition("://")[2]
    owner, repository, number = match.groups()
    return f"{repository if owner == repository else f'{owner}/{repository}'}#{number}"


def _failing(read: ReadRun) -> list[CellResult]:
    """Returns the unexpected results of a run, then its expected failures."""
    expected = (r for r in read.not_passed.values() if r.verdict is Verdict.EXPECTED)
    return [*unexpected(read.run), *expected]


def _published_causes(read: ReadRun, causes: Iterable[Cause]) -> list[documents.Cause]:
    """Returns the causes of all failing cells, including expected failures, in the form in which the site publishes
    them."""
    places = {result.key: place for place, result in read.not_passed.items()}
    return [_published_cause(cause, read.run.parsed.clauses, places) for cause in causes]


def _published_cause(
    cause: Cause, clauses: Mapping[str, Clause], places: Mapping[CellKey, int]
) -> documents.Cause:
    ids = dict.fromkeys(result.key.clause for result in cause.results)
    return documents.Cause(
        verdict=cause.verdict.value,
        sentence=clean(sentence(cause)),
        todo=clean(todo(cause, clauses)),
        cells=len(cause.results),
        checks=cause.checks,
        clauses=[clean(name) for name in ids],
        example=CellKey(*map(clean, cause.example.key)),
        outcome=cause.example.outcome.value,
        positions=[places[result.key] for result in cause.results],
        gating=cause.gates,
        used=clean(use_of(cause)),
        called_by=cause.most_used.called_by if cause.most_used else None,
        id=cause_id(cause),
    )


def cause_id(cause: Cause) -> str:
    """Returns the name of a cause on the site: ten hexadecimal digits of the SHA-256 of its key, which does not depend
    on the run or the device."""
    text = json.dumps([cause.key.rule, *cause.key.about])
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:10]


def _undeclared(read: ReadRun) -> dict[str, list[str]]:
    """Returns the checked clauses that have no cell on the device of the run, each with the capabilities that the
    device does not declare."""
    return {
        clause.id: [clean(name) for name in missing]
        for clause in read.run.plan.clauses
        if clause.status != PLANNED
        and clause.id not in read.axis.clauses
        and (missing := read.run.parsed.undeclared(clause.id))
    }


class _Cause(msgspec.Struct):
    """The reason why a cell fails, and the first cells that fail for the same reason. ``count`` is the number of all
    cells that fail for that reason."""

    id: str
    sentence: str
    todo: str
    count: int
    cells: list[str]


class _Smallest(msgspec.Struct):
    """A minimised example as a page shows it, with the positions of its tensors in storage."""

    call: str
    layout: str
    message: str
    tried: int
    whole: bool
    tensors: list[Placement]


class _Detail(msgspec.Struct, omit_defaults=True):
    """The facts that the page of a cell shows in addition to the status. ``ran`` names the layouts in which the cell
    ran, as an index into the list of layout sets in the same JSON file. ``script`` has the lines of the repro script, as
    indices into the list of lines in that file. ``more`` has the other fields of the result, which have no field here."""

    seconds: float | None = None
    why: str = ""
    message: str = ""
    raises: str = ""
    repro: str = ""
    layouts: list[str] = []
    ran: int | None = None
    worst: str = ""
    blocks: list[int] = []
    script: list[int] | None = None
    tensors: list[Placement] = []
    example: _Smallest | None = None
    cause: _Cause | None = None
    seen: list[tuple[str, str]] = []
    more: dict[str, str] = {}


_SHOWN = {
    "key", "outcome", "verdict", "why", "checks", "samples", "layouts", "ran_layouts", "worst_error",
    "raises", "failure", "failed", "note", "said", "repro", "seen", "seconds", "worker", "example",
    "rest",
}  # fmt: skip
_OTHERS = tuple(name for name in CellResult.__struct_fields__ if name not in _SHOWN)


@dataclass(slots=True)
class _Shard:
    """The content of one file of details. Layout sets and script lines are stored once and referred to by number,
    because most repro scripts share most of their lines."""

    counts: dict[str, tuple[list[int], list[int]]] = field(default_factory=dict)
    cells: dict[str, _Detail] = field(default_factory=dict)
    lines: dict[str, int] = field(default_factory=dict)
    sets: dict[tuple[str, ...], int] = field(default_factory=dict)
    pictures: dict[str, list[Placement]] = field(default_factory=dict)

    def encoded(self) -> bytes:
        numbered = {"lines": list(self.lines), "sets": list(self.sets)}
        return msgspec.json.encode(
            {"counts": self.counts, "cells": self.cells, **numbered, "pictures": self.pictures}
        )


def _shards(read: ReadRun, deciding: Mapping[int, list[int]]) -> dict[int, _Shard]:
    """Returns the details of the run's cells by the number of the file that stores them. Each operator is stored in one
    of SHARDS files."""
    shards: dict[int, _Shard] = {}
    causes = dict(_causes(read))
    for op, _, start, end in axes.slices(read.axis):
        shard = shards.setdefault(axes.shard_of(op), _Shard())
        shard.counts[op] = (read.checks[start:end], read.samples[start:end])
    for position, result in read.not_passed.items():
        shard = shards[axes.shard_of(result.key.unit)]
        detail = shard.cells[str(position)] = _detail(read.run.folder, result, shard)
        detail.blocks = deciding.get(position, [])
        detail.cause = causes.get(position)
    return shards


def _causes(read: ReadRun) -> Iterator[tuple[int, _Cause]]:
    """Yields the position of each unexpected result with the cause of that result."""
    new = {result.key: position for position, result in read.not_passed.items()}
    for cause in causes_of(read.run, unexpected(read.run)):
        names = [clean(str(result.key)) for result in cause.results[:_NAMED]]
        advice = clean(todo(cause, read.run.parsed.clauses))
        made = _Cause(cause_id(cause), clean(sentence(cause)), advice, len(cause.results), names)
        yield from ((new[result.key], made) for result in cause.results)


def _detail(folder: Path, result: CellResult, shard: _Shard) -> _Detail:
    detail = _Detail(
        seconds=round(result.seconds, 6),
        why=_cut(result.why),
        message=_cut(result.message),
        raises=_cut(result.raises or ""),
        repro=_cut(result.repro or ""),
        layouts=[clean(name) for name in result.failing_layouts],
        worst="" if result.worst_error is None else f"{result.worst_error:g}",
        example=smallest(result.example),
        seen=[(clean(str(bug)), clean(bug.url)) for bug in result.seen],
        more=_more(result),
    )
    shard.pictures |= {
        name: laid_out(name) for name in detail.layouts if name not in shard.pictures
    }
    if result.ran_layouts:
        ran = tuple(map(clean, result.ran_layouts))
        detail.ran = shard.sets.setdefault(ran, len(shard.sets))
    if (script := _script(folder, result)) is not None:
        lines = script.split("\n")
        detail.script = [shard.lines.setdefault(line, len(shard.lines)) for line in lines]
    if result.failure is not None:
        tensors = [placement(each, "out") for each in result.failure.targets[:_PICTURES]]
        tensors += [placement(each) for each in result.failure.inputs]
        detail.tensors = tensors[:_PICTURES]
    return detail


def smallest(example: Example | None) -> _Smallest | None:
    """Returns a minimised example in the form that the page shows; None if the cell has no example."""
    if example is None:
        return None
    call, layout, message = map(clean, (example.call, example.layout, example.message))
    tensors = [placement(each) for each in example.tensors]
    return _Smallest(call, layout, message, example.tried, example.whole, tensors)


def _more(result: CellResult) -> dict[str, str]:
    """Returns, as text, the fields of a result that have no fixed place on the page of a cell."""
    found: dict[str, str] = {}
    for name in _OTHERS:
        if value := getattr(result, name):
            plain = str(value) if isinstance(value, Use) else msgspec.to_builtins(value)
            found[name] = _cut(plain if isinstance(plain, str) else json.dumps(plain, indent=2))
    if result.rest is not None and result.rest.repro:
        found["script_of_the_other_checks"] = _cut(f"python {result.rest.repro}")
    return found


def _script(folder: Path, result: CellResult) -> str | None:
    """Returns the text of a cell's repro script. Returns None if the script is missing, because the run was copied
    without its scripts, or if the script is too long; the page then shows only its path."""
    path = repro_script(folder, result)
    try:
        raw = path.read_bytes() if path is not None else None
    except OSError:
        return None
    return (
        None if raw is None or len(raw) > LONGEST_SCRIPT else clean(raw.decode("utf-8", "replace"))
    )


def _cut(text: str) -> str:
    text = clean(text)
    if len(text) <= LONGEST_TEXT:
        return text
    return f"{text[:LONGEST_TEXT]}\n… and {len(text) - LONGEST_TEXT:,} more characters"
