"""The manifest that a run was judged by: its blocks, and which of them decided which cell."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from devices.block import Block
from devices.cell import Verdict
from devices.expectations import Manifest, ManifestError, Matcher
from devices.matching import conflict_text
from reports.dashboard import documents
from reports.dashboard.axes import keys
from reports.dashboard.reading import ReadRun
from reports.run import MANIFEST_FILE


@dataclass(frozen=True, slots=True)
class Judged:
    """The manifest as published, and for each told cell the positions of the blocks that decided."""

    manifest: documents.Manifest
    deciding: Mapping[int, list[int]] = field(default_factory=dict)


def judged(run: ReadRun) -> Judged:
    """Find the run's manifest, and match it against the run's cells.

    It is the copy in the results folder, else the file that the run names: in both cases only if
    its content has the run's own hash.
    """
    origin = run.provenance
    if not origin.manifest_hash:
        return Judged(documents.Manifest("none"))
    name = Path(origin.expectations).name
    text = _text(run.folder / MANIFEST_FILE, origin.manifest_hash) or _text(
        Path(origin.expectations), origin.manifest_hash
    )
    if text is None:
        return Judged(documents.Manifest("unknown", name))
    facts = {name: str(value) for name, value in run.plan.document.facts.items()}
    try:
        manifest = Manifest.parse(text, Path(name)).active(facts)
    except ManifestError as error:
        return Judged(documents.Manifest("unknown", name, [], [str(error)]))
    return _matched(run, manifest, name)


def _text(path: Path, hashed: str) -> str | None:
    try:
        raw = path.read_bytes()
    except OSError:
        return None  # not there: the caller says so
    if hashlib.blake2b(raw, digest_size=8).hexdigest() != hashed:
        return None
    return raw.decode("utf-8-sig", "replace")


def _matched(run: ReadRun, manifest: Manifest, name: str) -> Judged:
    matcher = Matcher(manifest)
    blocks = sorted((*manifest.blocks, *manifest.inactive), key=lambda block: block.line)
    place = {block.line: number for number, block in enumerate(blocks)}
    matches: Counter[int] = Counter()
    kept = {}
    deciding: dict[int, list[int]] = {}
    met: Counter[int] = Counter()
    problems: dict[str, None] = {}
    for position, key in enumerate(keys(run.axis)):
        match = matcher.match(key)
        if not match.blocks:
            continue
        kept[id(match)] = match
        matches[id(match)] += 1
        if match.conflict is not None:
            problems.setdefault(conflict_text(match.conflict, key))
        if match.expectation is not None and (result := run.told.get(position)) is not None:
            found = [place[block.line] for block in match.expectation.deciding]
            deciding[position] = found
            if result.verdict in (Verdict.EXPECTED, Verdict.FLAKY):
                met.update(found)
    cells: Counter[int] = Counter()
    for number, times in matches.items():
        for block in kept[number].blocks:
            cells[place[block.line]] += times
    active = {block.line for block in manifest.blocks}
    published = [
        _published(block, block.line in active, cells[number], met[number])
        for number, block in enumerate(blocks)
    ]
    return Judged(documents.Manifest("read", name, published, list(problems)[:20]), deciding)


def _published(block: Block, active: bool, cells: int, met: int) -> documents.Block:
    return documents.Block(
        line=block.line,
        clause=list(block.clause),
        op=list(block.op),
        dtype=list(block.dtype),
        outcome=block.outcome.value,
        reason=block.reason,
        active=active,
        cells=cells,
        met=met,
        kind=block.kind.value if block.kind else None,
        issue=block.issue,
        expires=block.expires.isoformat() if block.expires else None,
        layouts=_sorted(block.layouts),
        raises=block.raises,
        match=block.match.pattern if block.match else None,
        when=[f"{each.fact} {each.wanted}" for each in block.when],
        min_pass_rate=block.min_pass_rate,
    )


def _sorted(names: Iterable[str] | None) -> list[str] | None:
    return sorted(names) if names is not None else None
