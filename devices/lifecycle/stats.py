"""What a manifest holds, in numbers: causes by kind, what is old, and how many cells it excuses."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import date, timedelta

from devices.block import Block
from devices.cell import CellKey
from devices.manifest import Manifest
from devices.matching import Matcher


@dataclass(frozen=True, slots=True)
class Inactive:
    """A block that does not hold here, with the conditions that are false."""

    where: str
    when: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Stats:
    """Numbers of blocks, unless said otherwise. A block is counted in each family it speaks of.

    ``covered`` and ``planned`` are numbers of cells, None where no plan was given; ``families`` goes
    by the clauses that are matched there, and by the patterns without a plan.
    """

    blocks: int
    by_kind: dict[str, int]
    by_outcome: dict[str, int]
    families: dict[str, int]
    expired: tuple[str, ...]
    expiring: tuple[str, ...]
    without_issue: tuple[str, ...]
    inactive: tuple[Inactive, ...]
    covered: int | None
    covered_by_family: dict[str, int]
    planned: int | None


def stats(
    manifest: Manifest,
    facts: Mapping[str, str],
    today: date,
    *,
    soon: timedelta = timedelta(days=60),
    cells: Iterable[CellKey] | None = None,
) -> Stats:
    """Count. Raises ManifestError where a block depends on a fact that is not known here."""
    here = manifest.active(facts)
    families: Counter[str] = Counter()
    for block in manifest.blocks:
        families.update({pattern.partition(".")[0] for pattern in block.clause})
    covered: Counter[str] | None = None
    planned = 0
    if cells is not None:
        covered, matcher = Counter(), Matcher(here)
        for key in cells:
            planned += 1
            if matcher.match(key).blocks:
                covered[key.clause.partition(".")[0]] += 1
    expired = [block for block in manifest.blocks if block.is_expired(today)]
    expiring = [
        block
        for block in manifest.blocks
        if block.is_expired(today + soon) and not block.is_expired(today)
    ]
    return Stats(
        blocks=len(manifest.blocks),
        by_kind=_sorted(str(block.kind or "none given") for block in manifest.blocks),
        by_outcome=_sorted(str(block.outcome) for block in manifest.blocks),
        families=dict(sorted(families.items())),
        expired=_dated(expired),
        expiring=_dated(expiring),
        without_issue=tuple(block.where for block in manifest.blocks if block.issue is None),
        inactive=tuple(
            Inactive(
                block.where,
                tuple(
                    f"{each.fact} is {facts[each.fact]!r}, not {each.wanted!r}"
                    for each in block.when
                    if not each.holds(facts)
                ),
            )
            for block in here.inactive
        ),
        covered=None if covered is None else covered.total(),
        covered_by_family={} if covered is None else dict(sorted(covered.items())),
        planned=None if covered is None else planned,
    )


def _sorted(names: Iterable[str]) -> dict[str, int]:
    return dict(sorted(Counter(names).items()))


def _dated(blocks: Iterable[Block]) -> tuple[str, ...]:
    return tuple(f"{block.where} ({block.expires})" for block in blocks)


def text(counted: Stats, *, most: int = 10) -> list[str]:
    """The numbers in lines; lists of blocks are cut after ``most``."""
    lines = [f"{counted.blocks:,} block{'' if counted.blocks == 1 else 's'}"]
    if counted.covered is not None:
        lines[0] += f", which match {counted.covered:,} of {counted.planned:,} planned cells"
    for title, numbers in (
        ("by kind", counted.by_kind),
        ("by outcome", counted.by_outcome),
        ("by clause family", counted.families),
        ("cells by clause family", counted.covered_by_family),
    ):
        if numbers:
            told = ", ".join(f"{name} {number:,}" for name, number in numbers.items())
            lines.append(f"{title}: {told}")
    for title, places in (
        ("expired", counted.expired),
        ("expiring soon", counted.expiring),
        ("without an issue", counted.without_issue),
        (
            "do not hold here",
            tuple(f"{each.where}: {'; '.join(each.when)}" for each in counted.inactive),
        ),
    ):
        lines.append(f"{title}: {len(places)}")
        lines += [f"    {place}" for place in places[:most]]
        if len(places) > most:
            lines.append(f"    and {len(places) - most} more")
    return lines
